//! Who comes to be linked to which user, and who may enter.

use sandpiper_accounts::Role;
use serde_json::json;

use super::{Browser, audited, me, refused, session, stage};
use crate::accounts::PASSWORD;
use crate::dashboard::leads_to;

#[tokio::test]
async fn who_is_linked_enters_whatever_becomes_of_the_address() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let browser = Browser::of(&host);
    session(&browser.sign_in("ada").await);

    for claims in [
        json!({"email": "ada@elsewhere.example", "email_verified": true}),
        json!({"email": "ada@example.com", "email_verified": false}),
        json!({"email": null, "email_verified": null}),
    ] {
        provider.person("ada", claims).await;
        let shown = me(&host, &session(&browser.sign_in("ada").await)).await;
        assert_eq!((&shown["user"]["id"], &shown["user"]["email"]), (&json!(ada.id), &json!("ada@example.com")));
        assert_eq!(shown["sign_in"]["identities"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn an_address_that_the_provider_gives_to_somebody_else_opens_nothing() {
    let Some((provider, host)) = stage(|settings| settings.sign_up = true).await else { return };
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    session(&Browser::of(&host).sign_in("ada").await);

    provider.person("newcomer", json!({"email": "ada@example.com", "email_verified": true})).await;
    let answer = Browser::of(&host).sign_in("newcomer").await;

    refused(&answer, 403, "is linked to somebody else");
    assert_eq!(audited(&host).await[0], (Some(ada.id), 403));
}

#[tokio::test]
async fn an_address_that_is_not_verified_opens_nothing() {
    let Some((provider, host)) = stage(|settings| settings.sign_up = true).await else { return };
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    for (name, claims) in [
        ("false", json!({"email": "ada@example.com", "email_verified": false})),
        ("nothing", json!({"email": "ada@example.com"})),
    ] {
        provider.person(name, claims).await;
        refused(&Browser::of(&host).sign_in(name).await, 403, "has not verified your e-mail address");
    }
    provider.person("none", json!({})).await;
    refused(&Browser::of(&host).sign_in("none").await, 403, "tells no e-mail address");

    let refusals = [(None, 403), (Some(ada.id.clone()), 403), (Some(ada.id), 403)];
    assert_eq!(audited(&host).await, refusals);
    assert_eq!(me(&host, &ada.token).await["sign_in"]["identities"], json!([]));
    let entries = host.call("GET", "/v1/audit?action=POST%20/v1/login/oidc", &ada.token, None).await.expect(200);
    assert_eq!(entries["entries"].as_array().unwrap().len(), 2, "she sees that somebody tried");
}

#[tokio::test]
async fn a_stranger_enters_only_where_strangers_may() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    provider.person("eve", json!({"email": "eve@example.com", "email_verified": true})).await;

    refused(&Browser::of(&host).sign_in("eve").await, 403, "Nobody here has your e-mail address");

    assert_eq!(audited(&host).await, [(None, 403)]);
    assert!(host.app.store.users.by_email(&"eve@example.com".parse().unwrap()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_user_without_a_password_keeps_a_way_in() {
    let Some((provider, host)) = stage(|settings| settings.sign_up = true).await else { return };
    provider.person("eve", json!({"email": "eve@example.com", "email_verified": true, "name": " Eve "})).await;
    let browser = Browser::of(&host);

    let token = session(&browser.sign_in("eve").await);

    let shown = me(&host, &token).await;
    assert_eq!((&shown["user"]["name"], &shown["team"]["slug"]), (&json!("Eve"), &json!("eve")));
    assert_eq!(shown["sign_in"]["has_password"], json!(false));
    for password in [PASSWORD, ""] {
        host.log_in("eve@example.com", password).await.refused(401, "unauthorized");
    }
    let path = format!("/v1/me/identities/{}", shown["sign_in"]["identities"][0]["id"].as_str().unwrap());
    host.call("DELETE", &path, &token, None).await.refused(409, "conflict");
    let stranger = host.user("ada@example.com", "acme", Role::Owner).await;
    host.call("DELETE", &path, &stranger.token, None).await.refused(404, "not_found");

    let other = session(&browser.sign_in("eve").await);
    let visitor = host.visitor(&token);
    let page = visitor.page("/dashboard/account").await;
    assert!(page.contains("You have none.") && !page.contains(r#"name="current""#), "{page}");
    leads_to(&visitor.send("/dashboard/-/password", &[("password", PASSWORD)]).await);
    host.call("GET", "/v1/me", &other, None).await.refused(401, "unauthorized");
    host.log_in("eve@example.com", PASSWORD).await.expect(200);
    let other = session(&browser.sign_in("eve").await);
    let id = path.rsplit('/').next().unwrap();
    leads_to(&visitor.send("/dashboard/-/identities/unlink", &[("id", id)]).await);
    host.call("GET", "/v1/me", &other, None).await.refused(401, "unauthorized");
    assert_eq!(me(&host, &token).await["sign_in"]["identities"], json!([]));
    // From now on the password is needed to change it.
    let change = json!({"password": "another password"});
    host.call("PATCH", "/v1/me", &token, Some(change)).await.blames("current_password");
}

#[tokio::test]
async fn only_addresses_of_allowed_domains_are_linked() {
    let change = |settings: &mut sandpiper_accounts::oidc::Settings| {
        settings.sign_up = true;
        settings.allowed_domains = vec!["example.com".to_owned()];
    };
    let Some((provider, host)) = stage(change).await else { return };
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    provider.person("eve", json!({"email": "eve@evil.test", "email_verified": true})).await;
    host.user("eve@evil.test", "acme", Role::Owner).await;

    session(&Browser::of(&host).sign_in("ada").await);
    refused(&Browser::of(&host).sign_in("eve").await, 403, "is of a domain that may not enter");
    let invitation = host.invitation("research", Role::Member).await;
    refused(&Browser::of(&host).join(&invitation, "eve").await, 403, "is of a domain that may not enter");
}

#[tokio::test]
async fn an_invitation_is_accepted_by_signing_in() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    provider.person("bo", json!({"email": "bo@example.com", "email_verified": true})).await;
    let invitation = host.invitation("research", Role::Member).await;
    assert!(Browser::of(&host).get("/dashboard/join", "").await.text.contains("Join with Example &#38; Co"));

    let token = session(&Browser::of(&host).join(&invitation, "bo").await);

    let bo = host.visitor(&token);
    assert!(bo.page("/dashboard/research/sandboxes").await.contains("bo@example.com"));
    assert_eq!(me(&host, &token).await["team"]["is_personal"], json!(true));
    let used = host.entrance("/dashboard/join/oidc", &[("token", &invitation)], &[]).await;
    assert_eq!(used.status.as_u16(), 404, "{}", used.text);

    // Somebody who is there already, and is no member twice.
    let second = host.invitation("second", Role::Viewer).await;
    session(&Browser::of(&host).join(&second, "bo").await);
    assert!(bo.page("/dashboard/second/sandboxes").await.contains("viewer"));
    let again = host.invitation("second", Role::Owner).await;
    refused(&Browser::of(&host).join(&again, "bo").await, 409, "a member of the team already");
    assert!(bo.page("/dashboard/second/sandboxes").await.contains("viewer"));
    let used_meanwhile = Browser::of(&host).join(&again, "bo").await;
    refused(&used_meanwhile, 409, "a member of the team already");
}
