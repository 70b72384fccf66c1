//! Several real processes on one database, with one agent.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use sandpiper_db::testing::TestDatabase;
use sandpiper_protocol::agent::SandboxState;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::command::{Server, json, run, send, stdout, write_config};
use crate::support::agent::StubAgent;
use crate::support::{eventually, eventually_within};

/// What the processes share.
struct Site {
    config: PathBuf,
    agent: StubAgent,
    key: String,
    key_id: String,
    _database: TestDatabase,
    _folder: TempDir,
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
        let database = TestDatabase::new().await;
        write_config(&config, &socket, &database);
        let agent = StubAgent::start(&socket);
        let made = on(&config, &["key", "create", "--team", "acme", "--capability", "write", "--json"]);
        let made: Value = serde_json::from_str(&stdout(&made)).unwrap();
        let (key, key_id) = (made["key"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned());
        Self { config, agent, key, key_id, _database: database, _folder: folder }
    }

    /// `None` on SQLite, which one process serves.
    async fn for_several(test: &str) -> Option<Self> {
        if std::env::var_os("SANDPIPER_TEST_POSTGRES").is_some() {
            return Some(Self::new().await);
        }
        sandpiper_skip::skipped(test, "one process serves SQLite; the run on PostgreSQL has it");
        None
    }

    /// A process that has its templates.
    async fn server(&self) -> Server {
        let server = Server::start(&self.config);
        eventually("the templates are known", async || server.get("/v1/templates", &self.key).contains("base")).await;
        server
    }

    /// The id of a new sandbox.
    fn sandbox(&self, server: &Server) -> String {
        id(&server.send("POST", "/v1/sandboxes", &self.key, BASE))
    }

    /// The answer to a create request with this `Idempotency-Key`; none where the process dies at it.
    fn create(&self, server: &Server, idempotency_key: &str) -> JoinHandle<Option<String>> {
        let headers = format!("Authorization: Bearer {}\r\nIdempotency-Key: {idempotency_key}\r\n", self.key);
        let address = server.address.clone();
        tokio::task::spawn_blocking(move || send(&address, "POST", "/v1/sandboxes", &headers, BASE).ok())
    }

    async fn created(&self, server: &Server, idempotency_key: &str) -> String {
        self.create(server, idempotency_key).await.unwrap().unwrap()
    }

    /// Resumes a sandbox, on another thread.
    fn resume(&self, server: &Server, id: &str) -> JoinHandle<String> {
        let headers = format!("Authorization: Bearer {}\r\n", self.key);
        let (address, path) = (server.address.clone(), format!("/v1/sandboxes/{id}/resume"));
        tokio::task::spawn_blocking(move || send(&address, "POST", &path, &headers, "").unwrap())
    }

    fn state(&self, server: &Server, id: &str) -> Value {
        json(&server.get(&format!("/v1/sandboxes/{id}"), &self.key))["state"].take()
    }

    /// Returns when `server` has synchronised twice with the agent, seen by what it lists of a sandbox nobody is at work on.
    async fn two_rounds(&self, server: &Server, idle: &str) {
        for state in [SandboxState::Stopped, SandboxState::Ready] {
            self.agent.turn(idle, state);
            let listed = || json(&server.get("/v1/sandboxes", &self.key));
            let expected = if state == SandboxState::Ready { "ready" } else { "stopped" };
            eventually("a round of synchronisation", async || {
                let list = listed();
                let mut sandboxes = list["sandboxes"].as_array().unwrap().iter();
                sandboxes.any(|one| one["id"] == idle && one["state"] == expected)
            })
            .await;
        }
    }
}

const BASE: &str = r#"{"template": "base"}"#;

