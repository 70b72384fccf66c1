//! Reading the audit.

use sandpiper_accounts::Role;
use serde_json::{Value, json};

use crate::support::Host;

#[tokio::test]
async fn the_audit_says_who_did_what_and_what_was_refused() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let viewer = host.user("viewer@example.com", "acme", Role::Viewer).await;
    let sandbox = json!({"template": "base", "team": "acme"});
    let created = host.call("POST", "/v1/sandboxes", &ada.token, Some(sandbox.clone())).await.expect(201);
    host.call("POST", "/v1/sandboxes", &viewer.token, Some(sandbox)).await.refused(403, "insufficient_scope");
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    let find = async |query: &str| {
        let found = host.call("GET", &format!("/v1/audit?team=acme{query}"), &ada.token, None).await.expect(200);
        found["entries"].as_array().unwrap().clone()
    };
    let statuses =
        |entries: &[Value]| entries.iter().map(|entry| entry["status"].as_u64().unwrap()).collect::<Vec<_>>();

    let creates = find("&action=POST%20/v1/sandboxes").await;

    assert_eq!(statuses(&creates), [403, 201], "newest first, and none of another team");
    assert_eq!((&creates[0]["user"], &creates[1]["resource"]), (&json!(viewer.id), &created["id"]));
    assert_eq!(statuses(&find(&format!("&actor={}&action=POST%20/v1/sandboxes", ada.id)).await), [201]);
    assert_eq!(statuses(&find(&format!("&resource={}", created["id"].as_str().unwrap())).await), [201]);
    let at = creates[1]["at"].as_str().unwrap();
    assert!(find(&format!("&to={at}")).await.iter().all(|entry| entry["resource"] != created["id"]));
    assert!(find(&format!("&from={at}")).await.iter().any(|entry| entry["resource"] == created["id"]));
    let refused = host.call("GET", "/v1/audit?from=yesterday", &ada.token, None).await;
    refused.blames("from");
}

#[tokio::test]
async fn pages_have_every_entry_once() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    for _ in 0..5 {
        host.sandbox().await;
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/audit?team=acme&limit=2&action=POST%20/v1/sandboxes{token}");
        let page = host.call("GET", &path, &ada.token, None).await.expect(200);
        seen.extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()));
        match page["next_token"].as_str() {
            Some(next) => token = format!("&next_token={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|one, next| one > next), "{seen:?}");
}

#[tokio::test]
async fn signing_in_is_in_the_audit_of_the_personal_team_also_when_it_fails() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    host.log_in("ada@example.com", "guessed").await.refused(401, "unauthorized");
    host.log_in("ada@example.com", super::PASSWORD).await.expect(200);

    let entries = host.call("GET", "/v1/audit?action=POST%20/v1/login", &ada.token, None).await.expect(200);

    let statuses: Vec<_> = entries["entries"].as_array().unwrap().iter().map(|entry| &entry["status"]).collect();
    assert_eq!(statuses, [&json!(200), &json!(401)]);
}
