//! The Merchant Portal: who sees and does what there.

use sandpiper_accounts::Role;
use serde_json::json;

use crate::accounts::PASSWORD;
use crate::dashboard::{Visitor, form, hidden, leads_to};
use crate::support::shop::Shop;
use crate::support::{Answer, Host};

const URL: &str = "https://merchant.example.test/webhooks";

/// The token of an operator's invitation.
async fn invitation(host: &Host, shop: &Shop, role: &str, realm: Option<&str>) -> String {
    let mut body = json!({"role": role});
    if let Some(realm) = realm {
        body["realm"] = json!(realm);
    }
    let path = format!("/operator/v1/merchants/{}/invitations", shop.merchant);
    let made = host.call("POST", &path, &shop.operator, Some(body)).await.expect(201);
    made["token"].as_str().unwrap().to_owned()
}

/// Somebody new with this role, in one realm or both.
async fn user<'a>(host: &'a Host, shop: &Shop, email: &str, role: &str, realm: Option<&str>) -> Visitor<'a> {
    let token = invitation(host, shop, role, realm).await;
    host.visitor(&session(&join(host, &token, email).await))
}

async fn join(host: &Host, token: &str, email: &str) -> Answer {
    let fields = [("token", token), ("email", email), ("name", "Somebody"), ("password", PASSWORD)];
    host.entrance("/portal/join", &fields, &[]).await
}

/// The token in the cookie that an answer sets.
#[track_caller]
fn session(answer: &Answer) -> String {
    assert_eq!(leads_to(answer), "/portal");
    answer.header("set-cookie").unwrap().split(['=', ';']).nth(1).unwrap().to_owned()
}

/// Sends a form with the word of this session's pages.
async fn send(visitor: &Visitor<'_>, path: &str, fields: &[(&str, &str)]) -> Answer {
    let word = hidden(&visitor.page("/portal/account").await, "form").unwrap();
    visitor.send_as(&word, path, fields).await
}

fn at(shop: &Shop, realm: &str, page: &str) -> String {
    format!("/portal/{}/{realm}/{page}", shop.merchant)
}

#[tokio::test]
async fn an_invited_user_signs_in_and_out_with_the_cookie_of_all_pages() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let token = invitation(&host, &shop, "owner", None).await;
    assert!(host.send(form("", "/portal/join", &[], &[])).await.status.is_client_error());
    let short = [("token", token.as_str()), ("email", "mia@example.com"), ("name", "Mia"), ("password", "short")];
    assert_eq!(host.entrance("/portal/join", &short, &[]).await.status.as_u16(), 400);
    let joined = join(&host, &token, "mia@example.com").await;
    let cookie = joined.header("set-cookie").unwrap();
    for attribute in ["__Host-sandpiper=sps_", "; Path=/;", "; Secure", "; HttpOnly", "; SameSite=Lax"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert_eq!(join(&host, &token, "eve@example.com").await.status.as_u16(), 404, "it is used up");

    for (email, password) in [("mia@example.com", "guessed"), ("nobody@example.com", PASSWORD)] {
        let answer = host.entrance("/portal/sign-in", &[("email", email), ("password", password)], &[]).await;
        assert_eq!((answer.status.as_u16(), answer.header("set-cookie")), (401, None));
        assert!(answer.text.contains("The address or the password is wrong"), "{}", answer.text);
        assert!(!answer.text.contains(password));
    }
    let fields = [("email", "mia@example.com"), ("password", PASSWORD)];
    let foreign = host.entrance("/portal/sign-in", &fields, &[("sec-fetch-site", "cross-site")]).await;
    assert_eq!(foreign.status.as_u16(), 403);
    let mia = host.visitor(&session(&host.entrance("/portal/sign-in", &fields, &[]).await));
    let home = leads_to(&mia.get("/portal").await).to_owned();
    assert_eq!(home, at(&shop, "live", "webhooks"));
    assert!(mia.page(&home).await.contains("mia@example.com"));

    let out = send(&mia, "/portal/sign-out", &[]).await;
    assert_eq!(leads_to(&out), "/portal/sign-in");
    assert_eq!(leads_to(&mia.get(&home).await), "/portal/sign-in");
    assert_eq!(leads_to(&host.visitor(&shop.live.secret).get(&home).await), "/portal/sign-in", "a key is no session");
}

/// Fields of a form.
type Fields = &'static [(&'static str, &'static str)];