/// A command with this configuration.
fn on(config: &Path, arguments: &[&str]) -> Output {
    run(&[arguments, &["--config", config.to_str().unwrap()]].concat())
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

#[track_caller]
fn id(answer: &str) -> String {
    assert_eq!(status(answer), "201", "{answer}");
    json(answer)["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn creates_with_one_key_at_two_processes_make_one_sandbox() {
    let Some(site) = Site::for_several("creates with one key at two processes").await else { return };
    let servers = [site.server().await, site.server().await];

    let requests: Vec<_> = servers.iter().cycle().take(16).map(|server| site.create(server, "once")).collect();
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.unwrap().unwrap());
    }

    let (made, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| status(answer) == "201");
    assert!(refused.iter().all(|answer| status(answer) == "409" && answer.contains("idempotency_in_progress")));
    let made: Vec<_> = made.into_iter().map(|answer| id(answer)).collect();
    assert!(!made.is_empty() && made.iter().all(|id| *id == made[0]), "{answers:?}");
    assert_eq!(site.agent.records().orders.len(), 1);
    for server in &servers {
        assert_eq!(id(&site.created(server, "once").await), made[0]);
        assert_eq!(json(&server.get("/v1/sandboxes", &site.key))["sandboxes"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn what_one_process_is_at_work_on_another_leaves_alone() {
    let Some(site) = Site::for_several("what one process is at work on").await else { return };
    let one = site.server().await;
    let (idle, paused) = (site.sandbox(&one), site.sandbox(&one));
    one.send("POST", &format!("/v1/sandboxes/{paused}/pause"), &site.key, "");
    site.agent.hold();
    let (created, resumed) = (site.create(&one, "k"), site.resume(&one, &paused));
    eventually("the order arrives", async || site.agent.records().orders.len() == 3).await;
    eventually("the resume begins", async || site.state(&one, &paused) == "restoring").await;
    let made = site.agent.records().orders[2].id.to_string();

    // It starts while the first is at work.
    let other = site.server().await;
    site.two_rounds(&other, &idle).await;

    for server in [&one, &other] {
        assert_eq!(site.state(server, &made), "creating");
        assert_eq!(site.state(server, &paused), "restoring");
    }
    assert_eq!(status(&site.created(&other, "k").await), "409", "the lease is of a process that lives");
    site.agent.admit(2);
    assert_eq!(id(&created.await.unwrap().unwrap()), made);
    assert_eq!(status(&resumed.await.unwrap()), "200");
    for id in [&made, &paused] {
        assert_eq!(site.state(&other, id), "ready");
    }
    assert_eq!(id(&site.created(&other, "k").await), made);
}

#[tokio::test]
async fn a_killed_process_leaves_its_requests_to_the_others() {
    let Some(site) = Site::for_several("a killed process's requests").await else { return };
    let (mut one, other) = (site.server().await, site.server().await);
    site.agent.hold();
    let lost = site.create(&one, "k");
    eventually("the order arrives", async || site.agent.records().orders.len() == 1).await;
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    assert!(lost.await.unwrap().is_none_or(|answer| answer.is_empty()));
    let made = site.agent.records().orders[0].id.to_string();
    assert_eq!(status(&site.created(&other, "k").await), "409", "nobody knows yet that it is dead");
    // The agent finishes what it was asked for.
    site.agent.insert(&made);

    let mut answer = String::new();
    eventually_within(Duration::from_secs(60), "its lease ends", async || {
        answer = site.created(&other, "k").await;
        status(&answer) == "201"
    })
    .await;

    assert_eq!(id(&answer), made);
    assert_eq!(site.state(&other, &made), "ready");
    assert_eq!(site.agent.records().orders.len(), 1);
}

#[tokio::test]
async fn a_revoked_key_is_refused_by_every_process_at_once() {
    let Some(site) = Site::for_several("a revoked key at every process").await else { return };
    let servers = [site.server().await, site.server().await];

    stdout(&on(&site.config, &["key", "revoke", &site.key_id]));

    for server in &servers {
        assert_eq!(status(&server.get("/v1/templates", &site.key)), "401");
    }
}

#[tokio::test]
async fn processes_with_different_agents_do_not_serve_one_database() {
    let Some(site) = Site::for_several("processes with different agents").await else { return };
    let _one = site.server().await;
    let text = std::fs::read_to_string(&site.config).unwrap().replace("agent.sock", "other.sock");
    let other = site.config.with_file_name("other.toml");
    std::fs::write(&other, text).unwrap();
    let _agent = StubAgent::start(&other.with_file_name("other.sock"));

    let refused = on(&other, &["serve"]);

    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("with another agent"), "{refused:?}");
}

#[test]
fn a_file_of_sqlite_has_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("api.toml");
    let state = folder.path().join("state");
    std::fs::write(&config, format!("listen = \"127.0.0.1:0\"\nstate_dir = {state:?}\n")).unwrap();
    let mut one = Server::start(&config);

    let refused = on(&config, &["serve"]);

    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("sandpiper.db") && text.contains("use PostgreSQL"), "{text}");
    stdout(&on(&config, &["key", "ls"]));
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    Server::start(&config);
}
