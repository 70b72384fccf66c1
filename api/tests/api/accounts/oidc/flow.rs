//! The way to a provider and back.

use jiff::SignedDuration;
use sandpiper_accounts::Role;
use serde_json::json;

use super::{Browser, audited, cookie, me, refused, session, settings, stage};
use crate::accounts::PASSWORD;
use crate::dashboard::leads_to;
use crate::support::Host;

#[tokio::test]
async fn whoever_the_provider_knows_under_the_address_of_a_user_is_that_user() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    provider.person("ada", json!({"email": "Ada@Example.com", "email_verified": true, "name": "Somebody"})).await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;
    let browser = Browser::of(&host);
    let page = browser.get("/dashboard/sign-in", "").await;
    assert!(page.text.contains("Sign in with Example &#38; Co") && page.text.contains(r#"name="password""#));

    let answer = browser.sign_in("ada").await;

    let token = session(&answer);
    let shown = me(&host, &token).await;
    assert_eq!((&shown["user"]["id"], &shown["user"]["name"]), (&json!(ada.id), &json!("Somebody")));
    let identity = &shown["sign_in"]["identities"][0];
    assert_eq!((&identity["issuer"], &shown["sign_in"]["has_password"]), (&json!(provider.issuer), &json!(false)));
    assert_eq!(audited(&host).await, [(Some(ada.id), 200)]);
    let entries = host.call("GET", "/v1/audit?action=POST%20/v1/login/oidc", &token, None).await.expect(200);
    assert_eq!(entries["entries"][0]["resource"], identity["id"]);
    // Whoever had made the account did not have to have the address.
    host.log_in("ada@example.com", PASSWORD).await.refused(401, "unauthorized");
    host.call("GET", "/v1/me", &ada.token, None).await.refused(401, "unauthorized");
    // As after a password.
    let visitor = host.visitor(&token);
    let home = leads_to(&visitor.get("/dashboard").await).to_owned();
    assert!(visitor.page(&home).await.contains("ada@example.com"));
    assert!(visitor.page("/dashboard/account").await.contains(&provider.issuer));
}

#[tokio::test]
async fn the_provider_gets_a_challenge_and_nothing_else_says_where_one_goes_afterwards() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    let browser = Browser::of(&host);
    let begun = browser.get("/dashboard/sign-in/oidc?next=https://evil.example", "").await;
    let url = url::Url::parse(leads_to(&begun)).unwrap();
    let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap();
    assert!(url.as_str().starts_with(&provider.issuer), "{url}");
    assert_eq!((of("response_type"), of("code_challenge_method")), ("code".into(), "S256".into()));
    assert_eq!(of("scope"), "openid email profile");
    assert_eq!(of("redirect_uri"), "https://sandpiper.example.com/dashboard/sign-in/oidc/callback");
    for name in ["state", "nonce", "code_challenge"] {
        assert!(of(name).len() >= 22, "{name}");
    }
    assert!(!url.as_str().contains("evil"));
    // It is of use to whoever has the key alone.
    let kept = cookie(&begun, "__Host-sandpiper-oidc");
    assert!(!kept.contains(&of("state")) && !kept.contains(&of("nonce")) && kept.len() < 2048, "{kept}");
    assert_ne!(kept, browser.begin().await.cookie);
    let policy = begun.header("content-security-policy").unwrap();
    assert!(policy.contains("form-action 'self'") && policy.contains("default-src 'none'"), "{policy}");
}

