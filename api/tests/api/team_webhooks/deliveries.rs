//! What becomes of an event.

use std::time::Duration;

use sandpiper_accounts::Role;
use sandpiper_api::orchestration::news::News;
use sandpiper_api::webhooks::enqueuer;
use sandpiper_delivery::Dependencies;
use sandpiper_delivery::store::claims::LEASE;
use sandpiper_delivery::worker::Worker;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Stage;
use crate::support::eventually;
use crate::webhooks::receiver::{Reaction, Receiver};
use crate::webhooks::stage::dependencies;

#[tokio::test]
async fn what_happens_is_sent_as_the_list_of_events_tells_it_signed_and_once() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    stage.volume("before").await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    let sandbox = stage.host.sandbox().await;
    stage.host.call("DELETE", &format!("/v1/sandboxes/{sandbox}"), &stage.host.write, None).await.expect(204);

    let count = stage.round(&receiver).await;
    assert_eq!(stage.round(&receiver).await, 0);

    let events = stage.get("/v1/events?after=1").await["events"].as_array().unwrap().clone();
    assert_eq!((events.len(), count), (3, 3), "created, ready, deleted");
    let received = receiver.received();
    let mut bodies: Vec<Value> =
        received.iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect();
    bodies.sort_by_key(|body| body["sequence"].as_u64());
    assert_eq!(bodies, events);
    assert!(received.iter().all(|request| made.has_signed(request, stage.now())));
    let deliveries = stage.deliveries(&made).await;
    assert!(deliveries.iter().all(|delivery| delivery["state"] == "delivered" && delivery["status"] == 200));
    let mut keys: Vec<_> = received.iter().map(|request| json!(request.key())).collect();
    let mut ids: Vec<_> = deliveries.iter().map(|delivery| delivery["id"].clone()).collect();
    keys.sort_by_key(Value::to_string);
    ids.sort_by_key(Value::to_string);
    assert_eq!(keys, ids);
}

#[tokio::test]
async fn a_webhook_gets_the_types_that_it_selects() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &["volume.deleted"]).await;
    let volume = stage.volume("models").await;
    stage.round(&receiver).await;
    assert_eq!(receiver.count(), 0);

    stage.host.call("DELETE", &format!("/v1/volumes/{volume}"), &stage.host.write, None).await.expect(204);
    stage.round(&receiver).await;

    let delivery = &stage.deliveries(&made).await[0];
    assert_eq!((&delivery["event_type"], &delivery["event_sequence"]), (&json!("volume.deleted"), &json!(2)));
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_receiver_that_is_away_gets_it_later_under_the_same_key_and_everything_is_logged() {
    let receiver = Receiver::scripted(|_, number| match number {
        0 => Reaction::answer(503, "", "not\u{7} now"),
        _ => Reaction::status(204),
    })
    .await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    stage.volume("models").await;
    stage.round(&receiver).await;
    let waiting = stage.deliveries(&made).await.remove(0);
    assert_eq!(
        (&waiting["state"], &waiting["status"], &waiting["attempts"]),
        (&json!("pending"), &json!(503), &json!(1))
    );

    stage.pass(11);
    stage.round(&receiver).await;

    let received = receiver.received();
    assert_eq!((received[0].key(), &received[0].body), (received[1].key(), &received[1].body));
    let shown = stage.get(&made.path(&format!("/deliveries/{}", waiting["id"].as_str().unwrap()))).await;
    assert_eq!((&shown["state"], &shown["attempts"]), (&json!("delivered"), &json!(2)));
    assert_eq!(shown["body"], serde_json::from_slice::<Value>(&received[0].body).unwrap());
    let log = shown["log"].as_array().unwrap();
    assert_eq!(
        (&log[0]["status"], &log[0]["detail"], &log[1]["status"]),
        (&json!(503), &json!("not now"), &json!(204))
    );
    assert!(log[0]["next_attempt_at"].is_string() && log[1]["next_attempt_at"].is_null());
}

#[tokio::test]
async fn a_test_is_sent_whatever_the_types_and_is_no_event() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &["sandbox.crashed"]).await;

    let delivery = stage.call("POST", &made.path("/test"), None).await.expect(202);
    stage.round(&receiver).await;

    let request = receiver.received().remove(0);
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!((&body["type"], &body["sequence"], &body["data"]), (&json!("webhook.test"), &json!(0), &json!({})));
    assert_eq!(body["resource"], json!({"kind": "webhook", "id": made.id}));
    assert!(made.has_signed(&request, stage.now()) && delivery["id"] == request.key());
    assert_eq!((&delivery["trigger"], &delivery["event_sequence"]), (&json!("test"), &Value::Null));
    assert_eq!(stage.get("/v1/events").await["events"], json!([]));
}

#[tokio::test]
async fn what_was_refused_is_sent_again_when_somebody_asks_for_it() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number == 0 { 401 } else { 200 })).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    stage.volume("models").await;
    enqueuer::round(&stage.host.app).await.unwrap();
    let first = stage.deliveries(&made).await.remove(0);
    let redeliver = made.path(&format!("/deliveries/{}/redeliver", first["id"].as_str().unwrap()));
    stage.call("POST", &redeliver, None).await.refused(409, "invalid_state");
    stage.round(&receiver).await;
    assert_eq!(stage.deliveries(&made).await[0]["state"], "failed");

    let second = stage.call("POST", &redeliver, None).await.expect(202);
    stage.round(&receiver).await;

    assert_eq!((&second["trigger"], &second["redelivery_of"]), (&json!("redelivery"), &first["id"]));
    let received = receiver.received();
    assert_eq!(received[0].body, received[1].body);
    assert_eq!(json!(received[1].key()), second["id"]);
    let page = async |query: &str| stage.get(&made.path(&format!("/deliveries?{query}"))).await;
    assert_eq!(page("state=failed").await["deliveries"][0]["id"], first["id"]);
    let newest = page("limit=1").await;
    assert_eq!(newest["deliveries"][0]["id"], second["id"]);
    let rest = page(&format!("limit=1&next_token={}", newest["next_token"].as_str().unwrap())).await;
    assert_eq!((&rest["deliveries"][0]["id"], &rest["next_token"]), (&first["id"], &Value::Null));
}

