//! Signing in and out.

use jiff::SignedDuration;
use sandpiper_accounts::{Role, User};
use serde_json::json;

use super::PASSWORD;
use crate::support::Host;

/// Ada, and the hash of her password.
async fn ada_of(host: &Host) -> (User, String) {
    let (user, hash) = host.app.store.users.by_email(&"ada@example.com".parse().unwrap()).await.unwrap().unwrap();
    (user, hash.unwrap())
}

#[tokio::test]
async fn who_has_the_password_is_signed_in_however_the_address_is_spelt() {
    let host = Host::new().await;
    host.user("ada@example.com", "acme", Role::Owner).await;

    let session = host.log_in("Ada@Example.COM", PASSWORD).await.expect(200);

    let token = session["token"].as_str().unwrap();
    assert!(token.starts_with("sps_") && token.len() == 44, "{token}");
    let me = host.call("GET", "/v1/me", token, None).await.expect(200);
    assert_eq!((&me["user"]["email"], &me["key"]), (&json!("ada@example.com"), &json!(null)));
    assert_eq!((&me["team"]["slug"], &me["team"]["is_personal"]), (&json!("ada"), &json!(true)));
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_address_are_refused_alike() {
    let host = Host::new().await;
    host.user("ada@example.com", "acme", Role::Owner).await;

    let wrong = host.log_in("ada@example.com", "correct horse batterz").await.refused(401, "unauthorized");
    let unknown = host.log_in("eve@example.com", PASSWORD).await.refused(401, "unauthorized");

    assert_eq!(wrong["message"], unknown["message"]);
    host.log_in("nobody", PASSWORD).await.blames("email");
}

#[tokio::test]
async fn tries_are_counted_for_each_address() {
    let host = Host::new().await;
    for _ in 0..10 {
        host.log_in("eve@example.com", "guessed").await.refused(401, "unauthorized");
    }

    let refused = host.log_in("EVE@example.com", "guessed").await;

    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    refused.refused(429, "rate_limited");
    host.log_in("ada@example.com", "guessed").await.refused(401, "unauthorized");
}

#[tokio::test]
async fn a_session_ends_by_signing_out_by_another_session_and_by_itself() {
    let host = Host::new().await;
    let first = host.user("ada@example.com", "acme", Role::Owner).await.token;
    let log_in =
        async || host.log_in("ada@example.com", PASSWORD).await.expect(200)["token"].as_str().unwrap().to_owned();
    let (second, third) = (log_in().await, log_in().await);
    let is_over = async |token: &str| host.call("GET", "/v1/me", token, None).await.status == 401;

    let sessions = host.call("GET", "/v1/me/sessions?limit=2", &third, None).await.expect(200);
    let newest = &sessions["sessions"];
    assert_eq!((&newest[0]["is_current"], &newest[1]["is_current"]), (&json!(true), &json!(false)));
    let next = format!("/v1/me/sessions?limit=2&next_token={}", sessions["next_token"].as_str().unwrap());
    let rest = host.call("GET", &next, &third, None).await.expect(200);
    assert_eq!((rest["sessions"].as_array().unwrap().len(), rest.get("next_token")), (1, None));

    host.call("POST", "/v1/logout", &first, None).await.expect(204);
    let path = format!("/v1/me/sessions/{}", newest[1]["id"].as_str().unwrap());
    host.call("DELETE", &path, &third, None).await.expect(204);
    host.call("DELETE", &path, &third, None).await.refused(404, "not_found");
    assert!(is_over(&first).await && is_over(&second).await && !is_over(&third).await);
    host.pass(SignedDuration::from_hours(30 * 24));
    assert!(is_over(&third).await);
}

#[tokio::test]
async fn of_many_sessions_the_oldest_ends() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let (user, hash) = ada_of(&host).await;
    let sessions = &host.app.store.login_sessions;
    let begin = async || sessions.begin(&user.id, &hash, host.app.clock.now()).await.unwrap().unwrap();
    for _ in 0..99 {
        begin().await;
    }
    host.call("GET", "/v1/me", &ada.token, None).await.expect(200);

    let newest = begin().await;

    host.call("GET", "/v1/me", &ada.token, None).await.refused(401, "unauthorized");
    host.call("GET", "/v1/me", &newest.token, None).await.expect(200);
}

#[tokio::test]
async fn another_password_needs_the_current_one_and_ends_the_other_sessions() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await.token;
    let other = host.log_in("ada@example.com", PASSWORD).await.expect(200)["token"].as_str().unwrap().to_owned();
    let change = async |body| host.call("PATCH", "/v1/me", &ada, Some(body)).await;
    change(json!({"password": "another password"})).await.blames("current_password");
    change(json!({"password": "another password", "current_password": "guessed"})).await.blames("current_password");
    change(json!({"password": "short", "current_password": PASSWORD})).await.blames("password");

    let changed = change(json!({"password": "another password", "current_password": PASSWORD, "name": "Ada L."})).await;

    assert_eq!(changed.expect(200)["user"]["name"], "Ada L.");
    host.call("GET", "/v1/me", &other, None).await.refused(401, "unauthorized");
    host.log_in("ada@example.com", PASSWORD).await.refused(401, "unauthorized");
    host.log_in("ada@example.com", "another password").await.expect(200);
}

#[tokio::test]
async fn no_session_begins_with_a_password_that_was_changed_while_it_was_looked_at() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let (user, hash) = ada_of(&host).await;
    let change = json!({"password": "another password", "current_password": PASSWORD});
    host.call("PATCH", "/v1/me", &ada.token, Some(change)).await.expect(200);

    let begun = host.app.store.login_sessions.begin(&user.id, &hash, host.app.clock.now()).await.unwrap();

    assert!(begun.is_none());
}

#[tokio::test]
async fn what_a_session_gave_access_to_ends_with_it() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Member).await;
    let created = host.for_team("acme", "POST", "/v1/sandboxes", &ada.token, Some(json!({"template": "base"}))).await;
    created.expect(201);
    host.sync().await;
    let sessions = host.call("GET", "/v1/me/sessions", &ada.token, None).await.expect(200);
    let session = sessions["sessions"][0]["id"].as_str().unwrap().to_owned();

    host.call("POST", "/v1/logout", &ada.token, None).await.expect(204);
    host.sync().await;

    assert_eq!(host.agent.records().revocations, [[session]]);
}

#[tokio::test]
async fn no_secret_is_in_the_database() {
    let host = Host::new().await;
    let invitation = host.invitation("acme", Role::Owner).await;
    let accepted = host.accept(&invitation, "ada@example.com").await.expect(200);
    let token = accepted["session"]["token"].as_str().unwrap();

    for secret in [PASSWORD, token, &invitation] {
        assert!(!host.stores(secret).await, "{secret}");
    }
    let (user, hash) = ada_of(&host).await;
    assert!(hash.starts_with("$argon2id$") && user.email == "ada@example.com", "{hash}");
}
