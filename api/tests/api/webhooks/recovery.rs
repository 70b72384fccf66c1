//! Processes that die, and processes that share a database.

use std::collections::HashSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::Database;
use sandpiper_db::secrets::Vault;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::state::App;
use sandpiper_payments::store::Store;
use sandpiper_payments::store::deliveries::State;
use sandpiper_payments::store::delivery_claims::{Decision, Finished, LEASE};

use super::receiver::{Received, Receiver};
use super::stage::{Stage, dependencies};
use crate::support::{eventually, eventually_within};

#[tokio::test]
async fn an_attempt_whose_process_died_is_made_again_after_its_lease_under_the_same_key() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let due_at = stage.delivery(&delivery).await.next_at;
    let claims = stage.host.payments.store.delivery_claims.claim(10, stage.now()).await.unwrap();
    assert_eq!(claims.deliveries.len(), 1);
    // The process dies here: before, during or after the request, nobody knows.

    let worker = stage.worker(&receiver);
    assert_eq!(worker.round().await.unwrap(), 0, "the lease holds");
    stage.host.pass(LEASE);
    assert_eq!(worker.round().await.unwrap(), 1);

    assert_eq!(receiver.received()[0].key(), delivery.as_str());
    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
    let attempts = stage.attempts(&delivery).await;
    assert_eq!(attempts[0].error_class.unwrap().as_str(), "interrupted");
    assert_eq!((attempts[1].number, attempts[1].status), (2, Some(200)));
    assert!(attempts.iter().all(|attempt| Some(attempt.due_at) == due_at), "due times are kept");
}

#[tokio::test]
async fn a_result_that_comes_after_the_lease_changes_the_log_and_nothing_else() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let store = &stage.host.payments.store;
    let slow = store.delivery_claims.claim(1, stage.now()).await.unwrap().deliveries.remove(0);
    stage.host.pass(LEASE);
    stage.worker(&receiver).round().await.unwrap();

    let late = Finished {
        claimed: slow,
        ended_at: stage.now(),
        duration: std::time::Duration::from_secs(70),
        signed_at: Some(1),
        result: Ok(404),
        detail: String::new(),
        decision: Decision::End(State::Failed),
    };
    store.delivery_claims.finish(vec![late], 128).await.unwrap();

    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
    let statuses: Vec<_> = stage.attempts(&delivery).await.iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [Some(404), Some(200)]);
}

#[tokio::test]
async fn a_hundredth_attempt_whose_process_died_is_the_last() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    for _ in 0..100 {
        stage.pass_to_next().await;
        assert_eq!(stage.host.payments.store.delivery_claims.claim(1, stage.now()).await.unwrap().deliveries.len(), 1);
        stage.host.pass(LEASE);
        stage.host.payments.store.delivery_claims.reclaim(stage.now()).await.unwrap();
    }
    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.attempts), (State::Exhausted, 100));
    assert_eq!(stage.worker(&receiver).round().await.unwrap(), 0);
}

#[tokio::test]
async fn what_a_dead_process_had_begun_keeps_nothing_else_waiting() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    for number in 0..4 {
        stage.pay(&format!("pay_{number}")).await;
    }
    let store = &stage.host.payments.store;
    assert_eq!(store.delivery_claims.claim(4, stage.now()).await.unwrap().deliveries.len(), 4);
    store.webhook_endpoints.begin_small(128).await.unwrap();

    let delivery = stage.pay("pay_new").await;
    stage.worker(&receiver).round().await.unwrap();

    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
}