#[tokio::test]
async fn a_sign_in_is_ended_in_the_browser_that_began_it_once_and_in_time() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let (browser, other) = (Browser::of(&host), Browser::of(&host));
    let (begun, elsewhere) = (browser.begin().await, other.begin().await);
    let callback = browser.surfer.sign_in(&begun.url, "ada").await;
    let (_, query) = callback.split_once('?').unwrap();
    let with_state = |state: &str| {
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        let pairs = pairs.map(|(name, value)| {
            let value = if name == "state" { state.to_owned() } else { value.into_owned() };
            (name.into_owned(), value)
        });
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        format!("/dashboard/sign-in/oidc/callback?{query}")
    };

    refused(&browser.get(&callback, "").await, 400, "not begun in this browser");
    refused(&other.end(&elsewhere, &callback).await, 400, "not begun in this browser");
    for state in ["", "guessed"] {
        refused(&browser.end(&begun, &with_state(state)).await, 400, "not begun in this browser");
    }
    let made_up = super::Begun { cookie: format!("{}A", begun.cookie), url: String::new() };
    refused(&browser.end(&made_up, &callback).await, 400, "not begun in this browser");
    let late = browser.begin().await;
    let late_callback = browser.surfer.sign_in(&late.url, "ada").await;
    assert_eq!(audited(&host).await, [], "nobody was known");

    let answer = browser.end(&begun, &callback).await;
    session(&answer);
    assert!(
        answer
            .headers
            .get_all("set-cookie")
            .into_iter()
            .any(|cookie| { cookie.to_str().unwrap().starts_with("__Host-sandpiper-oidc=; Path=/; Max-Age=0;") })
    );
    // With the cookie still there, it is the provider who knows that the code was used.
    refused(&browser.end(&begun, &callback).await, 401, "does not take this sign-in any more; begin again");
    host.pass(SignedDuration::from_mins(11));
    refused(&browser.end(&late, &late_callback).await, 400, "longer than ten minutes");
}

#[tokio::test]
async fn who_does_not_sign_in_at_the_provider_is_told_so_in_this_hosts_words() {
    let Some((_provider, host)) = stage(|_| {}).await else { return };
    let browser = Browser::of(&host);
    let begun = browser.begin().await;
    let callback = browser.surfer.cancel(&begun.url).await;
    assert!(callback.contains("error=access_denied"), "{callback}");

    let answer = browser.end(&begun, &callback).await;

    refused(&answer, 401, "Example &#38; Co signed nobody in");
    let forged = format!("{callback}&error_description=%3Cscript%3E").replace("access_denied", "%3Cscript%3Ealert(1)");
    let answer = browser.end(&begun, &forged).await;
    refused(&answer, 401, "signed nobody in");
    assert!(!answer.text.contains("alert(1)"), "{}", answer.text);
}

#[tokio::test]
async fn a_provider_that_is_away_leaves_the_password() {
    let Some((mut provider, host)) = stage(|_| {}).await else { return };
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let browser = Browser::of(&host);
    let begun = browser.begin().await;
    let callback = browser.surfer.sign_in(&begun.url, "ada").await;
    provider.stop().await;
    let host = Host::with(|config| super::configure(config, &provider.issuer)).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let fresh = Browser::of(&host);

    // What it said before stands for a while; without that, nobody is sent to it.
    refused(&browser.end(&begun, &callback).await, 503, "does not respond");
    for _ in 0..2 {
        refused(&fresh.get("/dashboard/sign-in/oidc", "").await, 503, "does not respond; try again in a minute");
    }

    let fields = [("email", "ada@example.com"), ("password", PASSWORD)];
    assert_eq!(leads_to(&host.entrance("/dashboard/sign-in", &fields, &[]).await), "/dashboard");
}

#[tokio::test]
async fn other_keys_of_the_provider_are_believed_at_once() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let browser = Browser::of(&host);
    session(&browser.sign_in("ada").await);

    provider.change_keys().await;

    session(&browser.sign_in("ada").await);
}

#[tokio::test]
async fn a_client_without_a_secret_signs_people_in_by_the_challenge_alone() {
    let Some((provider, host)) = stage(|_| {}).await else { return };
    let issuer = provider.issuer.clone();
    drop(host);
    let host = Host::with(|config| config.oidc = Some(settings(&issuer, None))).await;
    provider.tell_in_id_tokens().await;
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    let ada = host.user("ada@example.com", "acme", Role::Owner).await;

    let answer = Browser::of(&host).sign_in("ada").await;

    assert_eq!(me(&host, &session(&answer)).await["user"]["id"], json!(ada.id));
}

#[tokio::test]
async fn without_a_provider_there_is_no_sign_of_one() {
    let host = Host::new().await;
    let browser = Browser::of(&host);
    for page in ["/dashboard/sign-in", "/dashboard/join"] {
        let text = browser.get(page, "").await.text;
        assert!(text.contains("password") && !text.contains("oidc"), "{text}");
    }
    refused(&browser.get("/dashboard/sign-in/oidc", "").await, 404, "no provider of OpenID Connect");
    let body = json!({"transaction": "v1:", "state": "s"});
    host.enter("/v1/login/oidc", body).await.refused(404, "not_found");
    let shown = browser.get("/v1/login/oidc", "").await.expect(200);
    assert_eq!(shown["provider"], json!(null));
}
