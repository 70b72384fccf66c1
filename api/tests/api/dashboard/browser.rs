//! The dashboard in a real browser: a person signs in, starts a sandbox, and sees what becomes of it. What every page looks like
//! is kept as pictures in `target/tmp/dashboard`.

use std::path::PathBuf;

use sandpiper_accounts::Role;
use sandpiper_skip::skipped;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::pages::{MANAGED, PAGES, Things};
use crate::accounts::PASSWORD;
use crate::support::browser::Browser;
use crate::support::{Host, eventually};

/// What looks for barriers (scripts/testing/tools).
const AXE: &str = "tools/axe-core-4.14.1.js";
/// Barriers by the rules of WCAG 2.2, A and AA, that it finds.
const LOOK: &str = "const found = await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}); \
                    return found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' '));";

/// The routes of a host on a port, under the name that browsers take secure cookies from.
pub(super) async fn serve(host: &Host) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let router = host.router();
    let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, AbortOnDropHandle::new(task))
}

pub(super) async fn sign_in(browser: &Browser, url: &str, email: &str) {
    browser.open_page(&format!("{url}/dashboard")).await;
    browser.write("#email", email).await;
    browser.write("#password", PASSWORD).await;
    browser.click("form button").await;
    browser.says("header", email).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_starts_a_sandbox_and_sees_what_becomes_of_it() {
    let Some(browser) = Browser::open("a life of a sandbox").await else { return };
    let host = Host::new().await;
    let (url, _server) = serve(&host).await;
    let token = host.invitation("acme", Role::Owner).await;
    browser.open_page(&format!("{url}/dashboard/join#{token}")).await;
    browser.write("#email", "ada@example.com").await;
    browser.write("#name", "Ada").await;
    browser.write("#password", PASSWORD).await;
    browser.click("form button").await;
    browser.says("header", "ada@example.com").await;
    assert_eq!(browser.run("return document.cookie").await, "", "a script sees the session");

    browser.open_page(&format!("{url}/dashboard/acme/sandboxes")).await;
    browser.says("main", "There is none").await;
    browser.click("a.button").await;
    browser.says("pre", "curl -X POST").await;
    browser.click("main form > button").await;
    browser.says(".state", "ready").await;
    browser.says("time[data-until]", "in ").await;

    // What others do shows without anybody's doing.
    let id = browser.run("return location.pathname.split('/').pop()").await.as_str().unwrap().to_owned();
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    browser.says(".state", "stopped").await;
    browser.click("nav a").await;
    let other = host.sandbox().await;
    browser.says("main", &other).await;

    browser.open_page(&format!("{url}/dashboard/acme/keys")).await;
    browser.write("#name", "ci").await;
    browser.click("main section form > button").await;
    browser.says(".made", "spk_").await;
    browser.click("header form button").await;
    browser.says("h1", "Sign in").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_for_everybody_light_and_dark_wide_and_narrow() {
    let Some(browser) = Browser::open("every page").await else { return };
    let axe = axe().await;
    let host = Host::new().await;
    let (url, _server) = serve(&host).await;
    let things = Things::make(&host).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    look(&browser, &axe, &format!("{url}/dashboard/sign-in"), "sign-in").await;
    look(&browser, &axe, &format!("{url}/dashboard/join"), "join").await;
    sign_in(&browser, &url, "ada@example.com").await;
    for page in PAGES.into_iter().chain(MANAGED).filter(|page| !page.contains('?')) {
        let name = page.replace(['/', '{', '}'], "-");
        look(&browser, &axe, &format!("{url}{}", things.path(page)), &name).await;
    }
}

/// Looks at a page in both colours and both widths, keeps pictures, and asserts that nobody is shut out.
async fn look(browser: &Browser, axe: &Option<String>, page: &str, name: &str) {
    for (scheme, width, height) in
        [("light", 1920, 1080), ("dark", 1920, 1080), ("light", 360, 740), ("dark", 360, 740)]
    {
        browser.prefer(scheme).await;
        browser.resize(width, height).await;
        browser.open_page(page).await;
        let ready = async || browser.run("return document.readyState").await == "complete";
        eventually(page, ready).await;
        let wide = browser.run("return document.documentElement.scrollWidth").await.as_u64().unwrap();
        assert!(wide <= u64::from(width), "{name} is {wide} pixels wide, of {width}");
        browser.picture_to(&format!("{name}-{scheme}-{width}")).await;
        if let Some(axe) = axe {
            browser.run(axe).await;
            let found = browser.run(LOOK).await;
            assert_eq!(found, Value::Array(Vec::new()), "{name}, {scheme}, {width} pixels wide");
        }
    }
}

/// The script that looks for barriers; `None`, said aloud, where it is not there.
async fn axe() -> Option<String> {
    let cache =
        std::env::var_os("SANDPIPER_CACHE").map_or_else(|| PathBuf::from("/var/cache/sandpiper"), PathBuf::from);
    let script = tokio::fs::read_to_string(cache.join(AXE)).await.ok();
    if script.is_none() {
        skipped("barriers in the dashboard's pages", "run scripts/testing/tools, which fetches axe-core");
    }
    script
}