/// Path below the realm, fields, and the role that it needs.
const ORDERS: [(&str, Fields, Role); 8] = [
    ("webhooks", &[("action", "save"), ("url", URL)], Role::Member),
    ("webhooks", &[("action", "test")], Role::Member),
    ("webhooks", &[("action", "stop")], Role::Member),
    ("secret", &[("old", "mky00000000000000000000000")], Role::Admin),
    ("users", &[("role", "viewer")], Role::Admin),
    ("users", &[("role", "owner")], Role::Owner),
    ("users/usr0000000000000000000000/do", &[("action", "remove")], Role::Admin),
    ("invitations/inv0000000000000000000000/withdraw", &[], Role::Admin),
];

#[tokio::test]
async fn each_role_sees_and_changes_its_realm_and_no_other() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    for role in Role::ALL {
        let visitor = user(&host, &shop, &format!("{role}@example.com"), role.as_str(), Some("live")).await;
        for page in ["webhooks", "users"] {
            visitor.page(&at(&shop, "live", page)).await;
            let other = visitor.get(&at(&shop, "sandbox", page)).await;
            assert_eq!(other.status.as_u16(), 404, "{role} {page}");
        }
        for (path, fields, needs) in ORDERS {
            let what = format!("{role}: {path} {fields:?}");
            let answer = send(&visitor, &at(&shop, "live", path), fields).await;
            // 404 and 409: of what is not there.
            let is_done = matches!(answer.status.as_u16(), 200 | 303 | 404 | 409);
            assert_eq!(is_done, role >= needs, "{what}: {} {}", answer.status, answer.text);
            assert!(is_done || answer.status == 403, "{what}: {} {}", answer.status, answer.text);
            assert_eq!(send(&visitor, &at(&shop, "sandbox", path), fields).await.status.as_u16(), 404, "{what}");
        }
    }
}

#[tokio::test]
async fn nobody_and_forms_of_elsewhere_change_nothing() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let owner = user(&host, &shop, "mia@example.com", "owner", None).await;
    let other = user(&host, &shop, "eve@example.com", "owner", None).await;
    let stranger = host.user("ada@example.com", "acme", Role::Owner).await;
    let stranger = host.visitor(&stranger.token);
    let foreign = hidden(&other.page("/portal/account").await, "form").unwrap();
    for (path, fields, _) in ORDERS {
        let path = at(&shop, "live", path);
        assert_eq!(leads_to(&host.entrance(&path, fields, &[]).await), "/portal/sign-in", "{path}");
        for word in ["", "0", &foreign] {
            assert_eq!(owner.send_as(word, &path, fields).await.status.as_u16(), 403, "{path}");
        }
        assert_eq!(send(&stranger, &path, fields).await.status.as_u16(), 404, "{path}");
    }
    assert!(owner.page(&at(&shop, "live", "webhooks")).await.contains("no webhooks are sent"));
    // Who is a user of no merchant has a page all the same.
    assert!(stranger.page("/portal").await.contains("no merchant"));
    for method in ["PUT", "DELETE"] {
        let answer = host.call(method, "/portal/sign-in", "", None).await;
        assert_eq!(answer.status.as_u16(), 405, "{method}");
        assert!(answer.header("content-type").unwrap().starts_with("text/html"), "{method}");
    }
    assert_eq!(owner.get("/portal/nonsense").await.status.as_u16(), 404);
}

