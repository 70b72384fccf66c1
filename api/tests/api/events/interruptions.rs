//! What fails, is repeated, or loses its process in the middle: it is told of once, or not at all.

use std::time::Duration;

use sandpiper_db::testing::TestDatabase;
use sandpiper_protocol::agent::SandboxState;
use serde_json::json;
use tower::ServiceExt;

use super::{sequences, types};
use crate::command::{self, Server, run, send, stdout, write_config};
use crate::support::agent::StubAgent;
use crate::support::{Host, eventually, eventually_within, request, with_header};

#[tokio::test]
async fn a_request_that_is_repeated_is_told_of_once() {
    let host = Host::new().await;
    for _ in 0..3 {
        let create = request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"})));
        host.send(with_header(create, "idempotency-key", "once")).await.expect(201);
        let make = request("POST", "/v1/volumes", &host.write, Some(json!({"name": "models"})));
        host.send(with_header(make, "idempotency-key", "volume")).await.expect(201);
    }
    assert_eq!(types(&host.events().await), ["sandbox.created", "sandbox.ready", "volume.created"]);
}

#[tokio::test]
async fn of_what_was_refused_nothing_is_told() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    host.sandbox().await;
    host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded");
    host.create(json!({"template": "base", "cpu": 0})).await.refused(400, "invalid_request");
    assert_eq!(types(&host.events().await), ["sandbox.created", "sandbox.ready"]);
}

#[tokio::test]
async fn a_commit_that_fails_takes_the_event_with_it_and_gives_its_number_back() {
    let host = Host::new().await;
    let first = host.sandbox().await;
    // What is not right is looked at in the commit only: after the event was written.
    host.alter(
        "CREATE TABLE debts (team_id TEXT REFERENCES teams (id) DEFERRABLE INITIALLY DEFERRED); \
         CREATE TRIGGER obstacle AFTER INSERT ON events BEGIN INSERT INTO debts VALUES ('nobody'); END",
        "CREATE TABLE debts (team_id TEXT REFERENCES teams (id) DEFERRABLE INITIALLY DEFERRED); \
         CREATE FUNCTION owe() RETURNS trigger LANGUAGE plpgsql \
         AS 'BEGIN INSERT INTO debts VALUES (''nobody''); RETURN NEW; END'; \
         CREATE TRIGGER obstacle AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION owe()",
    )
    .await;
    host.create(json!({"template": "base"})).await.refused(500, "internal");
    let list = host.get("/v1/sandboxes").await.expect(200);
    assert_eq!(list["sandboxes"].as_array().unwrap().len(), 1, "neither sandbox nor event is left");
    // The agent had begun it meanwhile.
    eventually("nothing is left at the agent", async || {
        host.app.in_flight.is_empty() && host.agent.records().sandboxes.len() == 1
    })
    .await;
    assert_eq!(host.agent.records().orders.len(), 2);
    assert_eq!(host.events().await.len(), 2);

    host.alter("DROP TRIGGER obstacle", "DROP TRIGGER obstacle ON events").await;
    host.sandbox().await;

    let events = host.events().await;
    assert_eq!(sequences(&events), [1, 2, 3, 4]);
    assert_eq!(host.told_of(&first).await.len(), 2);
}

#[tokio::test]
async fn a_start_whose_process_died_is_told_of_once_by_the_next() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    for n in 0..2 {
        let order = request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"})));
        let lost = tokio::spawn(host.router().oneshot(order));
        eventually("the order arrives", async || host.agent.records().orders.len() == n + 1).await;
        lost.abort();
    }
    let (made, never) = {
        let records = host.agent.records();
        (records.orders[0].id.to_string(), records.orders[1].id.to_string())
    };
    let host = host.restart().await;
    host.agent.insert(&made);

    host.sync().await;
    host.sync().await;

    assert_eq!(host.told_of(&made).await, ["sandbox.created", "sandbox.ready"]);
    assert_eq!(host.told_of(&never).await, ["sandbox.created", "sandbox.deleted"]);
}

#[tokio::test]
async fn a_pause_whose_process_died_is_told_of_once_by_the_next() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.hold();
    let order = request("POST", &format!("/v1/sandboxes/{id}/pause"), &host.write, Some(json!({})));
    let lost = tokio::spawn(host.router().oneshot(order));
    eventually("it is stopping", async || {
        host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"] == "stopping"
    })
    .await;
    lost.abort();
    let host = host.restart().await;
    host.agent.turn(&id, SandboxState::Stopped);

    host.sync().await;
    host.sync().await;

    assert_eq!(host.told_of(&id).await, ["sandbox.created", "sandbox.ready", "sandbox.paused"]);
}

/// A real process, killed while the agent is at work.
#[tokio::test]
async fn a_kill_loses_no_event_and_doubles_none() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
    let database = TestDatabase::new().await;
    write_config(&config, &socket, &database);
    // The test asks again and again.
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text + "[rate_limit]\nper_second = 10000\nburst = 10000\n").unwrap();
    let agent = StubAgent::start(&socket);
    let arguments = ["key", "create", "--team", "acme", "--capability", "write"];
    let key = stdout(&run(&[&arguments[..], &["--config", config.to_str().unwrap()]].concat()));
    let key = key.trim().to_owned();
    let mut killed = Server::start(&config);
    eventually("the templates are known", async || killed.get("/v1/templates", &key).contains("base")).await;
    let headers = format!("Authorization: Bearer {key}\r\nContent-Type: application/json\r\n");
    let create = |address: &str| {
        let (address, headers) = (address.to_owned(), headers.clone());
        move || send(&address, "POST", "/v1/sandboxes", &headers, r#"{"template": "base"}"#)
    };
    create(&killed.address)().unwrap();
    agent.hold();
    let lost = tokio::task::spawn_blocking(create(&killed.address));
    eventually("the order arrives", async || agent.records().orders.len() == 2).await;
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    // Its connection breaks.
    drop(lost.await.unwrap());
    let made = agent.records().orders[1].id.to_string();
    agent.insert(&made);

    let server = Server::start(&config);
    let told = || {
        let answer = command::json(&server.get(&format!("/v1/events?resource={made}"), &key));
        types(answer["events"].as_array().unwrap())
    };
    // On PostgreSQL, where others may live, until the dead one is taken for dead.
    eventually_within(Duration::from_secs(60), "its start is told", async || told().len() == 2).await;

    assert_eq!(told(), ["sandbox.created", "sandbox.ready"]);
    let answer = command::json(&server.get("/v1/events", &key));
    assert_eq!(sequences(answer["events"].as_array().unwrap()), [1, 2, 3, 4]);
    server.end();
}
