//! Keys, over HTTP.

use jiff::SignedDuration;
use sandpiper_accounts::Role;
use sandpiper_api::auth::last_use;
use serde_json::json;

use crate::support::{Host, request, with_header};

#[tokio::test]
async fn a_key_that_an_admin_makes_works_until_it_is_revoked() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Admin).await;
    let body = json!({"team": "acme", "name": "ci", "capability": "read"});
    let made = host.call("POST", "/v1/api_keys", &ada.token, Some(body)).await.expect(201);
    assert_eq!((&made["team"], &made["created_by"]), (&json!("acme"), &json!(ada.id)));
    let key = made["key"].as_str().unwrap();
    host.call("GET", "/v1/sandboxes?team=acme", key, None).await.expect(200);
    host.call("POST", "/v1/sandboxes", key, Some(json!({"template": "base"}))).await.refused(403, "insufficient_scope");

    let path = format!("/v1/api_keys/{}", made["id"].as_str().unwrap());
    // Of another team, the personal one.
    host.call("DELETE", &path, &ada.token, None).await.refused(404, "not_found");
    host.for_team("acme", "DELETE", &path, &ada.token, None).await.expect(204);

    host.call("GET", "/v1/sandboxes", key, None).await.refused(401, "unauthorized");
    host.for_team("acme", "DELETE", &path, &ada.token, None).await.refused(404, "not_found");
    let listed = host.call("GET", "/v1/api_keys?team=acme&limit=1", &ada.token, None).await.expect(200);
    let newest = &listed["api_keys"][0];
    assert_eq!((&newest["id"], newest.get("key")), (&made["id"], None));
    assert!(newest["revoked_at"].is_string() && listed["next_token"].is_string());
}

#[tokio::test]
async fn a_key_ends_when_it_was_said_to_and_with_it_what_it_gave_access_to() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let make = async |expires_at: jiff::Timestamp| {
        let body = json!({"team": "acme", "capability": "write", "expires_at": expires_at});
        host.call("POST", "/v1/api_keys", &ada.token, Some(body)).await
    };
    let now = host.app.clock.now();
    make(now).await.blames("expires_at");
    let made = make(now + SignedDuration::from_mins(10)).await.expect(201);
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    host.call("POST", "/v1/sandboxes", key, Some(json!({"template": "base"}))).await.expect(201);

    host.pass(SignedDuration::from_mins(11));

    host.call("GET", "/v1/sandboxes", key, None).await.refused(401, "unauthorized");
    host.sync().await;
    assert_eq!(host.agent.records().revocations, [[id]]);
}

#[tokio::test]
async fn it_is_known_when_a_key_was_last_used() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let last_used = async || {
        let listed = host.call("GET", "/v1/api_keys?team=acme", &ada.token, None).await.expect(200);
        // Of the two that there are one is used; which of them is listed first is chance, as they are of the same moment.
        let mut used = listed["api_keys"].as_array().unwrap().iter().filter_map(|key| key["last_used_at"].as_str());
        let at: Option<jiff::Timestamp> = used.next().map(|at| at.parse().unwrap());
        assert_eq!(used.next(), None);
        at
    };
    assert_eq!(last_used().await, None);
    host.get("/v1/sandboxes").await.expect(200);

    last_use::write_down(&host.app).await.unwrap();

    let first = last_used().await.unwrap();
    host.pass(SignedDuration::from_hours(1));
    host.get("/v1/sandboxes").await.expect(200);
    last_use::write_down(&host.app).await.unwrap();
    let second = last_used().await.unwrap();
    assert!(second.duration_since(first) > SignedDuration::from_mins(59), "{first} {second}");
}

#[tokio::test]
async fn a_repeated_request_makes_one_key_and_does_not_show_it_again() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let make = async || {
        let body = json!({"team": "acme", "capability": "write"});
        let request = request("POST", "/v1/api_keys", &ada.token, Some(body));
        host.send(with_header(request, "idempotency-key", "one")).await
    };

    let (first, again) = (make().await.expect(201), make().await);

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let again = again.expect(201);
    assert_eq!((&again["id"], again.get("key")), (&first["id"], None));
    assert!(!host.stores(first["key"].as_str().unwrap()).await);
}
