//! What forms do, and for whom.

use sandpiper_accounts::Role;
use serde_json::json;

use super::{Visitor, hidden, leads_to};
use crate::accounts::PASSWORD;
use crate::support::Host;

/// Who may send a form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Needs {
    Member,
    Admin,
}

/// Who may send it, where to, and its fields.
type Form = (Needs, &'static str, &'static [(&'static str, &'static str)]);

/// Every form of a team, with something that is no thing of it: who may not is refused before it is looked for.
const FORMS: [Form; 27] = [
    (Needs::Member, "new", &[("template", "nonsense"), ("internet", "yes")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "pause")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "stop")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "resume")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "checkpoint")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "fork")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "extend")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "capture")]),
    (Needs::Member, "sandboxes/sbx0/do", &[("action", "delete")]),
    (Needs::Member, "sandboxes/sbx0/network", &[("internet", "yes")]),
    (Needs::Member, "sandboxes/sbx0/ports", &[("port", "80")]),
    (Needs::Member, "sandboxes/sbx0/files/do?path=/a", &[("action", "folder"), ("name", "b")]),
    (Needs::Member, "sandboxes/sbx0/files/do?path=/a", &[("action", "delete")]),
    (Needs::Member, "volumes/vol0/files/do?path=/a", &[("action", "rename"), ("name", "b")]),
    (Needs::Member, "checkpoints/ckp0/do", &[("action", "start")]),
    (Needs::Member, "checkpoints/ckp0/do", &[("action", "delete")]),
    (Needs::Member, "volumes/vol0/delete", &[]),
    (Needs::Admin, "keys/key0/revoke", &[]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "test")]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "enable")]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "disable")]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "change"), ("url", "https://hooks.example.test/")]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "rotate")]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "redeliver"), ("delivery", "dlv_0")]),
    (Needs::Admin, "webhooks/whk0/do", &[("action", "delete")]),
    (Needs::Admin, "members/usr0/do", &[("action", "role"), ("role", "viewer")]),
    (Needs::Admin, "invitations/inv0/withdraw", &[]),
];

#[tokio::test]
async fn every_form_is_done_for_every_role_that_may_send_it() {
    let host = Host::new().await;
    for role in [Role::Viewer, Role::Member, Role::Admin] {
        let user = host.user(&format!("{role}@example.com"), "acme", role).await;
        let visitor = host.visitor(&user.token);
        let word = visitor.word().await;
        for (needs, path, fields) in FORMS {
            let status = visitor.send_as(&word, &format!("/dashboard/acme/{path}"), fields).await.status.as_u16();
            let may = role >= if needs == Needs::Admin { Role::Admin } else { Role::Member };
            let expected: &[u16] = if may { &[400, 404] } else { &[403] };
            assert!(expected.contains(&status), "{path} {fields:?} as {role}: {status}");
        }
        for (needs, path, fields) in [
            (Needs::Member, "volumes", vec![("name", format!("of-{role}"))]),
            (Needs::Admin, "keys", vec![("name", format!("of {role}")), ("capability", "read".to_owned())]),
            (Needs::Admin, "members", vec![("role", "viewer".to_owned())]),
            (Needs::Admin, "webhooks", vec![("url", "https://hooks.example.test/".to_owned())]),
        ] {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let status = visitor.send_as(&word, &format!("/dashboard/acme/{path}"), &fields).await.status.as_u16();
            let may = role >= if needs == Needs::Admin { Role::Admin } else { Role::Member };
            assert_eq!(status < 400, may, "{path} as {role}: {status}");
            assert!(may || status == 403, "{path} as {role}: {status}");
        }
    }
}

