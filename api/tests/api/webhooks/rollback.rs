//! A report whose transaction does not get to its end: neither the payment nor the webhook is left of it.

use sandpiper_payments::domain::order::Status;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::delivery_list::Filter;
use serde_json::Value;

use super::receiver::{Received, Receiver};
use super::server::report;
use super::stage::{Stage, order};
use crate::support::Answer;
use crate::support::shop::operator_key;

#[tokio::test]
async fn a_statement_after_the_webhook_that_fails_takes_the_webhook_with_it() {
    let no_room = Obstacle {
        sqlite: "CREATE TRIGGER obstacle BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no room'); END",
        postgres: "CREATE TRIGGER obstacle BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION refuse('no room')",
        table: "audit",
    };
    nothing_is_left_of_what_fails(no_room).await;
}

#[tokio::test]
async fn a_commit_that_fails_takes_the_webhook_with_it() {
    // What is not right is looked at in the commit only.
    let wrong_until_the_end = Obstacle {
        sqlite: "CREATE TABLE debts (merchant_id TEXT REFERENCES merchants (id) DEFERRABLE INITIALLY DEFERRED); \
                 CREATE TRIGGER obstacle AFTER INSERT ON webhook_deliveries \
                 BEGIN INSERT INTO debts VALUES ('nobody'); END",
        postgres: "CREATE TABLE debts (merchant_id TEXT REFERENCES merchants (id) DEFERRABLE INITIALLY DEFERRED); \
                   CREATE FUNCTION owe() RETURNS trigger LANGUAGE plpgsql \
                   AS 'BEGIN INSERT INTO debts VALUES (''nobody''); RETURN NEW; END'; \
                   CREATE TRIGGER obstacle AFTER INSERT ON webhook_deliveries FOR EACH ROW EXECUTE FUNCTION owe()",
        table: "webhook_deliveries",
    };
    nothing_is_left_of_what_fails(wrong_until_the_end).await;
}

/// Something in the database that lets no report through: a trigger `obstacle` on a table.
struct Obstacle {
    sqlite: &'static str,
    postgres: &'static str,
    table: &'static str,
}

async fn nothing_is_left_of_what_fails(obstacle: Obstacle) {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let operator = operator_key(&stage.host).await;
    let worker = stage.worker(&receiver);
    stage.host.alter(obstacle.sqlite, obstacle.postgres).await;

    put(&stage, &operator).await.denied(500, "INTERNAL", "INTERNAL");

    let store = &stage.host.payments.store;
    assert!(store.payments.get("pay_1").await.unwrap().is_none());
    assert!(store.deliveries.list(&Filter::default(), None, 10).await.unwrap().is_empty());
    assert_eq!(store.webhook_endpoints.next_due().await.unwrap(), None);
    assert_eq!(worker.round().await.unwrap(), 0);
    assert_eq!(receiver.connections(), 0);

    let removal = format!("DROP TRIGGER obstacle ON {}", obstacle.table);
    stage.host.alter("DROP TRIGGER obstacle", &removal).await;
    let accepted: Value = put(&stage, &operator).await.expect(201);
    assert_eq!(worker.round().await.unwrap(), 1);
    let keys: Vec<_> = receiver.received().iter().map(Received::key).collect();
    assert_eq!(keys, [accepted["deliveryId"].as_str().unwrap()]);
    assert!(store.payments.document(&stage.merchant_id.as_str().into(), Realm::Live, "pay_1").await.unwrap().is_some());
}

/// The same report every time.
async fn put(stage: &Stage, operator: &str) -> Answer {
    let (path, body) = report(&stage.merchant_id, &order("pay_1", Status::Completed, 1));
    stage.host.call("PUT", &path, operator, Some(body)).await
}
