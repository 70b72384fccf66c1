//! Machines that wait for a sandbox.

use super::*;

const MOST: u32 = 2;

/// An agent that parks machines, has a warm snapshot of its template, and one machine that waits.
async fn with_parking() -> (Agent, String) {
    let folder = tempfile::tempdir().unwrap();
    let vmm = monitor::program(folder.path());
    let parking = config::Parking { max: MOST, ..config::Parking::default() };
    let agent = Agent::start_with(folder, Config { vmm, parking, ..Config::default() }).await;
    let template = agent.import().await.id;
    let (_, cold) = agent.create(create(&template)).await;
    agent.warm().await;
    let (_, warm) = agent.create(create(&template)).await;
    assert_eq!((cold["start"].as_str(), warm["start"].as_str()), (Some("cold"), Some("warm")));
    agent.parked(1).await;
    (agent, template)
}

impl Agent {
    async fn parked(&self, count: usize) {
        let parking = &self.sandboxes.context().parking;
        eventually(|| parking.count() == count).await;
    }

    /// Folders of machines that are no sandbox's.
    fn helpers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("state/helpers")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_becomes_the_next_sandbox_and_others_take_its_place() {
    let (agent, template) = with_parking().await;
    let waiting = agent.helpers();
    assert_eq!(waiting.len(), 1);

    let (sandbox, shown) = agent.create(create(&template)).await;

    assert_eq!(shown["start"], "parked");
    // It was nobody, became nobody's guest, and then this one.
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted 0 {}", sandbox.id, u64::MAX));
    assert_eq!(sandbox.layers("disk").len(), 3);
    assert!(!agent.helpers().contains(&waiting[0]));
    agent.parked(2).await;
    let paused = sandbox.ask("pause", json!({})).await;
    assert_eq!(paused["state"], "stopped");
    sandbox.ask("resume", json!({})).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_one_that_waits_has_died_the_snapshot_is_restored() {
    let (agent, template) = with_parking().await;
    // The monitor of each names the folder that it was idle in; this one's is the one that is gone and no sandbox's.
    let monitors = agent.folder.path().join("state/monitors");
    let of_sandboxes: Vec<_> = agent.sandboxes.list().iter().filter_map(|record| record.process.clone()).collect();
    let is_parked =
        |folder: &PathBuf| !folder.exists() && of_sandboxes.iter().all(|monitor| monitors.join(&monitor.id) != *folder);
    let parked: Vec<_> = monitor::folders(&monitors).into_iter().filter(is_parked).collect();
    assert_eq!(parked.len(), 1);
    monitor::kill(&parked[0]);

    let (sandbox, shown) = agent.create(create(&template)).await;

    assert_eq!(shown["start"], "warm");
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted 0", sandbox.id));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_wait_end_with_the_agent_and_sandboxes_that_were_given_one_go_on() {
    let (agent, template) = with_parking().await;
    let (sandbox, _) = agent.create(create(&template)).await;
    let id = sandbox.id.to_string();
    agent.parked(2).await;

    let agent = agent.follow().await;

    assert_eq!((agent.helpers(), agent.sandbox(&id).state().await), (Vec::new(), "ready".to_owned()));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_a_version_that_is_deleted_goes_too() {
    let (agent, _) = with_parking().await;
    let context = agent.sandboxes.context();
    context.warm.discard(&context.warm.list()[0].key);
    eventually(|| context.parking.count() == 0 && agent.helpers().is_empty()).await;
    agent.end().await;
}