#[tokio::test]
async fn what_came_from_what_is_in_it_also_where_it_is_gone() {
    let host = Host::new().await;
    let ada = member(&host).await;
    let first = host.sandbox().await;
    let checkpoint = host.checkpoint(&first, json!({"name": "one"})).await["id"].as_str().unwrap().to_owned();
    let second = host.create(json!({"snapshot_id": checkpoint})).await.expect(201)["id"].as_str().unwrap().to_owned();
    host.checkpoint(&second, json!({"name": "two"})).await;
    let other = host.sandbox().await;
    host.checkpoint(&other, json!({"name": "of another"})).await;
    host.call("DELETE", &format!("/v1/sandboxes/{second}"), &host.write, None).await.expect(204);
    let text = ada.page(&format!("/dashboard/acme/checkpoints?sandbox={second}")).await;
    let places: Vec<_> = [&first, "<strong>one</strong>", &second, "<strong>two</strong>"]
        .map(|part| {
            text.split_once("class=\"lineage\"").unwrap().1.find(part).unwrap_or_else(|| panic!("{part}: {text}"))
        })
        .into();
    assert!(places.is_sorted(), "{places:?}");
    assert!(
        text.contains(&format!("<code>{second}</code> <small>gone</small>")) && !text.contains("of another"),
        "{text}"
    );
    assert_eq!(text.matches("<ul>").count() + text.matches("<ul ").count(), text.matches("</ul>").count());
    assert!(ada.page("/dashboard/acme/checkpoints").await.contains("of another"));
}

async fn member(host: &Host) -> Visitor<'_> {
    let user = host.user("ada@example.com", "acme", Role::Member).await;
    host.visitor(&user.token)
}

#[tokio::test]
async fn a_sandbox_lives_its_life_by_forms() {
    let host = Host::new().await;
    let ada = member(&host).await;
    let fields = [
        ("template", "base"),
        ("minutes", "10"),
        ("pause", "yes"),
        ("allow_out", "*.example.com:443\n10.1.2.3"),
        ("metadata", "purpose = tests\nnote=a=b"),
        ("envs", "A=1"),
        ("capture_output", "yes"),
    ];
    let started = ada.send("/dashboard/acme/new", &fields).await;
    let page = leads_to(&started).to_owned();
    let id = page.rsplit_once('/').unwrap().1.to_owned();
    let sandbox = host.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    assert_eq!((&sandbox["timeout"], &sandbox["lifecycle"]["on_timeout"]), (&json!(600), &json!("pause")));
    assert_eq!(sandbox["metadata"], json!({"purpose": "tests", "note": "a=b"}));
    assert_eq!(sandbox["network"]["allow_internet_access"], json!(false));
    assert_eq!(sandbox["network"]["allow_out"], json!(["*.example.com:443", "10.1.2.3"]));
    assert_eq!(sandbox["capture_output"], true);

    let act = async |fields: &[(&str, &str)]| leads_to(&ada.send(&format!("{page}/do"), fields).await).to_owned();
    let state = async || host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"].clone();
    assert_eq!(act(&[("action", "extend"), ("minutes", "20")]).await, page);
    assert!(ada.page(&page).await.contains("Keep no more of it"));
    assert_eq!(act(&[("action", "capture")]).await, page);
    assert_eq!(host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["capture_output"], false);
    let off = ada.page(&page).await;
    assert!(off.contains("Keep it from now on") && off.contains("name=\"capture_output\""), "{off}");
    assert_eq!(act(&[("action", "capture"), ("capture_output", "yes")]).await, page);
    assert_eq!(host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["capture_output"], true);
    assert_eq!(act(&[("action", "checkpoint"), ("name", "one"), ("memory", "yes")]).await, page);
    assert_eq!(act(&[("action", "pause")]).await, page);
    assert_eq!(state().await, "stopped");
    assert!(ada.page(&page).await.contains(">Resume<"));
    assert_eq!(act(&[("action", "resume")]).await, page);
    assert_eq!(state().await, "ready");
    assert_eq!(act(&[("action", "fork"), ("count", "2")]).await, "/dashboard/acme/sandboxes");
    assert_eq!(leads_to(&ada.send(&format!("{page}/ports"), &[("port", "8000"), ("public", "yes")]).await), page);
    assert!(ada.page(&page).await.contains("Hide port 8000"));
    leads_to(&ada.send(&format!("{page}/ports"), &[("port", "8000"), ("hide", "yes")]).await);
    assert!(!ada.page(&page).await.contains("Hide port 8000"));
    let replaced = ada.send(&format!("{page}/network"), &[("internet", "yes"), ("deny_out", "10.0.0.0/8")]).await;
    assert_eq!(leads_to(&replaced), format!("{page}/network"));
    let network = &host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["network"];
    assert_eq!((&network["allow_internet_access"], &network["deny_out"]), (&json!(true), &json!(["10.0.0.0/8"])));

    let checkpoints = host.get("/v1/checkpoints").await.expect(200);
    let checkpoint =
        format!("/dashboard/acme/checkpoints/{}/do", checkpoints["checkpoints"][0]["id"].as_str().unwrap());
    let tree = ada.page("/dashboard/acme/checkpoints").await;
    assert!(tree.contains("<strong>one</strong>") && tree.contains(&format!("aria-label=\"Fork {id}\"")), "{tree}");
    assert!(
        leads_to(&ada.send(&checkpoint, &[("action", "start")]).await).starts_with("/dashboard/acme/sandboxes/sbx")
    );
    leads_to(&ada.send(&checkpoint, &[("action", "delete")]).await);
    assert_eq!(act(&[("action", "delete")]).await, "/dashboard/acme/sandboxes");
    assert_eq!(ada.get(&page).await.status.as_u16(), 404);
}

