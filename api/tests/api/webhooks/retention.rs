//! How long deliveries are kept that are over.

use jiff::SignedDuration;
use sandpiper_delivery::store::retention::AT_ONCE;
use sandpiper_payments::delivery::retention::Retention;
use sandpiper_payments::domain::order::Status;
use sandpiper_payments::domain::realm::Realm;

use super::receiver::{Reaction, Receiver};
use super::stage::{Stage, order};

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Deletes what is old now; how many deliveries that were.
async fn delete(stage: &Stage) -> usize {
    Retention::new(stage.host.payments.webhooks.clone()).round().await.unwrap()
}

#[tokio::test]
async fn what_ended_is_deleted_with_its_attempts_after_ninety_days_and_not_before() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let deliveries = [stage.pay("pay_1").await, stage.pay("pay_2").await];
    stage.worker(&receiver).round().await.unwrap();

    stage.host.pass(89 * DAY);
    assert_eq!(delete(&stage).await, 0);
    assert_eq!(stage.attempts(&deliveries[0]).await.len(), 1);

    stage.host.pass(DAY);
    assert_eq!(delete(&stage).await, 2);
    for delivery in &deliveries {
        assert!(stage.host.payments.store.deliveries.get(delivery.as_str()).await.unwrap().is_none());
        assert!(stage.attempts(delivery).await.is_empty());
    }
    let again = stage.update(Realm::Live, &order("pay_1", Status::Completed, 1)).await;
    assert_eq!(again, None, "the payment knows the update although its delivery is gone");
}

#[tokio::test]
async fn what_is_not_over_is_kept_however_old_it_is() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let (waiting, under_way) = (stage.pay("pay_1").await, stage.pay("pay_2").await);
    stage.worker(&receiver).round().await.unwrap();
    stage.pass_to_next().await;
    let claims = stage.host.payments.store.delivery_claims.claim(1, stage.now()).await.unwrap();
    assert_eq!(claims.deliveries.len(), 1);

    stage.host.pass(1000 * DAY);

    assert_eq!(delete(&stage).await, 0);
    assert_eq!(stage.attempts(&waiting).await.len() + stage.attempts(&under_way).await.len(), 3);
}

#[tokio::test]
async fn an_original_is_kept_until_its_replays_are_deleted() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number == 0 { 400 } else { 200 })).await;
    let stage = Stage::towards(&receiver).await;
    let original = stage.pay("pay_1").await;
    stage.worker(&receiver).round().await.unwrap();
    let deliveries = &stage.host.payments.store.deliveries;

    stage.host.pass(91 * DAY);
    let replay = deliveries.replay(original.to_string(), stage.now()).await.unwrap();
    assert_eq!(delete(&stage).await, 0, "the replay is pending");
    stage.worker(&receiver).round().await.unwrap();
    stage.host.pass(89 * DAY);
    assert_eq!(delete(&stage).await, 0, "the replay is not old");
    assert_eq!(stage.delivery(&replay).await.replay_of, Some(original.clone()));

    stage.host.pass(2 * DAY);
    // The replay, and then the original, which nothing names any more.
    assert_eq!((delete(&stage).await, delete(&stage).await), (1, 1));
    assert!(deliveries.get(original.as_str()).await.unwrap().is_none());
}

#[tokio::test]
async fn more_than_a_transaction_holds_is_deleted_by_several() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    for number in 0..=AT_ONCE {
        stage.pay(&format!("pay_{number}")).await;
    }
    stage.configure(Realm::Live, None).await;
    stage.host.pass(91 * DAY);
    assert_eq!(delete(&stage).await, AT_ONCE + 1);
}
