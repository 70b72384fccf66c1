//! What a receiver gets.

use std::time::Duration;

use jiff::SignedDuration;
use sandpiper_payments::delivery::Dependencies;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::order::Status;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::{DeliveryId, State};
use serde_json::Value;

use super::receiver::{Reaction, Received, Receiver};
use super::stage::{Stage, dependencies, order};
use crate::support::eventually;

#[tokio::test]
async fn an_update_is_posted_once_signed_and_as_it_is_read() {
    let receiver = Receiver::answering(202).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;

    assert_eq!(stage.worker(&receiver).round().await.unwrap(), 1);

    let [request] = &receiver.received()[..] else { panic!("{:?}", receiver.received()) };
    assert!(request.head.starts_with("POST /hooks?shop=1 HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("host"), receiver.address.to_string());
    assert_eq!(request.header("content-type"), "application/json");
    assert_eq!(request.header("content-length"), request.body.len().to_string());
    assert_eq!(request.key(), delivery.as_str());
    assert!(request.headers("content-encoding").is_empty() && request.headers("transfer-encoding").is_empty());
    assert!(request.head.contains("\r\nX-Webhook-Signature: v=1, t="), "{}", request.head);
    let signature = request.header("x-webhook-signature");
    let parts: Vec<&str> = signature.split(", ").collect();
    assert_eq!((parts.len(), parts[0], parts[2]), (4, "v=1", "alg=hmac-sha256"));
    assert!(stage.is_signed_by(&stage.signing_key(Realm::Live).await, request));
    let read = stage
        .host
        .payments
        .store
        .payments
        .document(&stage.merchant_id.as_str().into(), Realm::Live, "pay_1")
        .await
        .unwrap();
    assert_eq!(String::from_utf8(request.body.clone()).unwrap(), read.unwrap());
    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.attempts, row.status), (State::Delivered, 1, Some(202)));
}

#[tokio::test]
async fn a_retry_has_the_same_key_and_body_and_a_signature_of_its_own() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number == 0 { 503 } else { 200 })).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.update(Realm::Live, &order("pay_1", Status::Pending, 1)).await.unwrap();
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    // The payment goes on; what the first delivery says does not.
    let next = stage.update(Realm::Live, &order("pay_1", Status::Completed, 2)).await.unwrap();
    worker.round().await.unwrap();

    assert!(stage.pass_to_next().await);
    worker.round().await.unwrap();

    let received = receiver.received();
    let keys: Vec<_> = received.iter().map(Received::key).collect();
    assert_eq!(keys, [delivery.as_str(), next.as_str(), delivery.as_str()]);
    assert_eq!(received[0].body, received[2].body);
    assert_ne!(received[0].header("x-webhook-signature"), received[2].header("x-webhook-signature"));
    let key = stage.signing_key(Realm::Live).await;
    assert!(stage.is_signed_by(&key, &received[2]));
    let attempts = stage.attempts(&delivery).await;
    let signed: Vec<_> = attempts.iter().map(|attempt| attempt.signed_at.unwrap()).collect();
    assert!(signed[1] - signed[0] >= 10, "{signed:?}");
}

#[tokio::test]
async fn the_same_update_makes_one_delivery_and_others_make_others() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let mut corrected = order("pay_1", Status::Completed, 4);
    corrected.actual_amount = Some("1400.00".parse().unwrap());
    let mut with_code = order("pay_1", Status::Pending, 2);
    with_code.mobile_money_transfer_details = Some([("transferCode".to_owned(), "8812".to_owned())].into());
    let updates = [
        order("pay_1", Status::Pending, 1),
        with_code,
        order("pay_1", Status::Completed, 3),
        corrected,
        order("pay_2", Status::Failed, 1),
        order("pay_2", Status::Completed, 2),
    ];
    let mut deliveries = Vec::new();
    for update in &updates {
        let delivery = stage.update(Realm::Live, update).await.unwrap();
        assert_eq!(stage.update(Realm::Live, update).await, Some(delivery.clone()), "a repetition");
        deliveries.push(delivery);
    }

    stage.worker(&receiver).round().await.unwrap();

    let mut keys: Vec<_> = receiver.received().iter().map(Received::key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), receiver.count()), (6, 6));
    for (update, delivery) in updates.iter().zip(&deliveries) {
        let updated_at_ms = update.updated_at.as_millisecond();
        assert_eq!(*delivery, DeliveryId::of_update(Realm::Live, &update.id, updated_at_ms));
        let request = receiver.received().into_iter().find(|request| request.key() == delivery.as_str()).unwrap();
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body, serde_json::to_value(update).unwrap());
    }
}

