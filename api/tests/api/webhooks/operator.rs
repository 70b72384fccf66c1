//! What operators see and do.

use std::collections::HashSet;

use jiff::Timestamp;
use sandpiper_payments::domain::order::Status;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::State;
use serde_json::{Value, json};

use super::receiver::{Reaction, Received, Receiver};
use super::stage::{Stage, order};

const PATH: &str = "/operator/v1/deliveries";

/// An operator key.
async fn key(stage: &Stage) -> String {
    let key = sandpiper_accounts::operators::keys::generate();
    let hash = sandpiper_accounts::operators::keys::hash(&key).unwrap();
    stage.host.payments.store.operator_keys.add("test", &hash, Timestamp::now()).await.unwrap();
    key.to_string()
}

async fn list(stage: &Stage, key: &str, query: &str) -> Value {
    stage.host.call("GET", &format!("{PATH}?{query}"), key, None).await.expect(200)
}

fn ids(page: &Value) -> Vec<String> {
    page["deliveries"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_delivery_is_shown_with_its_body_and_every_attempt() {
    let receiver = Receiver::scripted(|_, number| match number {
        0 => Reaction::answer(503, "retry-after: 30\r\n", "come back later"),
        _ => Reaction::status(200),
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    let (key, delivery) = (key(&stage).await, stage.pay("pay_1").await);
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    stage.pass_to_next().await;
    worker.round().await.unwrap();

    let shown = stage.host.call("GET", &format!("{PATH}/{delivery}"), &key, None).await.expect(200);

    assert_eq!(shown["delivery"]["state"], "delivered");
    assert_eq!(shown["delivery"]["trigger"], "update");
    assert_eq!(shown["delivery"]["paymentId"], "pay_1");
    assert_eq!(shown["url"], receiver.url());
    assert_eq!(shown["body"].as_str().unwrap().as_bytes(), receiver.received()[0].body);
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2);
    assert_eq!((&attempts[0]["status"], &attempts[0]["detail"]), (&json!(503), &json!("come back later")));
    assert_eq!(attempts[0]["nextAt"], attempts[1]["dueAt"]);
    for field in ["number", "startedAt", "durationMs", "signedAt", "dueAt"] {
        assert!(attempts.iter().all(|attempt| !attempt[field].is_null()), "{field}");
    }
    stage.host.call("GET", &format!("{PATH}/dlv_none"), &key, None).await.expect(404);
}

#[tokio::test]
async fn lists_are_filtered_and_come_page_by_page() {
    let receiver = Receiver::scripted(|request, _| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        Reaction::status(if body["id"].as_str().unwrap() < "pay_3" { 400 } else { 200 })
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    let key = key(&stage).await;
    let mut made = Vec::new();
    for number in 0..8 {
        made.push(stage.pay(&format!("pay_{number}")).await.to_string());
        stage.host.pass(jiff::SignedDuration::from_millis(2));
    }
    stage.worker(&receiver).round().await.unwrap();

    let newest_first: Vec<_> = made.iter().rev().cloned().collect();
    assert_eq!(ids(&list(&stage, &key, "").await), newest_first);
    assert_eq!(ids(&list(&stage, &key, "state=failed").await), newest_first[5..]);
    assert_eq!(ids(&list(&stage, &key, "state=delivered&status=200").await), newest_first[..5]);
    assert_eq!(ids(&list(&stage, &key, "paymentId=pay_4").await), made[4..5]);
    assert_eq!(ids(&list(&stage, &key, &format!("merchantId={}&realm=live", stage.merchant_id)).await).len(), 8);
    for nothing in [
        "realm=sandbox",
        "merchantId=mer_none",
        "trigger=replay",
        "errorClass=timeout",
        "since=2099-01-01T00:00:00Z",
        "until=2001-01-01T00:00:00Z",
    ] {
        assert!(ids(&list(&stage, &key, nothing).await).is_empty(), "{nothing}");
    }
    for wrong in ["state=lost", "status=many", "since=yesterday", "colour=red", "state=failed&state=failed"] {
        stage.host.call("GET", &format!("{PATH}?{wrong}"), &key, None).await.expect(400);
    }

    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = list(&stage, &key, &format!("pageSize=3&pageToken={token}")).await;
        seen.extend(ids(&page));
        let Some(next) = page["nextPageToken"].as_str() else { break };
        next.clone_into(&mut token);
    }
    assert_eq!(seen, newest_first);
    let foreign = format!("{PATH}?state=failed&pageToken={token}");
    stage.host.call("GET", &foreign, &key, None).await.expect(400);
}

#[tokio::test]
async fn a_replay_is_a_delivery_of_its_own_with_the_same_body() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number == 0 { 410 } else { 200 })).await;
    let stage = Stage::towards(&receiver).await;
    let (key, delivery) = (key(&stage).await, stage.pay("pay_1").await);
    let path = format!("{PATH}/{delivery}/replay");
    let early = stage.host.call("POST", &path, &key, None).await.expect(409);
    assert_eq!(early["error"]["details"][0]["reason"], "WRONG_STATE");
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.state, State::Failed);

    let replay = stage.host.call("POST", &path, &key, None).await.expect(201);
    worker.round().await.unwrap();

    assert_eq!((&replay["replayOf"], &replay["trigger"]), (&json!(delivery.as_str()), &json!("replay")));
    assert_eq!((&replay["attempts"], &replay["state"]), (&json!(0), &json!("pending")));
    let [first, second] = &receiver.received()[..] else { panic!("two requests") };
    assert_eq!(second.key(), replay["id"].as_str().unwrap());
    assert_ne!(first.key(), second.key());
    assert_eq!(first.body, second.body);
    // From every end, that of a replay too.
    let again = format!("{PATH}/{}/replay", replay["id"].as_str().unwrap());
    stage.host.call("POST", &again, &key, None).await.expect(201);
    let audit = stage.host.payments.store.audit.newest(Some(&format!("deliveries/{delivery}")), 10).await.unwrap();
    assert!(audit.iter().any(|entry| entry.status == 201), "{audit:?}");
}

