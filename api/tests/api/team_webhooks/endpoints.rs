//! Webhooks are made, looked at, changed and deleted by those who may.

use sandpiper_accounts::Role;
use serde_json::json;

use super::Stage;

const URL: &str = "https://hooks.example.test/sandpiper";

#[tokio::test]
async fn a_webhook_is_made_changed_and_deleted() {
    let stage = Stage::new().await;
    let body = json!({"url": URL, "name": "on call", "types": ["sandbox.crashed", "sandbox.crashed", "volume.lost"]});
    let made = stage.call("POST", "/v1/webhooks", Some(body)).await;
    let location = made.header("location").unwrap().to_owned();
    let made = made.expect(201);
    assert_eq!(location, format!("/v1/webhooks/{}", made["id"].as_str().unwrap()));
    assert_eq!((&made["name"], &made["url"], &made["enabled"]), (&json!("on call"), &json!(URL), &json!(true)));
    assert_eq!(made["types"], json!(["sandbox.crashed", "volume.lost"]));
    assert!(made["secret"].as_str().unwrap().starts_with("whsec_"));

    let shown = stage.get(&location).await;
    assert!(shown.get("secret").is_none());
    assert_eq!(stage.get("/v1/webhooks?team=acme").await["webhooks"], json!([shown]));

    stage.host.pass(jiff::SignedDuration::from_secs(1));
    let change = json!({"name": "nights", "url": "https://hooks.example.test/other", "types": [], "enabled": false});
    let changed = stage.call("PATCH", &location, Some(change.clone())).await.expect(200);
    for field in ["name", "url", "types", "enabled"] {
        assert_eq!(changed[field], change[field]);
    }
    assert_ne!(changed["updated_at"], shown["updated_at"]);
    let again = stage.call("PATCH", &location, Some(json!({"enabled": true}))).await.expect(200);
    assert_eq!((&again["url"], &again["enabled"]), (&change["url"], &json!(true)));

    stage.call("DELETE", &location, None).await.expect(204);
    for (method, path, body) in [
        ("GET", location.clone(), None),
        ("PATCH", location.clone(), Some(json!({"name": "gone"}))),
        ("DELETE", location.clone(), None),
        ("POST", format!("{location}/secret"), None),
        ("POST", format!("{location}/test"), None),
        ("GET", format!("{location}/deliveries"), None),
    ] {
        stage.call(method, &path, body).await.refused(404, "not_found");
    }
    assert_eq!(stage.get("/v1/webhooks").await["webhooks"], json!([]));
}

#[tokio::test]
async fn what_is_no_webhook_is_refused_with_the_reason() {
    let stage = Stage::new().await;
    let made = stage.webhook(URL, &[]).await;
    for (body, field) in [
        (json!({"url": "http://hooks.example.test/"}), "url"),
        (json!({"url": "https://10.0.0.1/"}), "url"),
        (json!({"url": "https://169.254.169.254/latest"}), "url"),
        (json!({"url": "https://[::1]/"}), "url"),
        (json!({"url": "https://0x0a000001/"}), "url"),
        (json!({"url": "https://localhost/"}), "url"),
        (json!({"url": "https://ada:pw@hooks.example.test/"}), "url"),
        (json!({"url": URL, "types": ["sandbox.exploded"]}), "types"),
        (json!({"url": URL, "name": "a\u{7}b"}), "name"),
        (json!({"url": URL, "name": "x".repeat(201)}), "name"),
    ] {
        stage.call("POST", "/v1/webhooks", Some(body.clone())).await.blames(field);
        stage.call("PATCH", &made.path(""), Some(body)).await.blames(field);
    }
    stage.call("POST", "/v1/webhooks", Some(json!({}))).await.refused(400, "invalid_request");
    stage
        .call("POST", "/v1/webhooks", Some(json!({"url": URL, "secret": "mine"})))
        .await
        .refused(400, "invalid_request");
    stage.call("GET", &made.path("/deliveries?state=lost"), None).await.blames("state");
    stage.call("GET", &made.path("/deliveries?next_token=x"), None).await.blames("next_token");
}

#[tokio::test]
async fn a_team_has_as_many_as_its_quota_says() {
    let stage = Stage::new().await;
    for _ in 0..10 {
        stage.webhook(URL, &[]).await;
    }
    let refused = stage.call("POST", "/v1/webhooks", Some(json!({"url": URL}))).await;
    let refused = refused.refused(422, "webhook_quota_exceeded");
    assert_eq!(
        (&refused["quota"]["limits"]["webhooks"], &refused["quota"]["usage"]["webhooks"]),
        (&json!(10), &json!(10))
    );
    assert_eq!(refused["quota"]["reservation"]["webhooks"], 1);

    let one = stage.get("/v1/webhooks").await["webhooks"][0]["id"].as_str().unwrap().to_owned();
    stage.call("DELETE", &format!("/v1/webhooks/{one}"), None).await.expect(204);
    stage.webhook(URL, &[]).await;
}

#[tokio::test]
async fn what_a_team_has_is_nothing_to_another() {
    let stage = Stage::new().await;
    let made = stage.webhook(URL, &[]).await;
    let delivery = stage.call("POST", &made.path("/test"), None).await.expect(202);
    let delivery = format!("/deliveries/{}", delivery["id"].as_str().unwrap());
    let eve = stage.host.user("eve@example.com", "rival", Role::Owner).await.token;

    for (method, path, body) in [
        ("GET", made.path(""), None),
        ("PATCH", made.path(""), Some(json!({"enabled": false}))),
        ("POST", made.path("/secret"), None),
        ("POST", made.path("/test"), None),
        ("GET", made.path("/deliveries"), None),
        ("GET", made.path(&delivery), None),
        ("POST", made.path(&format!("{delivery}/redeliver")), None),
        ("DELETE", made.path(""), None),
    ] {
        stage.call_for("rival", &eve, method, &path, body).await.refused(404, "not_found");
    }
    let list = stage.call_for("rival", &eve, "GET", "/v1/webhooks", None).await.expect(200);
    assert_eq!(list["webhooks"], json!([]));
    // Nor by way of a webhook of one's own.
    let own = stage.call_for("rival", &eve, "POST", "/v1/webhooks", Some(json!({"url": URL}))).await.expect(201);
    let path = format!("/v1/webhooks/{}{delivery}", own["id"].as_str().unwrap());
    stage.call_for("rival", &eve, "GET", &path, None).await.refused(404, "not_found");
    stage.call_for("rival", &eve, "POST", &format!("{path}/redeliver"), None).await.refused(404, "not_found");
    assert_eq!(stage.get(&made.path("")).await["enabled"], true);
}

#[tokio::test]
async fn the_audit_says_who_changed_what() {
    let stage = Stage::new().await;
    let made = stage.webhook(URL, &[]).await;
    stage.call("POST", &made.path("/secret"), None).await.expect(200);
    stage.call("DELETE", &made.path(""), None).await.expect(204);

    let audit = stage.get(&format!("/v1/audit?resource={}", made.id)).await;

    let actions: Vec<_> = audit["entries"].as_array().unwrap().iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions, ["DELETE /v1/webhooks/{id}", "POST /v1/webhooks/{id}/secret", "POST /v1/webhooks"]);
    assert!(!audit.to_string().contains("whsec_"));
}