#[tokio::test]
async fn delivery_ids_tell_realms_payments_and_times_apart() {
    let id = |realm, payment, at| DeliveryId::of_update(realm, payment, at).to_string();
    let one = id(Realm::Live, "pay_1", 1);
    assert_eq!(one, id(Realm::Live, "pay_1", 1));
    assert!(one.len() == 30 && one.starts_with("dlv_"));
    for other in [id(Realm::Sandbox, "pay_1", 1), id(Realm::Live, "pay_11", 1), id(Realm::Live, "pay_1", 11)] {
        assert_ne!(one, other);
    }
    assert_ne!(DeliveryId::random(), DeliveryId::random());
}

#[tokio::test]
async fn realms_have_urls_secrets_and_deliveries_of_their_own() {
    let (live, sandbox) = (Receiver::answering(503).await, Receiver::answering(200).await);
    let stage = Stage::towards(&live).await;
    assert_eq!(stage.update(Realm::Sandbox, &order("pay_s0", Status::Completed, 1)).await, None, "no URL");
    stage.configure(Realm::Sandbox, Some(&sandbox.url())).await;
    let failing = stage.pay("pay_l").await;
    let fine = stage.update(Realm::Sandbox, &order("pay_s", Status::Completed, 1)).await.unwrap();

    stage.worker_for(&[&live, &sandbox]).round().await.unwrap();

    for (receiver, realm, delivery) in [(&live, Realm::Live, failing), (&sandbox, Realm::Sandbox, fine)] {
        let [request] = &receiver.received()[..] else { panic!("{:?}", receiver.received()) };
        assert_eq!(request.key(), delivery.as_str());
        assert!(stage.is_signed_by(&stage.signing_key(realm).await, request));
    }
}

#[tokio::test]
async fn a_rotation_is_in_force_from_the_next_attempt_on() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let old = stage.signing_key(Realm::Live).await;
    let other_realm = stage.signing_key(Realm::Sandbox).await;
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();

    stage.rotate(Realm::Live).await;
    stage.pass_to_next().await;
    worker.round().await.unwrap();

    let new = stage.signing_key(Realm::Live).await;
    let [first, second] = &receiver.received()[..] else { panic!("two attempts") };
    assert!(stage.is_signed_by(&old, first) && !stage.is_signed_by(&new, first));
    assert!(stage.is_signed_by(&new, second) && !stage.is_signed_by(&old, second));
    assert!(!stage.is_signed_by(&other_realm, second));
    assert_eq!(stage.delivery(&delivery).await.attempts, 2);
}

#[tokio::test]
async fn nothing_is_sent_unsigned_and_what_is_held_goes_on_with_the_next_secret() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    stage.revoke(Realm::Live).await;
    let worker = stage.worker(&receiver);

    worker.round().await.unwrap();
    stage.pass_to_next().await;
    worker.round().await.unwrap();

    assert_eq!(receiver.connections(), 0);
    let held = stage.delivery(&delivery).await;
    assert_eq!((held.state, held.attempts), (State::Pending, 0));
    assert_eq!(held.error_class.map(|class| class.as_str()), Some("no_signing_secret"));
    assert!(stage.attempts(&delivery).await.is_empty());
    let metrics = stage.host.metrics().await.text;
    assert!(metrics.contains("sandpiper_api_webhook_unsigned_total 2"), "{metrics}");

    stage.grant(Realm::Live).await;
    stage.pass_to_next().await;
    worker.round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
}

