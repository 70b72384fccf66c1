//! The real process with its real limit: 30 seconds of the real clock, whatever a receiver does to make them more.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::testing::TestDatabase;
use sandpiper_payments::domain::order::Status;
use serde_json::{Value, json};

use super::name_server::{NameServer, a};
use super::receiver::{Reaction, Received, Receiver};
use super::server::{Server, operator_key, write_config};
use super::stage::order;
use crate::support::eventually_within;

/// Far less than any time-out between two bytes would be.
const PAUSE: Duration = Duration::from_secs(1);
/// The limit, the delay before the second attempt, and time for a busy machine.
const SECOND_ATTEMPT: Duration = Duration::from_secs(120);
/// How long an attempt takes that is ended by the limit, on a busy machine too. Without it, the answers here take a day.
const LIMITED_MS: std::ops::Range<u64> = 30_000..45_000;

#[tokio::test]
async fn a_head_that_drips_for_ever_costs_thirty_seconds_and_a_body_costs_nothing() {
    let receiver = Receiver::scripted(|request, _| match request.head.starts_with("POST /head ") {
        true => Reaction::Drip(b"HTTP/1.1 200 OK\r\nx: ".to_vec(), PAUSE),
        false => Reaction::Drip(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n".to_vec(), PAUSE),
    })
    .await;
    let names = NameServer::knowing(vec![a("merchant.example.test", "127.0.0.1")]).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let mut file = OpenOptions::new().append(true).open(&config).unwrap();
    writeln!(file, "resolvers = [\"{}\"]", names.address).unwrap();
    let operator = operator_key(&config);
    let server = Server::start(&config, "info").await;
    let mut deliveries = Vec::new();
    for part in ["head", "body"] {
        let url = format!("https://merchant.example.test:{}/{part}", receiver.address.port());
        let (merchant, _) = server.merchant(&operator, part, &url).await;
        let reported = server.report(&operator, &merchant, &order(part, Status::Completed, 1)).await;
        deliveries.push(reported["deliveryId"].as_str().unwrap().to_owned());
    }

    eventually_within(SECOND_ATTEMPT, "the second attempt of one of them", async || receiver.count() == 3).await;

    let dripping_head = server.delivery(&operator, &deliveries[0]).await;
    let first = &dripping_head["attempts"][0];
    assert_eq!(first["errorClass"], "timeout", "{dripping_head}");
    assert!(LIMITED_MS.contains(&first["durationMs"].as_u64().unwrap()), "{dripping_head}");
    let delay = time(&first["nextAt"]).duration_since(ended_at(first));
    assert!(delay >= SignedDuration::from_secs(10) && delay < SignedDuration::from_secs(12), "{dripping_head}");
    assert_eq!(dripping_head["delivery"]["attempts"], 2);
    assert_eq!(receiver.received().iter().filter(|request| is_of(request, &deliveries[0])).count(), 2);

    let dripping_body = server.delivery(&operator, &deliveries[1]).await;
    assert_eq!(dripping_body["delivery"]["state"], "delivered", "{dripping_body}");
    assert_eq!(dripping_body["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(dripping_body["attempts"][0]["status"], 200);
    assert!(dripping_body["attempts"][0]["durationMs"].as_u64().unwrap() < LIMITED_MS.start, "{dripping_body}");
}

fn is_of(request: &Received, delivery: &str) -> bool {
    request.key() == delivery
}

fn time(text: &Value) -> Timestamp {
    text.as_str().unwrap().parse().unwrap()
}

fn ended_at(attempt: &Value) -> Timestamp {
    time(&attempt["startedAt"]) + Duration::from_millis(attempt["durationMs"].as_u64().unwrap())
}

impl Server {
    /// A delivery with all that is known of it.
    async fn delivery(&self, operator: &str, id: &str) -> Value {
        self.send("GET", &format!("/operator/v1/deliveries/{id}"), operator, &json!({})).await
    }
}