#[tokio::test]
async fn deliveries_are_replayed_by_filter_page_by_page_and_never_twice() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number < 25 { 400 } else { 200 })).await;
    let stage = Stage::towards(&receiver).await;
    let key = key(&stage).await;
    let mut made = HashSet::new();
    for number in 0..25 {
        made.insert(stage.pay(&format!("pay_{number}")).await.to_string());
    }
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    stage.host.call("POST", &format!("{PATH}/replay"), &key, None).await.expect(400);

    let mut replayed = Vec::new();
    let mut token = String::new();
    loop {
        let path = format!("{PATH}/replay?state=failed&pageSize=10&pageToken={token}");
        let page = stage.host.call("POST", &path, &key, None).await.expect(200);
        assert_eq!(page["skipped"], 0);
        let replays = page["replays"].as_array().unwrap();
        replayed.extend(replays.iter().map(|replay| replay["replayOf"].as_str().unwrap().to_owned()));
        let Some(next) = page["nextPageToken"].as_str() else { break };
        next.clone_into(&mut token);
    }
    worker.round().await.unwrap();

    assert_eq!(replayed.len(), 25);
    assert_eq!(replayed.into_iter().collect::<HashSet<_>>(), made);
    assert_eq!(receiver.received().iter().map(Received::key).collect::<HashSet<_>>().len(), 50);
    assert_eq!(ids(&list(&stage, &key, "state=delivered&trigger=replay").await).len(), 25);
}

#[tokio::test]
async fn what_is_cancelled_is_not_attempted_again() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let (key, delivery) = (key(&stage).await, stage.pay("pay_1").await);
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    let path = format!("{PATH}/{delivery}/cancel");

    let cancelled = stage.host.call("POST", &path, &key, None).await.expect(200);

    assert_eq!((&cancelled["state"], &cancelled["attempts"]), (&json!("cancelled"), &json!(1)));
    assert!(!stage.pass_to_next().await);
    stage.host.call("POST", &path, &key, None).await.expect(409);
    stage.host.call("POST", &format!("{PATH}/dlv_none/cancel"), &key, None).await.expect(404);
}