#[tokio::test]
async fn a_policy_is_explained_before_it_is_in_force() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let explain = format!("/dashboard/acme/sandboxes/{id}/network/explain");
    let ada = member(&host).await;
    let entered = [
        ("policy", "entered"),
        ("allow_out", "*.example.org\n198.51.100.0/24"),
        ("destinations", "https://a.example.org/x\n\n203.0.113.9:22\nudp:198.51.100.7:53"),
    ];
    let text = ada.send(&explain, &entered).await.text;
    let of = |verdict: &str, destination: &str, rule: &str| {
        format!("<strong>{verdict}</strong> <code>{destination}</code> <small>by {rule}</small>")
    };
    for decision in [
        of("allowed", "tcp:a.example.org:443", "allow_out &#34;*.example.org&#34;"),
        of("denied", "tcp:203.0.113.9:22", "allow_internet_access false"),
        of("allowed", "udp:198.51.100.7:53", "allow_out &#34;198.51.100.0/24&#34;"),
        "not in force".to_owned(),
    ] {
        assert!(text.contains(&decision), "{decision}: {text}");
    }
    // What was entered stays in the form, and nothing was done.
    assert!(text.contains("*.example.org\n198.51.100.0/24") && text.contains("203.0.113.9:22\n"));
    assert!(host.agent.records().policy_orders.is_empty());
    let wrong =
        ada.send(&explain, &[("policy", "entered"), ("allow_out", "not a host"), ("destinations", "a b")]).await;
    assert_eq!(wrong.status.as_u16(), 200, "{}", wrong.text);
    assert!(wrong.text.contains("allow_out[0]") && wrong.text.contains("destination[0]"), "{}", wrong.text);

    // Who may only read asks about the policy that there is.
    let viewer = host.user("vi@example.com", "acme", Role::Viewer).await;
    let seen = host.visitor(&viewer.token).send(&explain, &[("destinations", "example.com")]).await.text;
    assert!(seen.contains(&of("allowed", "tcp:example.com:443", "allow_internet_access true")), "{seen}");
}

#[tokio::test]
async fn a_form_that_is_sent_twice_is_done_once() {
    let host = Host::new().await;
    let ada = member(&host).await;
    let page = ada.page("/dashboard/acme/new").await;
    let main = page.split_once("<main").unwrap().1;
    let (word, once) = (hidden(main, "form").unwrap(), hidden(main, "once").unwrap());
    let fields = [("once", once.as_str()), ("template", "base"), ("minutes", "5"), ("internet", "yes")];
    let first = ada.send_as(&word, "/dashboard/acme/new", &fields).await;
    let second = ada.send_as(&word, "/dashboard/acme/new", &fields).await;
    assert_eq!(leads_to(&first), leads_to(&second));
    assert_eq!(host.usage().await["sandboxes"], 1);
}

#[tokio::test]
async fn the_code_of_a_form_is_shown_and_nothing_is_started() {
    let host = Host::new().await;
    let ada = member(&host).await;
    let fields = [("template", "base"), ("minutes", "7"), ("metadata", "note=it's"), ("show_code", "yes")];
    let answer = ada.send("/dashboard/acme/new", &fields).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert!(answer.text.contains("--timeout 420 --no-internet") && answer.text.contains("allowInternetAccess: false"));
    assert!(answer.text.contains("note=it&#39;s"), "what was entered stays in the form");
    assert_eq!(host.usage().await["sandboxes"], 0);
}

