//! Getting in and out.

use sandpiper_accounts::Role;

use super::leads_to;
use crate::accounts::PASSWORD;
use crate::support::Host;

#[tokio::test]
async fn who_is_not_signed_in_gets_no_page() {
    let host = Host::new().await;
    for path in ["/dashboard", "/dashboard/", "/dashboard/account", "/dashboard/acme/sandboxes", "/dashboard/acme/keys"]
    {
        assert_eq!(leads_to(&host.visitor("").get(path).await), "/dashboard/sign-in", "{path}");
        assert_eq!(leads_to(&host.visitor("sps_1").get(path).await), "/dashboard/sign-in", "{path}");
    }
    // A key is for programs.
    assert_eq!(leads_to(&host.visitor(&host.write).get("/dashboard/acme/sandboxes").await), "/dashboard/sign-in");
}

#[tokio::test]
async fn a_password_brings_a_session_in_a_cookie_that_no_script_and_no_other_host_gets() {
    let host = Host::new().await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let answer =
        host.entrance("/dashboard/sign-in", &[("email", "ada@example.com"), ("password", PASSWORD)], &[]).await;
    assert_eq!(leads_to(&answer), "/dashboard");
    let cookie = answer.header("set-cookie").unwrap();
    for attribute in ["; Path=/;", "; Secure", "; HttpOnly", "; SameSite=Lax", "; Max-Age=2"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let token = cookie.strip_prefix("__Host-sandpiper=").unwrap().split(';').next().unwrap();
    let ada = host.visitor(token);
    let home = leads_to(&ada.get("/dashboard").await).to_owned();
    assert!(ada.page(&home).await.contains("ada@example.com"));

    let out = ada.send("/dashboard/sign-out", &[]).await;
    assert_eq!(leads_to(&out), "/dashboard/sign-in");
    assert!(out.header("set-cookie").unwrap().starts_with("__Host-sandpiper=; Path=/; Max-Age=0;"));
    host.call("GET", "/v1/me", token, None).await.refused(401, "unauthorized");
    assert_eq!(leads_to(&ada.get(&home).await), "/dashboard/sign-in");
}

#[tokio::test]
async fn a_wrong_password_is_told_on_the_page_and_brings_nothing() {
    let host = Host::new().await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    for email in ["ada@example.com", "nobody@example.com"] {
        let answer = host.entrance("/dashboard/sign-in", &[("email", email), ("password", "guessed")], &[]).await;
        assert_eq!(answer.status.as_u16(), 401);
        assert!(answer.text.contains("The address or the password is wrong") && answer.text.contains(email));
        assert_eq!(answer.header("set-cookie"), None);
    }
}

#[tokio::test]
async fn an_invitation_makes_a_user_or_takes_one_into_the_team() {
    let host = Host::new().await;
    let token = host.invitation("research", Role::Member).await;
    let fields = [("token", token.as_str()), ("email", "bo@example.com"), ("name", "Bo"), ("password", PASSWORD)];
    let short = [fields[0], fields[1], fields[2], ("password", "short")];
    let refused = host.entrance("/dashboard/join", &short, &[]).await;
    assert_eq!(refused.status.as_u16(), 400);
    assert!(refused.text.contains("password") && refused.text.contains("bo@example.com"), "{}", refused.text);
    assert!(!refused.text.contains("short\""), "a password is shown");

    let joined = host.entrance("/dashboard/join", &fields, &[]).await;
    assert_eq!(leads_to(&joined), "/dashboard");
    let session = joined.header("set-cookie").unwrap().split(['=', ';']).nth(1).unwrap().to_owned();
    let bo = host.visitor(&session);
    assert!(bo.page("/dashboard/research/sandboxes").await.contains("research"));
    assert_eq!(host.entrance("/dashboard/join", &fields, &[]).await.status.as_u16(), 404, "it is used up");

    let other = host.invitation("second", Role::Viewer).await;
    let as_bo = bo.send("/dashboard/join", &[("token", &other), ("as_me", "yes")]).await;
    assert_eq!(leads_to(&as_bo), "/dashboard/second/sandboxes");
    assert!(bo.page("/dashboard/second/sandboxes").await.contains("viewer"));
}
