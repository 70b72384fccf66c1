//! `/operator` of the sandbox side: teams, what they used, and the audit of all.

use std::collections::BTreeSet;

use sandpiper_accounts::Role;
use serde_json::{Value, json};

use crate::accounts::PASSWORD;
use crate::support::Host;
use crate::support::shop::{Shop, operator_key};

/// Method, path, body, and the status that an operator gets.
type Operation = (&'static str, &'static str, Option<fn() -> Value>, u16);

/// All of them. A new operation has to be added here, or `every_operation_is_listed` fails.
const OPERATIONS: [Operation; 9] = [
    ("GET", "/operator/v1/teams", None, 200),
    ("POST", "/operator/v1/teams", Some(|| json!({"slug": "fresh", "plan": "pro"})), 201),
    ("GET", "/operator/v1/teams/{team}", None, 200),
    ("PATCH", "/operator/v1/teams/{team}", Some(|| json!({"plan": "enterprise"})), 200),
    ("POST", "/operator/v1/teams/{team}/disable", Some(|| json!({"reason": "x"})), 200),
    ("POST", "/operator/v1/teams/{team}/enable", None, 200),
    ("POST", "/operator/v1/teams/{team}/invitations", Some(|| json!({"role": "owner"})), 201),
    ("GET", "/operator/v1/usage", None, 200),
    ("GET", "/operator/v1/audit", None, 200),
];

/// Method and path of all of them.
pub(crate) fn operations() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPERATIONS.iter().map(|(method, path, ..)| (*method, *path))
}

fn path(template: &str) -> String {
    let range = "?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z";
    let query = if template.ends_with("/usage") { range } else { "" };
    template.replace("{team}", "acme") + query
}

fn slugs(page: &Value) -> Vec<&str> {
    page["teams"].as_array().unwrap().iter().map(|team| team["slug"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_operation_is_for_operators_and_for_nobody_else() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let owner = host.user("ada@example.com", "acme", Role::Owner).await;
    let unknown = format!("opk_{}", "0".repeat(40));
    let revoked = operator_key(&host).await;
    let newest = host.app.store.operator_keys.all().await.unwrap().pop().unwrap();
    assert!(host.app.store.operator_keys.revoke(&newest.id, jiff::Timestamp::now()).await.unwrap());
    let others = ["", "nonsense", &unknown, &revoked, &host.read, &host.write, &host.foreign, &owner.token];
    for (method, template, body, status) in OPERATIONS {
        let path = path(template);
        let send = async |key: &str, body| host.call(method, &path, key, body).await;
        for key in others.into_iter().chain([&*shop.live.public, &shop.live.secret]) {
            send(key, body.map(|body| body())).await.refused(401, "unauthorized");
        }
        let answer = send(&shop.operator, body.map(|body| body())).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {}", answer.text);
        let more = if path.contains('?') { "&limt=1" } else { "?limt=1" };
        host.call(method, &format!("{path}{more}"), &shop.operator, body.map(|body| body())).await.blames("limt");
    }
    // What one was refused has not happened.
    assert_eq!(host.app.store.teams.by_slug("acme").await.unwrap().unwrap().plan.as_str(), "enterprise");
}

#[tokio::test]
async fn a_team_is_made_given_an_owner_and_another_plan() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let call = async |method: &str, path: &str, body| host.call(method, path, &operator, body).await;
    let made = call("POST", "/operator/v1/teams", Some(json!({"slug": "research", "plan": "basic"}))).await;
    assert_eq!(made.header("location"), Some("/operator/v1/teams/research"));
    let made = made.expect(201);
    assert_eq!((&made["members"], &made["quota"]["limits"]["sandboxes"]), (&json!(0), &json!(10)));
    call("POST", "/operator/v1/teams", Some(json!({"slug": "research", "plan": "pro"}))).await.refused(409, "conflict");
    call("POST", "/operator/v1/teams", Some(json!({"slug": "-", "plan": "pro"}))).await.blames("slug");
    call("POST", "/operator/v1/teams", Some(json!({"slug": "x", "plan": "gold"}))).await.blames("plan");

    let path = "/operator/v1/teams/research";
    let invited = call("POST", &format!("{path}/invitations"), Some(json!({"role": "owner"}))).await.expect(201);
    let accept = json!({"token": invited["token"], "email": "ada@example.com", "name": "Ada", "password": PASSWORD});
    let session = host.call("POST", "/v1/invitations/accept", "", Some(accept.clone())).await;
    assert_eq!(session.status.as_u16(), 401, "an empty credential is none: {}", session.text);
    let accepted = host.enter("/v1/invitations/accept", accept).await.expect(200);
    let token = accepted["session"]["token"].as_str().unwrap();
    let sandbox = json!({"template": "base", "team": "research"});
    host.call("POST", "/v1/sandboxes", token, Some(sandbox)).await.expect(201);
    call("PATCH", path, Some(json!({"plan": "pro"}))).await.expect(200);

    let id = made["id"].as_str().unwrap();
    for named in ["research", id] {
        let shown = call("GET", &format!("/operator/v1/teams/{named}"), None).await.expect(200);
        assert_eq!((&shown["plan"], &shown["members"]), (&json!("pro"), &json!(1)));
        let quota = &shown["quota"];
        assert_eq!((&quota["limits"]["sandboxes"], &quota["usage"]["sandboxes"]), (&json!(100), &json!(1)));
    }
    let limits = host.call("GET", "/v1/sandbox_limits?team=research", token, None).await.expect(200);
    assert_eq!(limits["plan"], "pro");
    call("GET", "/operator/v1/teams/nobodys", None).await.refused(404, "not_found");
    call("PATCH", "/operator/v1/teams/nobodys", Some(json!({"plan": "pro"}))).await.refused(404, "not_found");
    let personal = call("POST", "/operator/v1/teams/ada/invitations", Some(json!({"role": "viewer"}))).await;
    personal.refused(409, "conflict");
}

#[tokio::test]
async fn lists_of_teams_are_filtered_and_have_each_once() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let list =
        async |query: &str| host.call("GET", &format!("/operator/v1/teams?{query}"), &operator, None).await.expect(200);
    for name in ["lab-1", "lab-2", "lab-3"] {
        let body = json!({"slug": name, "plan": "enterprise"});
        host.call("POST", "/operator/v1/teams", &operator, Some(body)).await.expect(201);
    }
    assert_eq!(slugs(&list("plan=enterprise").await), ["lab-3", "lab-2", "lab-1"]);
    assert_eq!(slugs(&list("personal=true").await), ["ada"]);
    assert_eq!(slugs(&list("slug_prefix=lab-&plan=pro").await), [""; 0]);
    assert_eq!(slugs(&list("slug_prefix=lab-2").await), ["lab-2"]);
    assert_eq!(slugs(&list("slug_prefix=%25").await), [""; 0]);
    let (mut seen, mut token) = (BTreeSet::new(), String::new());
    loop {
        let page = list(&format!("limit=2&personal=false{token}")).await;
        for slug in slugs(&page) {
            assert!(seen.insert(slug.to_owned()), "{slug} is there twice");
        }
        let Some(next) = page["next_token"].as_str() else { break };
        token = format!("&next_token={next}");
    }
    assert_eq!(seen, ["acme", "lab-1", "lab-2", "lab-3", "rival"].map(str::to_owned).into());
    for (query, field) in
        [("plan=gold", "plan"), ("personal=yes", "personal"), ("limit=0", "limit"), ("team=acme", "team")]
    {
        host.call("GET", &format!("/operator/v1/teams?{query}"), &operator, None).await.blames(field);
    }
}