#[tokio::test]
async fn people_have_few_sent_at_a_time_and_none_while_it_is_disabled() {
    let stage = Stage::new().await;
    let made = stage.webhook("https://hooks.example.test/", &[]).await;
    for _ in 0..60 {
        stage.call("POST", &made.path("/test"), None).await.expect(202);
    }
    let refused = stage.call("POST", &made.path("/test"), None).await;
    assert!((1..=60).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
    refused.refused(429, "rate_limited");
    stage.pass(61);
    stage.call("POST", &made.path("/test"), None).await.expect(202);

    stage.call("PATCH", &made.path(""), Some(json!({"enabled": false}))).await.expect(200);

    stage.call("POST", &made.path("/test"), None).await.refused(409, "invalid_state");
    assert!(stage.deliveries(&made).await.iter().all(|delivery| delivery["state"] == "cancelled"));
}

#[tokio::test]
async fn a_receiver_that_hangs_does_not_hold_up_another_teams() {
    let (hanging, prompt) = (Receiver::scripted(|_, _| Reaction::Hang).await, Receiver::answering(200).await);
    let stage = Stage::new().await;
    stage.webhook(&hanging.url(), &[]).await;
    for number in 0..40 {
        stage.volume(&format!("models-{number}")).await;
    }
    let eve = stage.host.user("eve@example.com", "rival", Role::Owner).await.token;
    stage.call_for("rival", &eve, "POST", "/v1/webhooks", Some(json!({"url": prompt.url()}))).await.expect(201);
    // So long that no attempt at the receiver that hangs ends here.
    let world = Dependencies { attempt_limit: Duration::from_secs(3600), ..dependencies(&[&hanging, &prompt]) };
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(Worker::new(stage.host.app.webhooks.clone(), world).run(stopped.clone()));
    tokio::spawn(enqueuer::run(stage.host.app.clone(), News::unknown(), stopped));
    eventually("the first attempts hang", async || hanging.count() >= 4).await;

    stage.host.call("POST", "/v1/volumes", &stage.host.foreign, Some(json!({"name": "models"}))).await.expect(201);

    eventually("the other's arrives", async || prompt.count() == 1).await;
    assert_eq!(hanging.count(), 4);
}

#[tokio::test]
async fn what_a_dead_process_had_claimed_is_attempted_again_under_the_same_key() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    stage.volume("models").await;
    enqueuer::round(&stage.host.app).await.unwrap();
    let claims = stage.host.app.store.webhooks.sent.claim(10, stage.host.app.clock.now()).await.unwrap();
    assert_eq!(claims.deliveries.len(), 1);
    let stage = Stage { host: stage.host.restart().await, admin: stage.admin };
    assert_eq!(stage.round(&receiver).await, 0, "the lease is not over");

    stage.host.pass(LEASE);
    assert_eq!(stage.round(&receiver).await, 1);

    let delivery = stage.deliveries(&made).await.remove(0);
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("delivered"), &json!(2)));
    assert_eq!(delivery["id"], receiver.received()[0].key());
}

#[tokio::test]
async fn an_enqueuing_that_fails_leaves_nothing_and_is_done_again() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    stage.volume("models").await;
    // The last thing that the transaction does.
    let obstacle = "CREATE TRIGGER obstacle BEFORE UPDATE OF enqueued_sequence ON team_webhooks \
                    WHEN NEW.enqueued_sequence > OLD.enqueued_sequence BEGIN SELECT RAISE(ABORT, 'no'); END";
    let obstacle_of_postgres = "CREATE TRIGGER obstacle BEFORE UPDATE OF enqueued_sequence ON team_webhooks FOR EACH ROW \
                                WHEN (NEW.enqueued_sequence > OLD.enqueued_sequence) EXECUTE FUNCTION refuse('no')";
    stage.host.alter(obstacle, obstacle_of_postgres).await;
    enqueuer::round(&stage.host.app).await.unwrap_err();
    assert_eq!(stage.deliveries(&made).await, [] as [Value; 0]);
    enqueuer::round(&stage.host.app).await.unwrap_err();

    stage.host.alter("DROP TRIGGER obstacle", "DROP TRIGGER obstacle ON team_webhooks").await;
    stage.round(&receiver).await;

    assert_eq!((stage.deliveries(&made).await.len(), receiver.count()), (1, 1));
}

#[tokio::test]
async fn metrics_tell_of_what_waits() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::new().await;
    let made = stage.webhook(&receiver.url(), &[]).await;
    stage.volume("models").await;
    stage.round(&receiver).await;

    let metrics = stage.host.metrics().await.text;

    assert!(metrics.contains(&format!("webhook=\"{}\"}} 1", made.id)), "{metrics}");
    assert!(
        metrics.contains("sandpiper_api_team_webhook_attempts_total{outcome=\"retry\",class=\"503\",trigger=\"event\""),
        "{metrics}"
    );
}