#[tokio::test]
async fn what_the_api_refuses_is_said_on_a_page() {
    let host = Host::new().await;
    let ada = member(&host).await;
    for (fields, word) in [
        (vec![("template", "nonsense")], "nonsense"),
        (vec![("template", "base"), ("minutes", "many")], "is no number"),
        (vec![("template", "base"), ("minutes", "99999999")], "timeout"),
        (vec![("template", "base"), ("metadata", "nothing")], "name=value"),
        (vec![("template", "base"), ("allow_out", "not a host")], "allow_out"),
    ] {
        let answer = ada.send("/dashboard/acme/new", &fields).await;
        assert!(answer.status.is_client_error(), "{fields:?}");
        assert!(answer.text.contains(word), "{fields:?}: {}", answer.text);
    }
    let unknown = ada.send("/dashboard/acme/sandboxes/sbx0/do", &[("action", "explode")]).await;
    assert_eq!(unknown.status.as_u16(), 400);
}

#[tokio::test]
async fn a_key_is_shown_once_works_and_is_revoked() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Admin).await;
    let ada = host.visitor(&user.token);
    let made = ada.send("/dashboard/acme/keys", &[("name", "ci"), ("capability", "read"), ("days", "30")]).await;
    assert_eq!(made.status.as_u16(), 200, "{}", made.text);
    let key = made.text.split("<code>spk_").nth(1).unwrap().split('<').next().unwrap();
    let key = format!("spk_{key}");
    host.call("GET", "/v1/sandboxes", &key, None).await.expect(200);
    host.call("POST", "/v1/sandboxes", &key, Some(json!({}))).await.refused(403, "insufficient_scope");
    let list = ada.page("/dashboard/acme/keys").await;
    assert!(!list.contains(&key) && list.contains("Revoke ci"));
    let keys = host.call("GET", "/v1/api_keys?team=acme", &user.token, None).await.expect(200);
    let id = keys["api_keys"].as_array().unwrap().iter().find(|key| key["name"] == "ci").unwrap()["id"].clone();
    leads_to(&ada.send(&format!("/dashboard/acme/keys/{}/revoke", id.as_str().unwrap()), &[]).await);
    host.call("GET", "/v1/sandboxes", &key, None).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn a_webhook_is_made_tried_changed_and_deleted() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Admin).await;
    let ada = host.visitor(&user.token);
    let fields =
        [("url", "https://hooks.example.test/"), ("name", "on call"), ("types", "sandbox.crashed\nvolume.lost\n")];
    let made = ada.send("/dashboard/acme/webhooks", &fields).await;
    assert_eq!(made.status.as_u16(), 200, "{}", made.text);
    let secret = |text: &str| text.split("<code>whsec_").nth(1).map(|rest| rest.split('<').next().unwrap().to_owned());
    let first = secret(&made.text).unwrap();
    let list = ada.page("/dashboard/acme/webhooks").await;
    assert!(secret(&list).is_none() && list.contains("sandbox.crashed, volume.lost"), "{list}");
    let webhooks = host.get("/v1/webhooks").await.expect(200);
    let page = format!("/dashboard/acme/webhooks/{}", webhooks["webhooks"][0]["id"].as_str().unwrap());
    let act = async |fields: &[(&str, &str)]| leads_to(&ada.send(&format!("{page}/do"), fields).await).to_owned();

    assert_eq!(act(&[("action", "test")]).await, page);
    assert!(ada.page(&page).await.contains("webhook.test"));
    assert_eq!(act(&[("action", "disable")]).await, page);
    let shown = ada.page(&page).await;
    assert!(shown.contains("cancelled") && shown.contains(">Enable<") && !shown.contains("Send again"));
    assert_eq!(act(&[("action", "enable")]).await, page);
    let shown = ada.page(&page).await;
    let delivery =
        hidden(shown.split_once("Send again").unwrap().0.rsplit_once("<td>").unwrap().1, "delivery").unwrap();
    assert_eq!(act(&[("action", "redeliver"), ("delivery", &delivery)]).await, page);
    assert!(ada.page(&page).await.contains("<small>again</small>"));
    assert_eq!(act(&[("action", "change"), ("url", "https://hooks.example.test/other")]).await, page);
    let changed = &host.get("/v1/webhooks").await.expect(200)["webhooks"][0];
    assert_eq!((&changed["url"], &changed["types"]), (&json!("https://hooks.example.test/other"), &json!([])));
    let rotated = ada.send(&format!("{page}/do"), &[("action", "rotate")]).await;
    assert!(secret(&rotated.text).is_some_and(|second| second != first));
    assert_eq!(act(&[("action", "delete")]).await, "/dashboard/acme/webhooks");
    assert_eq!(ada.get(&page).await.status.as_u16(), 404);
}

