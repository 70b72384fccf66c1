//! The Merchant Portal's page in a real browser, in front of the real process: what a person saves there is saved.

use sandpiper_db::testing::TestDatabase;
use sandpiper_webhook::SigningKey;

use super::receiver::Receiver;
use super::server::{Server, operator_key, write_config};
use crate::support::browser::Browser;
use crate::support::{Host, eventually};

#[tokio::test]
async fn nothing_but_the_portals_own_files_is_carried_out_in_it() {
    let host = Host::new().await;
    for (path, content_type) in
        [("/portal", "text/html"), ("/portal.css", "text/css"), ("/portal.js", "text/javascript")]
    {
        let file = host.get(path).await;
        assert_eq!(file.status.as_u16(), 200, "{path}");
        assert!(file.header("content-type").unwrap().starts_with(content_type), "{path}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.contains("script-src 'self'; style-src 'self'") && !policy.contains("unsafe"), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merchant_says_in_the_portal_where_webhooks_go() {
    let Some(browser) = Browser::open("the Merchant Portal").await else { return };
    let receiver = Receiver::answering(200).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let server = Server::start(&config, "info").await;
    let old = format!("https://{}/old", receiver.address);
    let (_, secret) = server.merchant(&operator_key(&config), "a merchant", &old).await;
    let portal = format!("http://{}/portal", server.address);
    browser.open_page(&portal).await;

    // The other realm's key is not mistaken for this one's.
    browser.write("#key", &secret).await;
    browser.click("input[value=sandbox]").await;
    browser.click("#open button").await;
    browser.says("#message", "use the secret key of the realm sandbox").await;

    browser.click("input[value=live]").await;
    browser.click("#open button").await;
    browser.says("#saved", &old).await;
    browser.says("#realm", "Live").await;

    browser.write("#url", "https://10.0.0.1/inside").await;
    browser.click("#config button").await;
    browser.says("#message", "refused").await;
    browser.says("#saved", &old).await;

    let new = format!("https://{}/new", receiver.address);
    browser.write("#url", &new).await;
    browser.click("#config button").await;
    browser.says("#saved", &new).await;
    browser.click("#test").await;
    browser.says("#message", "On its way").await;
    eventually("the test webhook", async || receiver.count() == 1).await;
    let received = &receiver.received()[0];
    browser.says("#message", &received.key()).await;
    assert!(received.head.starts_with("POST /new "), "{}", received.head);
    let (headers, now) = (received.headers("x-webhook-signature"), jiff::Timestamp::now().as_second());
    let key = SigningKey::from_api_key(&secret).unwrap();
    assert_eq!(sandpiper_webhook::verify(&key, headers, &received.body, now, 600), Ok(()));

    browser.click("#stop").await;
    browser.agree().await;
    browser.says("#saved", "no webhooks are sent").await;
    // Without a URL there is nothing to test, also where that is what a page finds.
    browser.open_page(&portal).await;
    browser.write("#key", &secret).await;
    browser.click("input[value=live]").await;
    browser.click("#open button").await;
    browser.says("#saved", "no webhooks are sent").await;
    browser.find("#test:disabled").await;
    browser.find("#stop:disabled").await;
}
