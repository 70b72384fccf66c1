//! The real process, killed again and again while things happen and webhooks are sent: each event arrives, under one key.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use sandpiper_db::testing::TestDatabase;
use sandpiper_webhook::SigningKey;
use serde_json::Value;
use tokio::time::sleep;

use crate::accounts::PASSWORD;
use crate::command::{Server, json, run, send, stdout, write_config};
use crate::support::agent::StubAgent;
use crate::support::eventually_within;
use crate::webhooks::receiver::Receiver;

/// Lives of the process that end in SIGKILL.
const KILLS: usize = 12;
/// A life ends within so many milliseconds.
const LONGEST_LIFE: u64 = 400;
/// A lease, after which the attempts of a dead process are made again, and time to make them on a busy machine.
const ARRIVAL: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_arrives_whenever_the_process_is_killed() {
    let receiver = Receiver::answering(200).await;
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("api.toml"), folder.path().join("agent.sock"));
    let database = TestDatabase::new().await;
    write_config(&config, &socket, &database);
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, &receiver.pem).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&config).unwrap();
    writeln!(file, "\n[team_webhooks]\nallow_addresses = [\"127.0.0.0/8\"]\nca_file = {ca:?}").unwrap();
    // It is asked for all events again and again.
    writeln!(file, "[rate_limit]\nper_second = 100000\nburst = 100000").unwrap();
    let _agent = StubAgent::start(&socket);
    let path = config.to_str().unwrap().to_owned();
    let key = stdout(&run(&["key", "create", "--config", &path, "--team", "acme", "--capability", "write"]));
    let key = format!("Authorization: Bearer {}\r\n", key.trim());
    let invitation = stdout(&run(&["team", "invite", "--config", &path, "acme", "--role", "admin"]));

    let mut server = Server::start(&config);
    let accept = serde_json::json!({"token": invitation.trim(), "email": "ada@example.com", "name": "Ada", "password": PASSWORD});
    let accepted = send(&server.address, "POST", "/v1/invitations/accept", "", &accept.to_string()).unwrap();
    let admin = json(&accepted)["session"]["token"].as_str().unwrap().to_owned();
    let admin = format!("Authorization: Bearer {admin}\r\nSandpiper-Team: acme\r\n");
    let url = serde_json::json!({"url": receiver.url()}).to_string();
    let webhook = json(&send(&server.address, "POST", "/v1/webhooks", &admin, &url).unwrap());

    for life in 0..KILLS {
        let (address, key) = (server.address.clone(), key.clone());
        let client = tokio::task::spawn_blocking(move || make_volumes(life, &address, &key));
        sleep(Duration::from_millis(rand::random_range(0..LONGEST_LIFE))).await;
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        client.await.unwrap();
        server = Server::start(&config);
    }
    let (address, last) = (server.address.clone(), key.clone());
    tokio::task::spawn_blocking(move || make_volumes(KILLS, &address, &last)).await.unwrap();

    // What the killed had begun is settled, and told of, meanwhile.
    let all_arrived = async || arrived(&receiver).keys().eq(events(&server.address, &key).keys());
    eventually_within(ARRIVAL, "every event arrives, and nothing else", all_arrived).await;
    let (arrived, events) = (arrived(&receiver), events(&server.address, &key));
    assert!(events.len() > KILLS, "{}", events.len());
    let secret = SigningKey::from_secret(webhook["secret"].as_str().unwrap()).unwrap();
    for request in receiver.received() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let sequence = body["sequence"].as_u64().unwrap();
        assert_eq!(body, events[&sequence]);
        assert_eq!(request.key(), arrived[&sequence], "one event has one key");
        let (headers, now) = (request.headers("x-webhook-signature"), jiff::Timestamp::now().as_second());
        assert_eq!(sandpiper_webhook::verify(&secret, headers, &request.body, now, 600), Ok(()));
    }
}

/// Makes volumes, and deletes them, until the process does not answer or ten are done.
fn make_volumes(life: usize, address: &str, key: &str) {
    for number in 0..10 {
        let order = serde_json::json!({"name": format!("models-{life}-{number}")}).to_string();
        let Ok(made) = send(address, "POST", "/v1/volumes", key, &order) else { return };
        if !made.starts_with("HTTP/1.1 201") {
            return;
        }
        // Killed while it was responding.
        let Some(id) = json(&made)["id"].as_str().map(str::to_owned) else { return };
        let path = format!("/v1/volumes/{id}");
        if send(address, "DELETE", &path, key, "").is_err() {
            return;
        }
    }
}

/// The team's events by their numbers.
fn events(address: &str, key: &str) -> BTreeMap<u64, Value> {
    let (mut all, mut after) = (BTreeMap::new(), 0);
    loop {
        let page = json(&send(address, "GET", &format!("/v1/events?limit=100&after={after}"), key, "").unwrap());
        for event in page["events"].as_array().unwrap() {
            all.insert(event["sequence"].as_u64().unwrap(), event.clone());
        }
        after = page["next_after"].as_u64().unwrap();
        if page["has_more"] == false {
            return all;
        }
    }
}

/// The key under which each event came first.
fn arrived(receiver: &Receiver) -> BTreeMap<u64, String> {
    let mut keys = BTreeMap::new();
    for request in receiver.received() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        keys.entry(body["sequence"].as_u64().unwrap()).or_insert_with(|| request.key());
    }
    keys
}
