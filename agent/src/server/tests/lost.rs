//! Machines that end without being asked to: their sandboxes' disks are kept.

use sandpiper_ingress::Directory;
use sandpiper_protocol::agent::SandboxState;

use super::snapshots::{Sandbox, eventually};
use super::*;

impl Sandbox<'_> {
    /// Kills the monitor, and waits until the sandbox is what is left of it.
    async fn loses_its_machine(&self) {
        monitor::kill(&self.monitor_folder());
        self.is_eventually(SandboxState::Stopped).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_monitor_is_killed_is_stopped_and_boots_from_its_disk() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    sandbox.ask("pause", json!({})).await;
    sandbox.ask("resume", json!({})).await;

    sandbox.loses_its_machine().await;

    let shown = sandbox.show().await;
    assert_eq!(shown["error"]["code"], "monitor_failed");
    assert!(shown["error"]["message"].as_str().unwrap().contains("SIGKILL"), "{shown}");
    assert!(shown["stopped_at"].is_string());
    eventually(|| {
        sandbox.files() == ["disk-0.layer", "disk-1.layer", "disk-4.layer", "record.copy.json", "record.json"]
    })
    .await;
    assert_eq!(agent.sandboxes.context().capacity.sandboxes(), 0);

    let resumed = sandbox.ask("resume", json!({})).await["sandbox"].clone();

    assert_eq!((&resumed["state"], &resumed["start"]), (&json!("ready"), &json!("cold")));
    assert!(resumed["error"].is_null(), "{resumed}");
    for (generation, memory) in [(1, "booted"), (2, "booted 1"), (3, "booted")] {
        assert_eq!(sandbox.block(generation).unwrap(), format!("{} {memory}", sandbox.id));
    }
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_fails_leaves_the_disk_and_the_reason() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    sandbox.loses_its_machine().await;
    let ended = || async {
        let shown = sandbox.show().await;
        ["state", "error", "stopped_at", "deadline"].map(|field| shown[field].clone())
    };
    let before = ended().await;
    let kernel = agent.folder.path().join("vmlinux");
    fs::rename(&kernel, kernel.with_extension("away")).unwrap();

    assert_eq!(sandbox.try_ask("resume", json!({})).await.0, 500);

    assert_eq!(ended().await, before);
    fs::rename(kernel.with_extension("away"), &kernel).unwrap();
    sandbox.ask("resume", json!({})).await;
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", sandbox.id));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_lost_machine_can_be_checkpointed_and_forked() {
    let agent = Agent::with_machines().await;
    let (source, _) = agent.create(create(&agent.import().await.id)).await;
    source.loses_its_machine().await;

    let checkpoint = source.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
    let fork = id::generate("sbx");
    source.ask("fork", json!({"ids": [fork]})).await;

    assert_eq!(checkpoint["memory"], false, "there is none");
    let mut request = create("");
    request["checkpoint"] = checkpoint["id"].clone();
    let (restored, _) = agent.create(request).await;
    for heir in [&restored, &agent.sandbox(&fork)] {
        assert_eq!(heir.show().await["start"], "cold");
        assert_eq!(heir.block(1).unwrap(), format!("{} booted", source.id));
    }
    assert_eq!(source.state().await, "stopped");
    assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{}", checkpoint["id"].as_str().unwrap()), "").await.0, 204);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_lost_machine_still_holds() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (killed, _) = agent.create(create(&template)).await;
    let mut request = create(&template);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    let (paused, created) = agent.create(request).await;
    let token = created["data_plane_url"].as_str().unwrap().split(['/', '.']).nth(2).unwrap().to_owned();
    for sandbox in [&paused, &killed] {
        sandbox.loses_its_machine().await;
        let path = format!("/sandboxes/{}", sandbox.id);
        assert_eq!(agent.ask("PATCH", &path, r#"{"timeout_seconds": 1}"#).await.0, 200);
    }

    eventually(|| agent.sandboxes.find(&killed.id).is_none()).await;

    assert!(!killed.folder().exists());
    assert_eq!(paused.show().await["error"]["code"], "monitor_failed");
    assert!(Directory::find(&agent.sandboxes, &token).await.unwrap().wakes);
    Directory::wake(&agent.sandboxes, &paused.id).await.unwrap();
    assert_eq!(paused.state().await, "ready");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_unasked_goes_at_its_deadline_also_when_that_passes_between_two_agents() {
    for state in ["stopped", "failed"] {
        let agent = Agent::with_machines().await;
        let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
        sandbox.loses_its_machine().await;
        let (id, path, mut record) = (sandbox.id.clone(), sandbox.folder().join("record.json"), sandbox.record());
        // `failed` is what earlier agents called it.
        record["state"] = json!(state);
        record["deadline"] = json!(jiff::Timestamp::now());

        let agent = agent.follow_after(|| fs::write(&path, record.to_string()).unwrap()).await;

        eventually(|| agent.sandboxes.find(&id).is_none()).await;
        agent.end().await;
    }
}
