//! Logs of sandboxes, through pauses, forks and restarts of the agent.

use sandpiper_protocol::agent::{LogEntry, LogPage, LogQuery, LogSource};
use sandpiper_protocol::guest::OutputStream;

use super::snapshots::{Sandbox, eventually};
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

    /// What its processes wrote, as far as the log has it.
    fn output(&self) -> Vec<LogEntry> {
        let log = self.agent.sandboxes.context().logs.find(&self.id).unwrap();
        log.page(&LogQuery { source: Some(LogSource::Process), ..LogQuery::default() }).unwrap().entries
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

#[tokio::test(flavor = "multi_thread")]
async fn what_processes_write_is_in_the_log_of_a_sandbox_that_asks_for_it_and_of_its_forks() {
    let agent = Agent::with_machines().await;
    let mut request = create(&agent.import().await.id);
    request["capture_output"] = json!(true);

    let (sandbox, shown) = agent.create(request).await;

    assert_eq!(shown["capture_output"], true);
    eventually(|| sandbox.output().len() == 1).await;
    let entries = sandbox.log("?source=process").await.entries;
    assert_eq!((entries.len(), entries[0].message.as_str()), (1, &*format!("I am {}", sandbox.id)));
    let stream = entries[0].process.as_ref().map(|process| (process.pid, process.stream));
    assert_eq!(stream, Some((7, OutputStream::Stdout)));
    assert!(sandbox.log("?source=host").await.entries.iter().all(|entry| entry.source == LogSource::Host));
    sandbox.ask("pause", json!({})).await;
    sandbox.ask("resume", json!({})).await;
    eventually(|| sandbox.output().len() == 2).await;
    let fork = id::generate("sbx");
    sandbox.ask("fork", json!({"ids": [fork]})).await;
    let fork = agent.sandbox(&fork);
    eventually(|| fork.output().len() == 1).await;
    assert_eq!(fork.output()[0].message, format!("I am {}", fork.id));
    fork.delete().await;
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_captured_from_the_moment_on_at_which_that_is_turned_on_and_no_longer_than_it_is() {
    let agent = Agent::with_machines().await;
    // A guest that tells what nobody asked for.
    agent.behave("output-unasked");
    let (sandbox, shown) = agent.create(create(&agent.import().await.id)).await;
    let (id, path) = (sandbox.id.clone(), format!("/sandboxes/{}", sandbox.id));
    assert_eq!(shown["capture_output"], false);

    let agent = agent.follow().await;
    let sandbox = agent.sandbox(id.as_str());
    assert!(sandbox.output().is_empty());
    let (status, on) = agent.ask("PATCH", &path, r#"{"capture_output": true}"#).await;
    assert!(status == 200 && on.contains(r#""capture_output":true"#), "{on}");
    assert!(sandbox.says("process output is captured from now on"));
    eventually(|| !sandbox.output().is_empty()).await;
    let count = sandbox.output().len();
    agent.ask("PATCH", &path, r#"{"capture_output": false}"#).await;
    assert!(sandbox.says("process output is not captured any more"));
    sandbox.ask("pause", json!({})).await;
    sandbox.ask("resume", json!({})).await;

    assert_eq!(sandbox.output().len(), count);
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_of_an_earlier_version_starts_and_the_log_says_what_it_does_not_do() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    agent.behave("old-init");
    let (without, _) = agent.create(create(&template)).await;
    let mut request = create(&template);
    request["capture_output"] = json!(true);

    let (sandbox, shown) = agent.create(request).await;

    assert_eq!((&shown["state"], &shown["capture_output"]), (&json!("ready"), &json!(true)));
    assert!(sandbox.says("process output is not captured: the guest's init is of an earlier version"));
    assert!(!without.says("process output"));
    sandbox.delete().await;
    without.delete().await;
    agent.end().await;
}
