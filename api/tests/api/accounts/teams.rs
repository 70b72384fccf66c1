//! Teams, members and invitations.

use jiff::SignedDuration;
use sandpiper_accounts::Role;
use serde_json::{Value, json};

use super::PASSWORD;
use crate::support::{Host, request, with_header};

#[tokio::test]
async fn a_request_is_for_the_team_that_it_names_or_the_personal_one() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Member).await;
    let list = async |query: &str| host.call("GET", &format!("/v1/sandboxes{query}"), &ada.token, None).await;
    let create = async |body: Value| host.call("POST", "/v1/sandboxes", &ada.token, Some(body)).await;

    let personal = create(json!({"template": "base"})).await.expect(201);
    let shared = create(json!({"template": "base", "team": "acme"})).await.expect(201);

    assert_eq!((&personal["team"], &shared["team"]), (&json!(ada.personal), &json!("acme")));
    let ids =
        |list: &Value| list["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&list("").await.expect(200)), [personal["id"].clone()]);
    assert_eq!(ids(&list("?team=acme").await.expect(200)), [shared["id"].clone()]);
    let path = format!("/v1/sandboxes/{}", shared["id"].as_str().unwrap());
    host.call("GET", &path, &ada.token, None).await.refused(404, "not_found");
    host.for_team("acme", "GET", &path, &ada.token, None).await.expect(200);
    list("?team=rival").await.refused(404, "not_found");
    create(json!({"template": "base", "team": "rival"})).await.refused(404, "not_found");
    // Two that differ.
    let both =
        host.for_team("acme", "POST", "/v1/sandboxes", &ada.token, Some(json!({"template": "base", "team": "ada"})));
    both.await.refused(404, "not_found");
}

#[tokio::test]
async fn a_founder_owns_the_team_and_invites_others() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Viewer).await;
    let call = async |method: &str, path: &str, body| host.call(method, path, &ada.token, body).await;
    let team = call("POST", "/v1/teams", Some(json!({"slug": "newcomers"}))).await.expect(201);
    assert_eq!((&team["role"], &team["plan"], &team["is_personal"]), (&json!("owner"), &json!("basic"), &json!(false)));
    call("POST", "/v1/teams", Some(json!({"slug": "newcomers"}))).await.refused(409, "conflict");
    call("POST", "/v1/teams", Some(json!({"slug": "-"}))).await.blames("slug");
    let slugs: Vec<_> = call("GET", "/v1/teams", None).await.expect(200)["teams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|team| team["slug"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(slugs, ["acme", "ada", "newcomers"]);

    let path = "/v1/teams/newcomers/invitations";
    let invited = call("POST", path, Some(json!({"role": "admin", "email": "Grace@example.com"}))).await.expect(201);
    let token = invited["token"].as_str().unwrap();
    let listed = call("GET", path, None).await.expect(200);
    assert_eq!(
        (&listed["invitations"][0]["email"], listed["invitations"][0].get("token")),
        (&json!("grace@example.com"), None)
    );
    host.accept(token, "mallory@example.com").await.refused(403, "insufficient_scope");
    let accepted = host.accept(token, "grace@example.com").await.expect(200);

    assert_eq!((&accepted["team"]["slug"], &accepted["team"]["role"]), (&json!("newcomers"), &json!("admin")));
    host.accept(token, "grace@example.com").await.refused(404, "not_found");
    let members = call("GET", "/v1/teams/newcomers/members", None).await.expect(200);
    let roles: Vec<_> = members["members"].as_array().unwrap().iter().map(|member| &member["role"]).collect();
    assert_eq!(roles, [&json!("owner"), &json!("admin")]);
}

#[tokio::test]
async fn who_is_there_already_accepts_with_a_session() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Member).await;
    let token = host.invitation("other", Role::Viewer).await;
    // An invitation outlives what comes of nothing.
    host.accept(&token, "ada@example.com").await.refused(409, "conflict");

    let accept = async || host.call("POST", "/v1/invitations/accept", &ada.token, Some(json!({"token": token}))).await;
    let accepted = accept().await.expect(200);

    assert_eq!((&accepted["team"]["slug"], &accepted["team"]["role"]), (&json!("other"), &json!("viewer")));
    assert_eq!(accepted.get("session"), None);
    accept().await.refused(404, "not_found");
    let again = host.invitation("other", Role::Owner).await;
    let again = host.call("POST", "/v1/invitations/accept", &ada.token, Some(json!({"token": again}))).await;
    again.refused(409, "conflict");
    let key = host.call("POST", "/v1/invitations/accept", &host.write, Some(json!({"token": token}))).await;
    key.refused(403, "insufficient_scope");
}

#[tokio::test]
async fn an_invitation_is_over_after_seven_days_or_when_it_is_withdrawn() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let path = "/v1/teams/acme/invitations";
    let invite = async || host.call("POST", path, &ada.token, Some(json!({"role": "member"}))).await.expect(201);
    let (withdrawn, old) = (invite().await, invite().await);
    let token = |invitation: &Value| invitation["token"].as_str().unwrap().to_owned();

    let of_one = format!("{path}/{}", withdrawn["id"].as_str().unwrap());
    host.call("DELETE", &of_one, &ada.token, None).await.expect(204);
    host.call("DELETE", &of_one, &ada.token, None).await.refused(404, "not_found");
    host.accept(&token(&withdrawn), "b@example.com").await.refused(404, "not_found");
    host.pass(SignedDuration::from_hours(7 * 24));

    host.accept(&token(&old), "b@example.com").await.refused(404, "not_found");
    host.accept("spi_nonsense", "b@example.com").await.refused(404, "not_found");
    assert_eq!(host.call("GET", path, &ada.token, None).await.expect(200)["invitations"], json!([]));
}