#[tokio::test]
async fn while_secrets_cannot_be_read_deliveries_are_held_for_seconds() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let rename = async |from: &str, to: &str| {
        let statement = format!("ALTER TABLE {from} RENAME TO {to}");
        stage.host.alter(&statement, &statement).await;
    };
    rename("merchant_keys", "elsewhere").await;
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    rename("elsewhere", "merchant_keys").await;

    let held = stage.delivery(&delivery).await;
    assert_eq!((held.state, held.attempts), (State::Pending, 0));
    assert_eq!(held.error_class.map(|class| class.as_str()), Some("secret_unread"));
    let wait = held.next_at.unwrap().duration_since(stage.now());
    assert!(wait <= SignedDuration::from_secs(5), "{wait}");
    stage.pass_to_next().await;
    worker.round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
}

#[tokio::test]
async fn connections_are_used_again() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let worker = stage.worker(&receiver);
    for number in 0..20 {
        stage.pay(&format!("pay_{number}")).await;
        worker.round().await.unwrap();
    }
    assert_eq!((receiver.count(), receiver.connections()), (20, 1));
}

#[tokio::test]
async fn a_connection_that_was_closed_while_it_waited_costs_no_attempt() {
    let receiver = Receiver::scripted(|_, number| match number {
        0 => Reaction::Last(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()),
        _ => Reaction::status(200),
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    let worker = stage.worker(&receiver);
    stage.pay("pay_1").await;
    worker.round().await.unwrap();
    let delivery = stage.pay("pay_2").await;
    worker.round().await.unwrap();

    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.attempts), (State::Delivered, 1));
    assert_eq!((receiver.count(), receiver.connections()), (2, 2));
}

#[tokio::test]
async fn every_request_is_an_attempt_and_signed_anew_also_on_a_connection_that_broke() {
    let receiver = Receiver::scripted(|_, number| match number {
        1 => Reaction::Reset,
        _ => Reaction::status(200),
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    let worker = stage.worker(&receiver);
    stage.pay("pay_1").await;
    worker.round().await.unwrap();
    let delivery = stage.pay("pay_2").await;
    worker.round().await.unwrap();

    assert_eq!(receiver.count(), 2, "what may have arrived is not repeated at once");
    let [broken] = &stage.attempts(&delivery).await[..] else { panic!("one attempt") };
    assert_eq!(broken.error_class.map(|class| class.as_str()), Some("reset"));
    stage.pass_to_next().await;
    worker.round().await.unwrap();
    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.attempts, receiver.count()), (State::Delivered, 2, 3));
    let signatures: Vec<_> = receiver.received().iter().map(|one| one.header("x-webhook-signature")).collect();
    assert_ne!(signatures[1], signatures[2]);
}

#[tokio::test]
async fn an_acknowledgement_is_written_down_when_its_head_has_come() {
    let receiver = Receiver::scripted(|_, _| {
        Reaction::Drip(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n".to_vec(), Duration::from_secs(3600))
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let world = Dependencies { attempt_limit: Duration::from_secs(3600), ..dependencies(&[&receiver]) };
    Worker::new(stage.host.payments.webhooks.clone(), world).round().await.unwrap();

    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_body_that_came_behind_the_acknowledgement() {
    let receiver = Receiver::scripted(|_, _| Reaction::answer(200, "", "thank you")).await;
    let stage = Stage::towards(&receiver).await;
    let worker = stage.worker(&receiver);
    let mut number = 0;
    eventually("a connection is used twice", async || {
        number += 1;
        stage.pay(&format!("pay_{number}")).await;
        worker.round().await.unwrap();
        receiver.connections() < receiver.count()
    })
    .await;
}