#[tokio::test]
async fn members_come_by_a_link_get_roles_and_go() {
    let host = Host::new().await;
    let owner = host.user("ada@example.com", "research", Role::Owner).await;
    let ada = host.visitor(&owner.token);
    let invited = ada.send("/dashboard/research/members", &[("role", "member")]).await;
    let token = invited.text.split("/dashboard/join#").nth(1).unwrap().split('<').next().unwrap();
    let fields = [("token", token), ("email", "bo@example.com"), ("name", "Bo"), ("password", PASSWORD)];
    let joined = host.entrance("/dashboard/join", &fields, &[]).await;
    let session = joined.header("set-cookie").unwrap().split(['=', ';']).nth(1).unwrap().to_owned();
    let bo = host.call("GET", "/v1/me", &session, None).await.expect(200)["user"]["id"].as_str().unwrap().to_owned();
    let path = format!("/dashboard/research/members/{bo}/do");
    leads_to(&ada.send(&path, &[("action", "role"), ("role", "admin")]).await);
    assert!(host.visitor(&session).page("/dashboard/research/sandboxes").await.contains("<small>admin</small>"));
    leads_to(&ada.send(&path, &[("action", "remove")]).await);
    assert_eq!(host.visitor(&session).get("/dashboard/research/sandboxes").await.status.as_u16(), 303);
    let last = ada.send(&format!("/dashboard/research/members/{}/do", owner.id), &[("action", "remove")]).await;
    assert_eq!(last.status.as_u16(), 409, "a team keeps an owner");

    ada.send("/dashboard/research/members", &[("role", "viewer"), ("email", "cy@example.com")]).await;
    let list = ada.page("/dashboard/research/members").await;
    let withdraw = list.split(r#"action="/dashboard/research/invitations/"#).nth(1).unwrap().split('"').next().unwrap();
    leads_to(&ada.send(&format!("/dashboard/research/invitations/{withdraw}"), &[]).await);
    assert!(!ada.page("/dashboard/research/members").await.contains("cy@example.com"));
}

#[tokio::test]
async fn name_password_sessions_and_teams_are_ones_own() {
    let host = Host::new().await;
    let user = host.user("ada@example.com", "acme", Role::Member).await;
    let ada = host.visitor(&user.token);
    leads_to(&ada.send("/dashboard/-/name", &[("name", "Ada L.")]).await);
    assert!(ada.page("/dashboard/account").await.contains("Ada L."));
    let other =
        host.call("POST", "/v1/login", "", Some(json!({"email": "ada@example.com", "password": PASSWORD}))).await;
    let other = other.expect(200)["token"].as_str().unwrap().to_owned();
    let page = ada.page("/dashboard/account").await;
    let session = hidden(&page, "id").unwrap();
    leads_to(&ada.send("/dashboard/-/sessions/end", &[("id", &session)]).await);
    host.call("GET", "/v1/me", &other, None).await.refused(401, "unauthorized");
    let wrong = ada.send("/dashboard/-/password", &[("current", "guessed"), ("password", "another battery")]).await;
    assert_eq!(wrong.status.as_u16(), 400);
    leads_to(&ada.send("/dashboard/-/password", &[("current", PASSWORD), ("password", "another battery")]).await);
    assert_eq!(
        leads_to(&ada.send("/dashboard/-/teams", &[("slug", "newcomers")]).await),
        "/dashboard/newcomers/sandboxes"
    );
    assert!(ada.page("/dashboard/newcomers/members").await.contains("owner"));
}
