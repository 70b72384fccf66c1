//! When machines ran, as the agent tells whoever bills it, against what it tells tenants.

use std::ops::Range;

use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::interval::{Acknowledgement, EndReason, Interval, IntervalPage};

use super::snapshots::eventually;
use super::*;

impl Agent {
    async fn intervals(&self) -> IntervalPage {
        let (status, body) = self.ask("GET", "/intervals", "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn acknowledge(&self, journal: &str, through: u64) -> u16 {
        let sent = Acknowledgement { journal: journal.to_owned(), through };
        self.ask("POST", "/intervals/acknowledge", serde_json::to_string(&sent).unwrap()).await.0
    }

    /// What is known of each interval, once there are so many records.
    async fn after(&self, records: usize) -> Vec<Interval> {
        let sandboxes = self.sandboxes.clone();
        eventually(move || sandboxes.context().intervals.page(100).unwrap().records.len() >= records).await;
        let page = self.intervals().await;
        assert_eq!((page.records.len(), page.more), (records, false), "{:?}", page.records);
        let mut intervals: Vec<Interval> = Vec::new();
        for record in page.records {
            intervals.retain(|known| known.id != record.interval.id);
            intervals.push(record.interval);
        }
        intervals
    }
}

/// When it ran and why that ended.
fn ended(interval: &Interval) -> (Range<i64>, EndReason) {
    let end = interval.end.unwrap();
    (interval.began_at_ms..end.at_ms, end.reason)
}

fn ms(sandbox: &Value, field: &str) -> i64 {
    sandbox[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_that_a_guest_takes_to_wake_is_not_of_its_interval() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    sandbox.ask("pause", json!({})).await;
    agent.behave("hold-ready");
    let wake = async {
        sandbox.is_eventually(SandboxState::Restoring).await;
        // The time is what this is about.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let woken = jiff::Timestamp::now().as_millisecond();
        agent.behave("");
        woken
    };

    let (resumed, woken) = tokio::join!(sandbox.ask("resume", json!({})), wake);

    let began = ms(&resumed["sandbox"], "started_at");
    assert!(began >= woken, "{} ms too early", woken - began);
    assert_eq!(agent.after(3).await[1].began_at_ms, began);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_time_that_a_sandbox_runs_is_an_interval_of_its_own() {
    let agent = Agent::with_machines().await;
    let mut request = create(&agent.import().await.id);
    request["allowance"] = json!({"team": "team0000000000000000000001",
                                  "quota": {"sandboxes": 9, "cpu": 9, "memory_mb": 9999}});
    let (sandbox, created) = agent.create(request.clone()).await;
    let running = agent.after(1).await.remove(0);
    assert_eq!((&running.sandbox, running.team.as_deref()), (&sandbox.id, request["allowance"]["team"].as_str()));
    assert_eq!((running.cpu, running.memory_mb), (1, 64));
    assert_eq!((running.began_at_ms, running.end), (ms(&created, "started_at"), None));

    let paused = sandbox.ask("pause", json!({})).await;
    let expected = (ms(&created, "started_at")..ms(&paused, "stopped_at"), EndReason::Paused);
    assert_eq!(ended(&agent.after(2).await[0]), expected);

    let resumed = sandbox.ask("resume", json!({})).await["sandbox"].clone();
    monitor::kill(&sandbox.monitor_folder());
    sandbox.is_eventually(SandboxState::Stopped).await;
    let lost = sandbox.show().await;
    let expected = (ms(&resumed, "started_at")..ms(&lost, "stopped_at"), EndReason::Crashed);
    assert_eq!(ended(&agent.after(4).await[1]), expected);

    let resumed = sandbox.ask("resume", json!({})).await["sandbox"].clone();
    let before = jiff::Timestamp::now().as_millisecond();
    sandbox.delete().await;
    let intervals = agent.after(6).await;
    let (ran, reason) = ended(&intervals[2]);
    assert_eq!((ran.start, reason), (ms(&resumed, "started_at"), EndReason::Deleted));
    assert!((before..=jiff::Timestamp::now().as_millisecond()).contains(&ran.end));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_on_in_its_interval_whichever_agent_there_is() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let id = sandbox.id.clone();
    let first = agent.after(1).await;

    let agent = agent.follow().await;
    assert_eq!(agent.after(1).await, first);
    let folder = agent.sandbox(&id).monitor_folder();
    let agent = agent.follow_after(|| monitor::kill(&folder)).await;

    let lost = agent.after(2).await.remove(0);
    let (ran, reason) = ended(&lost);
    assert_eq!((ran.start, reason), (first[0].began_at_ms, EndReason::Lost));
    assert_eq!(Some(ran.end), agent.intervals().await.seen_at_ms, "the agent before looked when it ended");
    agent.sandbox(&id).delete().await;
    assert_eq!(agent.after(2).await, [lost], "what was stopped runs no more");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_and_what_waits_for_a_sandbox_are_no_intervals() {
    let agent = Agent::with_machines().await;
    let request = create(&agent.import().await.id);
    fs::rename(agent.folder.path().join("vmlinux"), agent.folder.path().join("away")).unwrap();
    assert_eq!(agent.ask("POST", "/sandboxes", request.to_string()).await.0, 500);
    assert!(agent.intervals().await.records.is_empty());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_not_listed_again() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    agent.after(1).await;
    let journal = agent.intervals().await.journal;

    assert_eq!(agent.acknowledge("jnlother", 1).await, 409);
    assert_eq!(agent.acknowledge(&journal, 9).await, 400);
    assert_eq!(agent.ask("GET", "/intervals?limit=x", "").await.0, 400);
    assert_eq!(agent.intervals().await.records.len(), 1);
    assert_eq!(agent.acknowledge(&journal, 1).await, 204);
    sandbox.delete().await;

    let left = agent.intervals().await.records;
    assert_eq!((left.len(), left[0].sequence, left[0].interval.end.is_some()), (1, 2, true));
    agent.end().await;
}