#[tokio::test]
async fn what_is_overdue_after_a_restart_keeps_its_due_time_and_begins_a_few_at_a_time() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let mut deliveries = Vec::new();
    for number in 0..60 {
        deliveries.push(stage.pay(&format!("pay_{number}")).await);
    }
    let mut due = Vec::new();
    for delivery in &deliveries {
        due.push(stage.delivery(delivery).await.next_at.unwrap());
    }
    let claims = &stage.host.payments.store.delivery_claims;
    let first = claims.claim(60, stage.now()).await.unwrap().deliveries;
    assert_eq!(first.len(), 4, "as many as an endpoint may have that has proved nothing");
    assert!(claims.claim(60, stage.now()).await.unwrap().deliveries.is_empty());
    stage.host.pass(SignedDuration::from_hours(5));

    stage.worker(&receiver).round().await.unwrap();

    assert_eq!(receiver.received().iter().map(Received::key).collect::<HashSet<_>>().len(), 60);
    for (delivery, due) in deliveries.iter().zip(due) {
        assert!(stage.attempts(delivery).await.iter().all(|attempt| attempt.due_at == due));
    }
    // It has proved itself; after the next start it has to again.
    stage.host.payments.store.webhook_endpoints.begin_small(128).await.unwrap();
    for number in 60..70 {
        stage.pay(&format!("pay_{number}")).await;
    }
    assert_eq!(claims.claim(60, stage.now()).await.unwrap().deliveries.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_on_one_database_make_every_attempt_once() {
    const DELIVERIES: usize = 300;
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let (app, config) = (&stage.host.payments, &stage.host.config);
    let other_store = Store::new(Database::open(&config.database()).await.unwrap());
    let other_vault = Vault::open(&config.secrets_key_file()).unwrap();
    let other = App::new(config.payments(), other_store, other_vault, app.clock.clone());
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    for app in [app.clone(), other] {
        tokio::spawn(Worker::new(app.webhooks.clone(), dependencies(&[&receiver])).run(stopped.clone()));
    }
    let mut expected = HashSet::new();
    for number in 0..DELIVERIES {
        expected.insert(stage.pay(&format!("pay_{number}")).await.to_string());
    }

    eventually("everything is delivered", async || {
        stage.host.payments.store.webhook_endpoints.loads().await.unwrap().is_empty()
    })
    .await;

    let keys: Vec<_> = receiver.received().iter().map(Received::key).collect();
    assert_eq!(keys.len(), DELIVERIES);
    assert_eq!(keys.into_iter().collect::<HashSet<_>>(), expected);
}

#[tokio::test]
async fn a_worker_that_is_told_of_news_sends_what_another_process_has_written_and_asks_when_nobody_tells() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let config = &stage.host.config;
    let store = Store::new(Database::open(&config.database()).await.unwrap());
    let vault = Vault::open(&config.secrets_key_file()).unwrap();
    let other = App::new(config.payments(), store, vault, stage.host.payments.clock.clone());
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let (tells, news) = tokio::sync::watch::channel(());
    let worker = Worker::new(other.webhooks.clone(), dependencies(&[&receiver])).with_news(Some(news));
    stage.pay("before").await;
    tokio::spawn(worker.run(stopped));
    eventually("what was there is sent", async || receiver.count() == 1).await;

    stage.pay("told").await;
    tells.send_replace(());
    // By itself it would look after ten.
    eventually_within(Duration::from_secs(8), "it is sent", async || receiver.count() == 2).await;

    drop(tells);
    stage.pay("untold").await;
    eventually("it is found", async || receiver.count() == 3).await;
}

#[tokio::test]
async fn a_test_delivery_is_one_of_its_own_every_time() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let secret = stage.rotate(Realm::Live).await;
    let send = async || {
        let body = serde_json::json!({"realm": "live"});
        stage.host.call("POST", "/merchant/api/v1/webhookConfig/test", &secret, Some(body)).await.expect(202)
    };
    let (one, two) = (send().await, send().await);
    stage.worker(&receiver).round().await.unwrap();
    assert_ne!(one["deliveryId"], two["deliveryId"]);
    let keys: HashSet<_> = receiver.received().iter().map(Received::key).collect();
    assert_eq!(keys, [&one, &two].map(|sent| sent["deliveryId"].as_str().unwrap().to_owned()).into());
    let body: serde_json::Value = serde_json::from_slice(&receiver.received()[0].body).unwrap();
    assert_eq!((&body["id"], &body["status"]), (&"test event".into(), &"PENDING".into()));
    assert!(body.get("amount").is_none() && body.get("actualAmount").is_none(), "{body}");
    for time in ["createdAt", "updatedAt"] {
        let time: Timestamp = body[time].as_str().unwrap().parse().unwrap();
        assert_eq!(time.subsec_nanosecond() % 1_000_000, 0, "{time}");
    }
}
