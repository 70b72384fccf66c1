//! The Merchant Portal in a real browser, in front of the real process: what a person says there is done. What its pages look like
//! is kept as pictures in `target/tmp/dashboard`.

use sandpiper_db::testing::TestDatabase;
use sandpiper_webhook::SigningKey;
use serde_json::json;

use super::receiver::Receiver;
use super::server::{Server, operator_key, write_config};
use crate::accounts::PASSWORD;
use crate::dashboard::{axe, look};
use crate::support::browser::Browser;
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merchants_user_says_in_the_portal_where_webhooks_go_and_rotates_the_key() {
    let Some(browser) = Browser::open("the Merchant Portal").await else { return };
    let receiver = Receiver::answering(200).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let server = Server::start(&config, "info").await;
    let (operator, old) = (operator_key(&config), format!("https://{}/old", receiver.address));
    let (merchant, _) = server.merchant(&operator, "a merchant", &old).await;
    let invite = format!("/operator/v1/merchants/{merchant}/invitations");
    let invitation = server.send("POST", &invite, &operator, &json!({"role": "owner"})).await;
    // The name under which browsers take secure cookies over plain HTTP.
    let portal = format!("http://localhost:{}/portal", server.address.rsplit_once(':').unwrap().1);

    browser.open_page(&format!("{portal}/join#{}", invitation["token"].as_str().unwrap())).await;
    browser.write("#email", "mia@example.com").await;
    browser.write("#password", PASSWORD).await;
    browser.click("form button").await;
    browser.says("header", "mia@example.com").await;
    browser.says("header summary", "Live").await;
    browser.says("#saved", &old).await;
    assert_eq!(browser.run("return document.cookie").await, "", "a script sees the session");

    browser.write("#url", "https://10.0.0.1/inside").await;
    browser.click("section form > button").await;
    browser.says(".problem", "refused").await;
    browser.says("#saved", &old).await;
    let new = format!("https://{}/new", receiver.address);
    browser.write("#url", &new).await;
    browser.click("section form > button").await;
    browser.says("#saved", &new).await;

    browser.click("section details:has(#rotate) summary").await;
    browser.click("#rotate").await;
    browser.says(".made", "sk_prod_").await;
    let secret = browser.run("return document.getElementById('key').textContent").await;
    browser.click("#test").await;
    browser.says(".made", "A test is on its way").await;
    eventually("the test webhook", async || receiver.count() == 1).await;
    let received = &receiver.received()[0];
    browser.says(".made", &received.key()).await;
    assert!(received.head.starts_with("POST /new "), "{}", received.head);
    let (headers, now) = (received.headers("x-webhook-signature"), jiff::Timestamp::now().as_second());
    let key = SigningKey::from_api_key(secret.as_str().unwrap()).unwrap();
    assert_eq!(sandpiper_webhook::verify(&key, headers, &received.body, now, 600), Ok(()));

    let axe = axe().await;
    let of_realm = |realm: &str, page: &str| format!("{portal}/{merchant}/{realm}/{page}");
    for (page, name) in [
        (of_realm("live", "webhooks"), "portal-webhooks"),
        (of_realm("sandbox", "webhooks"), "portal-webhooks-empty"),
        (of_realm("live", "users"), "portal-users"),
        (format!("{portal}/account"), "portal-account"),
    ] {
        look(&browser, &axe, &page, name).await;
    }

    // The other realm is apart, and reached by the keyboard.
    browser.open_page(&of_realm("live", "webhooks")).await;
    browser.press("header summary", "\u{e007}").await;
    browser.click("header li:last-child a").await;
    browser.says("header summary", "Sandbox").await;
    browser.says("#saved", "no webhooks are sent").await;
    browser.open_page(&of_realm("live", "webhooks")).await;
    browser.click("section details:has(#stop) summary").await;
    browser.click("#stop").await;
    browser.says("#saved", "no webhooks are sent").await;
    browser.click("header form button").await;
    browser.says("h1", "Sign in").await;
    for page in ["sign-in", "join"] {
        look(&browser, &axe, &format!("{portal}/{page}"), &format!("portal-{page}")).await;
    }
}
