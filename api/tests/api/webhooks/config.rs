//! `webhookConfig`.

use sandpiper_payments::domain::realm::Realm;
use serde_json::{Value, json};

use super::receiver::Receiver;
use super::stage::Stage;
use crate::support::Answer;

const PATH: &str = "/merchant/api/v1/webhookConfig";

async fn put(stage: &Stage, key: &str, body: Value) -> Answer {
    stage.host.call("PUT", PATH, key, Some(body)).await
}

async fn get(stage: &Stage, key: &str, realm: &str) -> Answer {
    stage.host.call("GET", &format!("{PATH}?realm={realm}"), key, None).await
}

#[tokio::test]
async fn a_url_is_saved_for_one_realm() {
    let stage = Stage::new().await;
    let (live, sandbox) = (stage.rotate(Realm::Live).await, stage.rotate(Realm::Sandbox).await);
    let none = get(&stage, &live, "live").await.expect(200);
    assert_eq!(none, json!({"realm": "live", "url": null}));

    let url = "https://merchant.example.test/hooks";
    let saved = put(&stage, &live, json!({"realm": "live", "url": url})).await.expect(200);

    assert_eq!((&saved["url"], &saved["realm"]), (&json!(url), &json!("live")));
    assert_eq!(get(&stage, &live, "live").await.expect(200), saved);
    assert_eq!(get(&stage, &sandbox, "sandbox").await.expect(200)["url"], Value::Null);
    let audit = stage.host.payments.store.audit.newest(Some("webhookConfig/live"), 10).await.unwrap();
    assert_eq!((audit.len(), &audit[0].team_id), (1, &stage.merchant_id));
}

#[tokio::test]
async fn the_realm_is_named_and_is_that_of_the_key() {
    let stage = Stage::new().await;
    let live = stage.rotate(Realm::Live).await;
    let url = "https://merchant.example.test/hooks";
    put(&stage, &live, json!({"url": url})).await.expect(400);
    put(&stage, &live, json!({"realm": "production", "url": url})).await.expect(400);
    put(&stage, &live, json!({"realm": "live"})).await.expect(400);
    put(&stage, &live, json!({"realm": "live", "url": url, "extra": 1})).await.expect(400);
    let denied = put(&stage, &live, json!({"realm": "sandbox", "url": url})).await.expect(403);
    assert_eq!(denied["error"]["status"], "PERMISSION_DENIED");
    get(&stage, &live, "sandbox").await.expect(403);
    stage.host.call("GET", PATH, &live, None).await.expect(400);
    let test = json!({"realm": "sandbox"});
    stage.host.call("POST", &format!("{PATH}/test"), &live, Some(test)).await.expect(403);
    assert_eq!(get(&stage, &live, "live").await.expect(200)["url"], Value::Null);
}

#[tokio::test]
async fn only_the_secret_key_may_look_and_save() {
    let stage = Stage::new().await;
    let url = json!({"realm": "live", "url": "https://merchant.example.test/hooks"});
    let public = stage.public_key(Realm::Live).await;
    put(&stage, &public, url.clone()).await.expect(403);
    get(&stage, &public, "live").await.expect(403);
    let revoked = stage.rotate(Realm::Live).await;
    stage.rotate(Realm::Live).await;
    for key in [revoked.as_str(), "sk_prod_AAAA", stage.host.write.as_str()] {
        put(&stage, key, url.clone()).await.expect(401);
        get(&stage, key, "live").await.expect(401);
    }
}

#[tokio::test]
async fn without_a_url_there_are_no_deliveries() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    let live = stage.rotate(Realm::Live).await;
    put(&stage, &live, json!({"realm": "live", "url": receiver.url()})).await.expect(200);
    let pending = stage.pay("pay_1").await;
    put(&stage, &live, json!({"realm": "live", "url": null})).await.expect(200);

    assert_eq!(stage.delivery(&pending).await.state.as_str(), "cancelled");
    let refused = stage.host.call("POST", &format!("{PATH}/test"), &live, Some(json!({"realm": "live"}))).await;
    assert_eq!(refused.expect(409)["error"]["details"][0]["reason"], "NO_URL");
    assert_eq!(stage.worker(&receiver).round().await.unwrap(), 0);
}
