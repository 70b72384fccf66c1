//! Logs of sandboxes, through pauses, forks and restarts of the agent.

use sandpiper_protocol::agent::LogPage;

use super::snapshots::Sandbox;
use super::*;

impl Sandbox<'_> {
    async fn log(&self, query: &str) -> LogPage {
        let (status, answer) = self.agent.ask("GET", &format!("/sandboxes/{}/logs{query}", self.id), "").await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn messages(&self, query: &str) -> Vec<String> {
        self.log(query).await.entries.into_iter().map(|entry| entry.message).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_goes_on_through_a_pause_and_under_the_next_agent_and_ends_with_its_sandbox() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    sandbox.ask("pause", json!({})).await;
    let before = sandbox.log("").await;
    assert!(before.entries.iter().any(|entry| entry.message == "ready"), "{before:?}");
    assert_eq!(sandbox.messages("?newest_first=true&limit=1").await, ["paused"]);
    let id = sandbox.id.clone();

    let agent = agent.follow().await;

    let sandbox = agent.sandbox(id.as_str());
    let after = sandbox.log("").await;
    assert_eq!(serde_json::to_value(&after.entries).unwrap(), serde_json::to_value(&before.entries).unwrap());
    sandbox.ask("resume", json!({})).await;
    let cursor = before.last;
    assert_eq!(sandbox.messages(&format!("?after={cursor}&search=resumed")).await, ["resumed"]);
    let (fork, source) = (id::generate("sbx"), sandbox.log("").await.last);
    sandbox.ask("fork", json!({"ids": [fork]})).await;
    let fork = agent.sandbox(&fork);
    let of_fork = fork.log("").await;
    assert!(of_fork.last < 100 && of_fork.entries[0].message.starts_with("created from"), "{of_fork:?} {source}");
    assert!(
        fs::read_dir(sandbox.folder()).unwrap().flatten().any(|file| file.file_name() == "log-00000000000000000001")
    );

    sandbox.delete().await;

    let ended = sandbox.log(&format!("?after={cursor}")).await;
    assert!(ended.is_ended && ended.entries.last().unwrap().message.starts_with("deleted"), "{ended:?}");
    assert!(!sandbox.folder().exists() && !fork.log("").await.is_ended);
    assert_eq!(agent.ask("GET", &format!("/sandboxes/{}/logs?limit=x", fork.id), "").await.0, 400);
    fork.delete().await;
    let agent = agent.follow().await;
    assert_eq!(agent.ask("GET", &format!("/sandboxes/{id}/logs"), "").await.0, 404);
    agent.end().await;
}