#[tokio::test]
async fn the_audit_of_all_has_teams_and_operators_and_is_told_apart() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let sandbox = host.sandbox().await;
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    let plan = Some(json!({"plan": "enterprise"}));
    host.call("PATCH", "/operator/v1/teams/acme", &operator, plan).await.expect(200);
    let find = async |query: &str| {
        let path = format!("/operator/v1/audit?{query}");
        host.call("GET", &path, &operator, None).await.expect(200)["entries"].as_array().unwrap().clone()
    };
    let acme = host.app.store.teams.by_slug("acme").await.unwrap().unwrap().id.to_string();

    let creates = find("action=POST%20/v1/sandboxes").await;

    assert_eq!(creates.len(), 2, "{creates:?}");
    let of_acme = find("team=acme&action=POST%20/v1/sandboxes").await;
    assert_eq!((of_acme.len(), &of_acme[0]["resource"], &of_acme[0]["team"]), (1, &json!(sandbox), &json!(acme)));
    let of_operators = find("team=operator").await;
    let (action, resource) = (&of_operators[0]["action"], &of_operators[0]["resource"]);
    assert_eq!((action, resource), (&json!("PATCH /operator/v1/teams/{team}"), &json!(acme)));
    assert!(of_operators[0]["key"].as_str().unwrap().starts_with("opk"));
    let first = host.call("GET", "/operator/v1/audit?limit=1", &operator, None).await.expect(200);
    assert!(first["next_token"].is_string());
    host.call("GET", "/operator/v1/audit?team=nobodys", &operator, None).await.refused(404, "not_found");
    host.call("GET", "/operator/v1/audit?from=yesterday", &operator, None).await.blames("from");
}

#[tokio::test]
async fn exports_that_make_no_sense_are_refused_and_few_are_made_at_a_time() {
    let host = Host::new().await;
    let operator = operator_key(&host).await;
    let call = async |query: &str| host.call("GET", &format!("/operator/v1/usage?{query}"), &operator, None).await;
    let range = "from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z";
    for (query, field) in [
        ("to=2026-02-01T00:00:00Z", "from"),
        ("from=2026-02-01T00:00:00Z", "to"),
        ("from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        (&format!("{range}&kind=money"), "kind"),
        (&format!("{range}&format=xml"), "format"),
        (&format!("{range}&{range}"), "from"),
    ] {
        call(query).await.blames(field);
    }
    call(&format!("{range}&team=nobodys")).await.refused(404, "not_found");
    let places = host.app.exports.clone().try_acquire_many_owned(2).unwrap();
    call(range).await.refused(429, "rate_limited");
    drop(places);
    let csv = call(&format!("{range}&format=csv")).await;
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(csv.text.lines().count(), 1);
}