#[tokio::test]
async fn who_is_removed_or_may_do_less_is_signed_out() {
    let host = Host::new().await;
    let owner = host.user("owner@example.com", "acme", Role::Owner).await;
    for body in [Some(json!({"role": "viewer"})), None] {
        let email = if body.is_some() { "a@example.com" } else { "b@example.com" };
        let member = host.user(email, "acme", Role::Member).await;
        let path = format!("/v1/teams/acme/members/{}", member.id);
        let method = if body.is_some() { "PATCH" } else { "DELETE" };
        let answer = host.call(method, &path, &owner.token, body.clone()).await;
        assert!(answer.status.is_success(), "{}", answer.text);

        host.call("GET", "/v1/me", &member.token, None).await.refused(401, "unauthorized");

        let token = host.log_in(email, PASSWORD).await.expect(200)["token"].as_str().unwrap().to_owned();
        let sandbox = Some(json!({"template": "base", "team": "acme"}));
        let (status, code) = if body.is_some() { (403, "insufficient_scope") } else { (404, "not_found") };
        host.call("POST", "/v1/sandboxes", &token, sandbox).await.refused(status, code);
    }
}

#[tokio::test]
async fn who_is_removed_has_left_no_way_back() {
    let host = Host::new().await;
    let owner = host.user("owner@example.com", "acme", Role::Owner).await;
    let admin = host.user("admin@example.com", "acme", Role::Admin).await;
    let path = "/v1/teams/acme/invitations";
    let invited = host.call("POST", path, &admin.token, Some(json!({"role": "admin"}))).await.expect(201);

    host.call("DELETE", &format!("/v1/teams/acme/members/{}", admin.id), &owner.token, None).await.expect(204);

    host.accept(invited["token"].as_str().unwrap(), "again@example.com").await.refused(404, "not_found");
}

#[tokio::test]
async fn no_team_is_called_like_another_ones_id() {
    let host = Host::new().await;
    let ada = host.user("ada@example.com", "acme", Role::Viewer).await;
    let team = host.call("GET", "/v1/teams/acme", &ada.token, None).await.expect(200);

    let founded = host.call("POST", "/v1/teams", &ada.token, Some(json!({"slug": team["id"]}))).await;

    founded.blames("slug");
}

#[tokio::test]
async fn the_same_idempotency_key_of_two_users_is_not_the_same_request() {
    let host = Host::new().await;
    let (ada, grace) = (
        host.user("ada@example.com", "acme", Role::Owner).await,
        host.user("grace@example.com", "acme", Role::Owner).await,
    );
    let rename = async |token: &str| {
        let mut order = request("PATCH", "/v1/me", token, Some(json!({"name": "X"})));
        order = with_header(order, "idempotency-key", "one");
        host.send(with_header(order, "sandpiper-team", "acme")).await
    };

    assert_eq!(rename(&ada.token).await.expect(200)["user"]["email"], "ada@example.com");
    rename(&grace.token).await.refused(422, "idempotency_key_reused");
}

#[tokio::test]
async fn a_team_keeps_an_owner_and_a_user_the_personal_team() {
    let host = Host::new().await;
    let owner = host.user("owner@example.com", "acme", Role::Owner).await;
    let admin = host.user("admin@example.com", "acme", Role::Admin).await;
    let of = |user: &super::TestUser| format!("/v1/teams/acme/members/{}", user.id);
    let role = |role: &str| Some(json!({"role": role}));
    host.call("PATCH", &of(&owner), &owner.token, role("admin")).await.refused(409, "conflict");
    host.call("DELETE", &of(&owner), &owner.token, None).await.refused(409, "conflict");
    let personal = format!("/v1/teams/{}/members/{}", owner.personal, owner.id);
    host.call("DELETE", &personal, &owner.token, None).await.refused(409, "conflict");
    // Owners are the business of owners.
    host.call("PATCH", &of(&admin), &admin.token, role("owner")).await.refused(403, "insufficient_scope");
    host.call("PATCH", &of(&owner), &admin.token, role("viewer")).await.refused(403, "insufficient_scope");
    host.call("DELETE", &of(&owner), &admin.token, None).await.refused(403, "insufficient_scope");
    let invitation = host.call("POST", "/v1/teams/acme/invitations", &admin.token, role("owner")).await;
    invitation.refused(403, "insufficient_scope");

    host.call("PATCH", &of(&admin), &owner.token, role("owner")).await.expect(200);
    host.call("DELETE", &of(&owner), &owner.token, None).await.expect(204);

    let members = host.call("GET", "/v1/teams/acme/members", &admin.token, None).await.expect(200);
    assert_eq!(members["members"].as_array().unwrap().len(), 1);
    host.call("GET", "/v1/teams/acme/members", &owner.token, None).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn personal_teams_of_like_addresses_are_apart() {
    let host = Host::new().await;
    let [one, other, odd] = ["ada@example.com", "ada@example.org", "1@example.com"];
    let mut slugs = Vec::new();
    for email in [one, other, odd] {
        slugs.push(host.user(email, "acme", Role::Viewer).await.personal);
    }

    assert_eq!((slugs[0].as_str(), slugs[2].as_str()), ("ada", "personal"));
    assert!(slugs[1].starts_with("ada-") && slugs[1].len() == 12, "{slugs:?}");
}