#[tokio::test]
async fn the_present_state_of_a_payment_is_delivered_that_had_no_url_at_its_time() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let key = key(&stage).await;
    let deliver = async |payment: &str| {
        stage.host.call("POST", &format!("/operator/v1/payments/{payment}/deliver"), &key, None).await
    };
    deliver("pay_1").await.denied(404, "NOT_FOUND", "NOT_FOUND");
    for (status, second) in [(Status::Pending, 1), (Status::Completed, 2)] {
        assert_eq!(stage.update(Realm::Live, &order("pay_1", status, second)).await, None);
    }
    deliver("pay_1").await.denied(409, "ABORTED", "NO_URL");

    stage.configure(Realm::Live, Some(&receiver.url())).await;
    let made = deliver("pay_1").await.expect(201);
    stage.worker(&receiver).round().await.unwrap();

    let [request] = &receiver.received()[..] else { panic!("{:?}", receiver.received()) };
    assert_eq!(request.key(), made["id"].as_str().unwrap());
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!((&body["id"], &body["status"]), (&json!("pay_1"), &json!("COMPLETED")));
    let error = deliver("pay_1").await.denied(409, "ABORTED", "DELIVERY_EXISTS");
    assert_eq!(error["details"][0]["metadata"]["deliveryId"], made["id"]);
}

#[tokio::test]
async fn an_operator_tries_a_merchants_endpoint() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let key = key(&stage).await;
    let path = format!("/operator/v1/merchants/{}/webhookConfig/test", stage.merchant_id);
    stage.host.call("POST", &path, &key, Some(json!({"realm": "sandbox"}))).await.expect(409);
    let sent = stage.host.call("POST", &path, &key, Some(json!({"realm": "live"}))).await.expect(202);
    stage.worker(&receiver).round().await.unwrap();
    assert_eq!(receiver.received()[0].key(), sent["deliveryId"].as_str().unwrap());
}

#[tokio::test]
async fn metrics_tell_outcomes_classes_lags_and_backlogs_and_no_secret() {
    let receiver = Receiver::scripted(|_, number| match number {
        0 => Reaction::Reset,
        1 => Reaction::status(503),
        _ => Reaction::status(200),
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    let secret = stage.rotate(Realm::Live).await;
    stage.pay("pay_1").await;
    let worker = stage.worker(&receiver);
    for _ in 0..3 {
        worker.round().await.unwrap();
        stage.pass_to_next().await;
    }
    stage.pay("pay_2").await;

    let metrics = stage.host.metrics().await.text;

    for line in [
        "webhook_attempts_total{outcome=\"retry\",class=\"reset\",trigger=\"update\",attempt=\"first\"} 1",
        "webhook_attempts_total{outcome=\"retry\",class=\"503\",trigger=\"update\",attempt=\"retry\"} 1",
        "webhook_attempts_total{outcome=\"delivered\",class=\"2xx\",trigger=\"update\",attempt=\"retry\"} 1",
        "webhook_attempt_number_sum 6.0",
        "webhook_attempt_duration_seconds_count 3",
        "webhook_lag_seconds_count 3",
        &format!("webhook_backlog{{merchant=\"{}\",realm=\"live\"}} 1", stage.merchant_id),
        &format!("webhook_in_flight{{merchant=\"{}\",realm=\"live\"}} 0", stage.merchant_id),
    ] {
        assert!(metrics.contains(&format!("sandpiper_api_{line}")), "{line}\n{metrics}");
    }
    assert!(!metrics.contains(&secret["sk_prod_".len()..]));
    assert!(!stage.host.stores(&secret["sk_prod_".len()..]).await);
}
