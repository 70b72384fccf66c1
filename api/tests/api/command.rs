//! The real process: keys from the command line, requests over TCP, the end by a signal.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use sandpiper_db::testing::TestDatabase;
use sandpiper_protocol::agent::SandboxState;
use serde_json::Value;

use crate::support::agent::StubAgent;
use crate::support::eventually;

fn api() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sandpiper-api"))
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    api().args(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Killed if a test fails before it ended by itself.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// Where `GET /metrics` is.
    pub(crate) metrics: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when the process has ended, which is the aim.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(crate) fn start(config: &Path) -> Self {
        Self::with_arguments(config, &[])
    }

    pub(crate) fn with_arguments(config: &Path, arguments: &[&str]) -> Self {
        let mut command = api();
        command.args(["serve", "--config"]).arg(config).args(arguments).env("NO_COLOR", "1");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut after = |mark| log.find_map(|line| Some(line.unwrap().split_once(mark)?.1.trim().to_owned()));
        let metrics = after("metrics=").expect("the address of the metrics in the log");
        let address = after("address=").expect("the address in the log");
        // Read on, so that the process never waits for room to log.
        std::thread::spawn(move || log.for_each(drop));
        Self { child, address, metrics }
    }

    /// Ends it as an operator does.
    pub(crate) fn end(mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn get(&self, path: &str, key: &str) -> String {
        self.send("GET", path, key, "")
    }

    pub(crate) fn send(&self, method: &str, path: &str, key: &str, body: &str) -> String {
        send(&self.address, method, path, &format!("Authorization: Bearer {key}\r\n"), body).unwrap()
    }
}

/// The answer to a request with these header lines.
pub(crate) fn send(address: &str, method: &str, path: &str, headers: &str, body: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The JSON of an answer.
pub(crate) fn json(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// For a server on a free port, with its state beside the configuration.
pub(crate) fn write_config(path: &Path, agent_socket: &Path, database: &TestDatabase) {
    let (state, location) = (path.with_file_name("state"), &database.location);
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {state:?}\nagent_socket = {agent_socket:?}\ndatabase = {location:?}\n"
    );
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn a_key_from_the_command_line_opens_the_server_until_it_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("api.toml");
    let database = TestDatabase::new().await;
    write_config(&config, &folder.path().join("agent.sock"), &database);
    let config_path = config.to_str().unwrap();

    let plain = stdout(&run(&["key", "create", "--config", config_path, "--team", "acme", "--capability", "read"]));
    let plain = plain.trim();
    assert!(plain.starts_with("spk_") && plain.len() == 44, "{plain}");
    let server = Server::start(&config);
    // Beside the running server.
    let arguments = [
        "key",
        "create",
        "--config",
        config_path,
        "--team",
        "beta",
        "--plan",
        "pro",
        "--capability",
        "write",
        "--json",
    ];
    let made: Value = serde_json::from_str(&stdout(&run(&arguments))).unwrap();
    assert_eq!((&made["team"], &made["plan"]), (&Value::from("beta"), &Value::from("pro")));

    assert!(server.get("/v1/sandbox_limits", plain).starts_with("HTTP/1.1 200"));
    assert!(server.get("/v1/sandbox_limits", made["key"].as_str().unwrap()).contains("\"plan\":\"pro\""));
    let id = made["id"].as_str().unwrap();
    stdout(&run(&["key", "revoke", "--config", config_path, id]));
    let audit = stdout(&run(&["audit", "--config", config_path, "--resource", id]));
    let actions: Vec<_> = audit.lines().map(|line| line.split("sandpiper-api ").nth(1).unwrap_or(line)).collect();
    assert!(actions[0].starts_with("key revoke") && actions[1].starts_with("key create"), "{audit}");
    assert!(server.get("/v1/sandbox_limits", made["key"].as_str().unwrap()).starts_with("HTTP/1.1 401"));
    let listed = stdout(&run(&["key", "ls", "--config", config_path, "--json"]));
    assert!(!listed.contains("spk_"));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert!(listed["keys"][1]["revoked_at"].is_string());

    server.end();
}

#[tokio::test]
async fn a_policy_that_was_recorded_before_a_kill_is_applied_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
    let database = TestDatabase::new().await;
    write_config(&config, &socket, &database);
    let config_path = config.to_str().unwrap();
    let key = stdout(&run(&["key", "create", "--config", config_path, "--team", "acme", "--capability", "write"]));
    let key = key.trim();
    let mut agent = StubAgent::start(&socket);
    let mut server = Server::start(&config);
    let created = json(&server.send("POST", "/v1/sandboxes", key, r#"{"template": "base"}"#));
    let id = created["id"].as_str().unwrap();
    agent.stop();
    let path = format!("/v1/sandboxes/{id}/network");
    let answer = json(&server.send("PUT", &path, key, r#"{"allow_internet_access": false}"#));
    assert_eq!(answer["apply_status"], "pending");

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    agent.resume();
    let server = Server::start(&config);

    eventually("the policy is applied", async || !agent.network(id).policy.allow_internet_access).await;
    let shown = || json(&server.get(&format!("/v1/sandboxes/{id}"), key))["network"]["apply_status"].take();
    eventually("it is shown", async || shown() == "applied").await;
}

#[tokio::test]
async fn a_team_that_is_disabled_while_nobody_serves_is_stopped_by_the_next_process_until_it_is_enabled() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
    let database = TestDatabase::new().await;
    write_config(&config, &socket, &database);
    let config_path = config.to_str().unwrap();
    let key = stdout(&run(&["key", "create", "--config", config_path, "--team", "acme", "--capability", "write"]));
    let key = key.trim();
    let agent = StubAgent::start(&socket);
    let mut server = Server::start(&config);
    let created = json(&server.send("POST", "/v1/sandboxes", key, r#"{"template": "base"}"#));
    let id = created["id"].as_str().unwrap();
    let path = format!("/v1/sandboxes/{id}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let why = "The invoice of May is not paid";
    stdout(&run(&["team", "disable", "--config", config_path, "acme", "--reason", why]));
    assert!(!run(&["team", "disable", "--config", config_path, "acme", "--reason", " "]).status.success());
    assert!(!run(&["team", "disable", "--config", config_path, "nobodys", "--reason", why]).status.success());
    let listed: Value =
        serde_json::from_str(&stdout(&run(&["team", "ls", "--config", config_path, "--json"]))).unwrap();
    assert_eq!(listed["teams"][0]["disabled"]["reason"], why);
    let server = Server::start(&config);

    let refused = server.get(&path, key);
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains(why), "{refused}");
    let state = || agent.records().sandboxes[id].state;
    eventually("it is paused", async || state() == SandboxState::Stopped).await;
    stdout(&run(&["team", "enable", "--config", config_path, "acme"]));
    assert_eq!(json(&server.get(&path, key))["state"], "stopped");
    let audit = stdout(&run(&["audit", "--config", config_path, "--resource", "acme"]));
    assert!(audit.contains("sandpiper-api team enable") && audit.contains("sandpiper-api team disable"), "{audit}");
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("api.toml");
    std::fs::write(&config, format!("state_dir = {:?}\n", folder.path().join("state"))).unwrap();
    let config = config.to_str().unwrap();
    for (arguments, explanation) in [
        (vec!["key", "create", "--config", config, "--team", "No Good", "--capability", "read"], "slug"),
        (vec!["key", "revoke", "--config", config, "key0"], "key ls"),
        (vec!["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ] {
        let output = run(&arguments);
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(explanation), "{text}");
    }
}

#[test]
fn a_database_that_cannot_be_used_is_named_without_its_password() {
    for (database, explanation) in [
        ("mysql://sp:geheim@127.0.0.1/sp", "unknown scheme \"mysql\""),
        ("postgres://sp:geheim@127.0.0.1:1/sp", "postgres://sp@127.0.0.1:1/sp"),
        ("postgres://sp:geheim@127.0.0.1/sp?sslmod=verify-full", "unknown parameter \"sslmod\""),
    ] {
        let output = api().args(["key", "ls"]).env("SANDPIPER_DATABASE_URL", database).output().unwrap();

        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(explanation) && !text.contains("geheim"), "{text}");
    }
}