#[tokio::test]
async fn a_viewer_sees_the_url_and_the_key_that_a_member_and_an_admin_change() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let viewer = user(&host, &shop, "vic@example.com", "viewer", Some("live")).await;
    let admin = user(&host, &shop, "ann@example.com", "admin", Some("live")).await;
    let page = at(&shop, "live", "webhooks");
    let refused = send(&admin, &page, &[("action", "save"), ("url", "https://10.0.0.1/inside")]).await;
    assert_eq!(refused.status.as_u16(), 400);
    assert!(refused.text.contains("is refused") && refused.text.contains("https://10.0.0.1/inside"));
    assert_eq!(send(&admin, &page, &[("action", "save"), ("url", URL)]).await.status.as_u16(), 200);

    let seen = viewer.page(&page).await;
    assert!(seen.contains(URL) && seen.contains(&shop.live.secret_id), "{seen}");
    assert!(!seen.contains("name=\"action\"") && !seen.contains("id=\"rotate\""), "{seen}");
    assert!(!seen.contains(&shop.live.secret));
    let config = "/merchant/api/v1/webhookConfig?realm=live";
    assert_eq!(host.call("GET", config, &shop.live.secret, None).await.expect(200)["url"], URL);

    let rotated = send(&admin, &at(&shop, "live", "secret"), &[("old", &shop.live.secret_id)]).await;
    let key = rotated.text.split("<code id=\"key\">").nth(1).unwrap().split('<').next().unwrap();
    let key = key.replace("&#43;", "+").replace("&#61;", "=").replace("&#47;", "/");
    host.call("GET", config, &shop.live.secret, None).await.denied(401, "UNAUTHENTICATED", "INVALID_KEY");
    host.call("GET", config, &key, None).await.expect(200);
    assert!(!admin.page(&page).await.contains(&key), "it is shown once");
    assert!(!host.stores(&key).await);
    let again = send(&admin, &at(&shop, "live", "secret"), &[("old", &shop.live.secret_id)]).await;
    assert_eq!(again.status.as_u16(), 409, "it was rotated already");
    host.call("GET", config, &key, None).await.expect(200);
    let sandbox = "/merchant/api/v1/webhookConfig?realm=sandbox";
    host.call("GET", sandbox, &shop.sandbox.secret, None).await.expect(200);

    let entries = host.payments.store.audit.newest(None, 100).await.unwrap();
    let of_admin: Vec<_> =
        entries.iter().filter(|entry| entry.team_id == shop.merchant && entry.user_id.is_some()).collect();
    let actions: Vec<_> = of_admin.iter().map(|entry| entry.action.as_str()).collect();
    assert!(actions.contains(&"POST /portal/{merchant}/{realm}/secret"), "{actions:?}");
    assert!(actions.contains(&"POST /portal/{merchant}/{realm}/webhooks"), "{actions:?}");
    assert!(send(&viewer, &page, &[("action", "stop")]).await.status == 403);
    let newest = &host.payments.store.audit.newest(None, 1).await.unwrap()[0];
    assert_eq!((newest.status, newest.resource.as_deref()), (403, Some("webhookConfig/live")));
}

#[tokio::test]
async fn users_invite_others_and_who_is_removed_is_signed_out_and_has_no_way_back() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let owner = user(&host, &shop, "owner@example.com", "owner", Some("live")).await;
    let admin = user(&host, &shop, "admin@example.com", "admin", Some("live")).await;
    let users = at(&shop, "live", "users");
    let link_of = |page: &Answer| page.text.split("/portal/join#").nth(1).unwrap()[..44].to_owned();
    let token = link_of(&send(&admin, &users, &[("role", "viewer"), ("email", "vic@example.com")]).await);
    assert_eq!(join(&host, &token, "mallory@example.com").await.status.as_u16(), 403);
    let vic = host.visitor(&session(&join(&host, &token, "vic@example.com").await));
    assert!(vic.page(&users).await.contains("admin@example.com"));
    assert_eq!(vic.get(&at(&shop, "sandbox", "users")).await.status.as_u16(), 404, "for the one realm alone");
    let way_back = link_of(&send(&admin, &users, &[("role", "admin")]).await);

    let id = async |email: &str| {
        let found = host.app.store.users.by_email(&email.parse().unwrap()).await.unwrap();
        found.unwrap().0.id.to_string()
    };
    let (owner_id, admin_id) = (id("owner@example.com").await, id("admin@example.com").await);
    let remove = |user: &str| format!("{users}/{user}/do");
    let last = send(&owner, &remove(&owner_id), &[("action", "remove")]).await;
    assert_eq!(last.status.as_u16(), 409, "the last owner stays");
    let up = send(&admin, &remove(&admin_id), &[("action", "role"), ("role", "owner")]).await;
    assert_eq!(up.status.as_u16(), 403);
    let removed = send(&owner, &remove(&admin_id), &[("action", "remove")]).await;
    assert_eq!(leads_to(&removed), users);

    assert_eq!(leads_to(&admin.get(&users).await), "/portal/sign-in");
    assert_eq!(join(&host, &way_back, "again@example.com").await.status.as_u16(), 404);
    let fields = [("email", "admin@example.com"), ("password", PASSWORD)];
    let admin = host.visitor(&session(&host.entrance("/portal/sign-in", &fields, &[]).await));
    assert_eq!(admin.get(&users).await.status.as_u16(), 404);
}

