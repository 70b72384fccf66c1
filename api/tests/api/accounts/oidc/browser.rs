//! Signing in at a provider in a real browser, which keeps the rules of cookies and of the content security policy.

use sandpiper_accounts::Role;
use serde_json::json;

use super::{configure, redirect_uri};
use crate::dashboard::{axe, listen, look, serve_on};
use crate::support::Host;
use crate::support::browser::Browser;
use crate::support::provider::Provider;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_signs_in_at_a_provider_and_accepts_an_invitation() {
    let Some(browser) = Browser::open("signing in at a provider").await else { return };
    let (listener, url) = listen().await;
    let Some(provider) = Provider::start(&redirect_uri(&url)).await else { return };
    let host = Host::with(|config| {
        configure(config, &provider.issuer);
        config.oidc.as_mut().unwrap().origin = url.clone();
    })
    .await;
    let _server = serve_on(listener, &host);
    provider.person("ada", json!({"email": "ada@example.com", "email_verified": true})).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    let axe = axe().await;
    look(&browser, &axe, &format!("{url}/dashboard/sign-in"), "sign-in-provider").await;
    look(&browser, &axe, &format!("{url}/dashboard/join"), "join-provider").await;

    browser.open_page(&format!("{url}/dashboard/sign-in")).await;
    browser.click("a.button").await;
    browser.says("h1", "Sign-in").await;
    browser.write("input[name=login]", "ada").await;
    browser.write("input[name=password]", "any").await;
    browser.click("button[type=submit]").await;
    browser.says("h1", "Authorize").await;
    browser.click("button[type=submit]").await;
    browser.says("header", "ada@example.com").await;
    look(&browser, &axe, &format!("{url}/dashboard/account"), "account-provider").await;
    browser.says("main", &provider.issuer).await;

    // The provider knows her by now, and the page goes on by itself.
    let invitation = host.invitation("research", Role::Member).await;
    browser.open_page(&format!("{url}/dashboard/join#{invitation}")).await;
    browser.click("form[action='/dashboard/join/oidc'] button").await;
    browser.says("header", "ada@example.com").await;
    browser.open_page(&format!("{url}/dashboard/research/sandboxes")).await;
    browser.says("main", "There is none").await;
}