#[tokio::test]
async fn one_user_is_of_teams_and_merchants_with_one_password() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let ada = host.visitor(&ada.token);
    let token = invitation(&host, &shop, "member", None).await;
    assert_eq!(join(&host, &token, "ada@example.com").await.status.as_u16(), 409, "there is one");
    assert_eq!(leads_to(&ada.send("/portal/join", &[("token", &token), ("as_me", "yes")]).await), "/portal");
    ada.page(&at(&shop, "sandbox", "webhooks")).await;
    ada.page("/dashboard/acme/sandboxes").await;

    // Who came by the portal has a team from the first sign-in of teams on.
    user(&host, &shop, "mia@example.com", "viewer", None).await;
    let login = json!({"email": "mia@example.com", "password": PASSWORD});
    let session = host.enter("/v1/login", login).await.expect(200);
    let me = host.call("GET", "/v1/me", session["token"].as_str().unwrap(), None).await.expect(200);
    assert_eq!((&me["team"]["slug"], &me["team"]["is_personal"]), (&json!("mia"), &json!(true)));

    let mia = host.visitor(session["token"].as_str().unwrap());
    let wrong = [("current", "guessed"), ("password", "another password")];
    assert_eq!(send(&mia, "/portal/account", &wrong).await.status.as_u16(), 400);
    let right = [("current", PASSWORD), ("password", "another password")];
    assert_eq!(send(&mia, "/portal/account", &right).await.status.as_u16(), 200);
    let login = json!({"email": "mia@example.com", "password": "another password"});
    host.enter("/v1/login", login).await.expect(200);
}

#[tokio::test]
async fn pages_forbid_scripts_frames_and_keeping_and_show_text_as_text() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let hostile = "<script>alert(1)</script>";
    let evil = host.merchant(&shop.operator, hostile, json!({})).await;
    let path = format!("/operator/v1/merchants/{evil}/invitations");
    let made = host.call("POST", &path, &shop.operator, Some(json!({"role": "owner"}))).await.expect(201);
    let token = made["token"].as_str().unwrap();
    let fields = [("token", token), ("email", "mia@example.com"), ("name", hostile), ("password", PASSWORD)];
    let mia = host.visitor(&session(&host.entrance("/portal/join", &fields, &[]).await));
    let webhooks = format!("/portal/{evil}/live/webhooks");
    let page = mia.page(&webhooks).await;
    let style = page.split(r#"<link rel="stylesheet" href=""#).nth(1).unwrap().split('"').next().unwrap().to_owned();
    let (script, users) = (style.replace(".css", ".js"), format!("/portal/{evil}/live/users"));
    for path in ["/portal", "/portal/sign-in", "/portal/join", "/portal/account", &webhooks, &users, &style, &script] {
        let answer = mia.get(path).await;
        let policy = answer.header("content-security-policy").unwrap_or_else(|| panic!("{path}"));
        assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        let keep = answer.header("cache-control").unwrap();
        assert_eq!(keep.contains("immutable"), path == style || path == script, "{path}: {keep}");
        assert!(!answer.text.contains("<script>"), "{path}: {}", answer.text);
        assert!(!answer.text.contains(" style=") && !answer.text.contains(" onclick="), "{path}");
    }
    assert!(page.contains("&#60;script&#62;alert(1)"), "{page}");
    let long = "x".repeat(20_000);
    let answer = host.entrance("/portal/sign-in", &[("email", &long), ("password", PASSWORD)], &[]).await;
    assert_eq!(answer.status.as_u16(), 413);
}

#[tokio::test]
async fn an_operator_invites_users_of_merchants_that_there_are() {
    let host = Host::new().await;
    let shop = Shop::open(&host).await;
    let call = async |merchant: &str, body| {
        let path = format!("/operator/v1/merchants/{merchant}/invitations");
        host.call("POST", &path, &shop.operator, Some(body)).await
    };
    call("mer0000000000000000000000", json!({"role": "owner"})).await.denied(404, "NOT_FOUND", "NOT_FOUND");
    call(&shop.merchant, json!({"role": "king"})).await.violates(&["role"]);
    call(&shop.merchant, json!({"role": "owner", "email": "nobody"})).await.violates(&["email"]);
    let made = call(&shop.merchant, json!({"role": "owner", "realm": "sandbox"})).await.expect(201);
    assert_eq!((&made["realm"], &made["email"]), (&json!("sandbox"), &json!(null)));
    assert!(!host.stores(made["token"].as_str().unwrap()).await);
    let entry = &host.payments.store.audit.newest(None, 1).await.unwrap()[0];
    let resource = format!("merchants/{}/invitations/{}", shop.merchant, made["id"].as_str().unwrap());
    assert_eq!(entry.resource.as_deref(), Some(resource.as_str()));
}
