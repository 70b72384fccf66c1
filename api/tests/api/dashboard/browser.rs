//! The dashboard in a real browser: a person signs in, starts a sandbox, and sees what becomes of it. What every page looks like
//! is kept as pictures in `target/tmp/dashboard`.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use sandpiper_accounts::Role;
use sandpiper_protocol::agent::MetricPoint;
use sandpiper_skip::skipped;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::pages::{MANAGED, PAGES, Things};
use crate::accounts::PASSWORD;
use crate::support::browser::Browser;
use crate::support::data_plane::data_plane;
use crate::support::{Host, eventually};

/// What looks for barriers (scripts/testing/tools).
const AXE: &str = "tools/axe-core-4.14.1.js";
/// The rules of WCAG 2.2, A and AA; and those of them that a colour scheme has a part in.
const ALL_RULES: &str = "const runOnly = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];";
const COLOUR_RULES: &str = "const runOnly = ['color-contrast', 'link-in-text-block'];";
/// Barriers that it finds by these rules.
const LOOK: &str = "const found = await axe.run(document, {runOnly}); \
                    return found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' '));";
/// What has moved since the page was loaded, and how far (wicg.github.io/layout-instability). Nothing is told where nothing has,
/// so that it is waited for a moment.
const SHIFTS: &str = "const entries = await new Promise(resolve => { \
                        new PerformanceObserver(list => resolve(list.getEntries())).observe({type: 'layout-shift', buffered: true}); \
                        setTimeout(() => resolve([]), 100); }); \
                      return entries.map(one => one.value + ': ' + one.sources.map(source => source.node?.outerHTML ?? source.node?.textContent));";

/// The routes of a host on a port, under the name that browsers take secure cookies from.
pub(super) async fn serve(host: &Host) -> (String, AbortOnDropHandle<()>) {
    let (listener, url) = listen().await;
    (url, serve_on(listener, host))
}

/// A port, and how it is reached.
pub(crate) async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    (listener, url)
}

/// The routes of a host on this port.
pub(crate) fn serve_on(listener: TcpListener, host: &Host) -> AbortOnDropHandle<()> {
    let router = host.router();
    AbortOnDropHandle::new(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }))
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
    // Also in a tab that shows the page already, which is not loaded again for it.
    browser.open_page(&format!("{url}/dashboard/join")).await;
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
async fn a_person_sends_files_and_asks_what_a_policy_means() {
    let Some((data_plane, folder)) = data_plane("files that are dropped on a page").await else { return };
    let Some(browser) = Browser::open("files that are dropped on a page").await else { return };
    let host = Host::new().await;
    host.agent.records().data_plane = Some(data_plane);
    let (url, _server) = serve(&host).await;
    host.user("ada@example.com", "acme", Role::Member).await;
    let id = host.sandbox().await;
    sign_in(&browser, &url, "ada@example.com").await;
    let (chosen, place) = (folder.path().join("chosen.txt"), folder.path().join("place"));
    std::fs::create_dir(&place).unwrap();
    std::fs::write(&chosen, "chosen").unwrap();
    browser.open_page(&format!("{url}/dashboard/acme/sandboxes/{id}/files?path={}", place.display())).await;
    browser.press("#file", chosen.to_str().unwrap()).await;
    browser.click("form[data-upload] button").await;
    browser.says("#uploads", "sent").await;
    browser.says("#entries", "chosen.txt").await;
    assert_eq!(std::fs::read(place.join("chosen.txt")).unwrap(), b"chosen");
    let drop = |name: &str| {
        format!(
            "const dataTransfer = new DataTransfer(); dataTransfer.items.add(new File(['dropped'], '{name}')); \
             dispatchEvent(new DragEvent('drop', {{dataTransfer, cancelable: true}}));"
        )
    };
    browser.run(&drop("dropped.txt")).await;
    browser.says("#entries", "dropped.txt").await;
    browser.run(&drop(&"x".repeat(300))).await;
    browser.says("#uploads .problem", "A name has 1 to 255 bytes").await;
    browser.picture_to("upload").await;

    browser.open_page(&format!("{url}/dashboard/acme/sandboxes/{id}/network")).await;
    browser.write("#deny_out", "*.example.org").await;
    browser.press("#destinations", "a.example.org\nexample.com").await;
    browser.says("#decisions .denied", "tcp:a.example.org:443").await;
    browser.says("#decisions .allowed", "allow_internet_access true").await;
    browser.picture_to("explain").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_for_everybody_light_and_dark_wide_and_narrow() {
    let Some(browser) = Browser::open("every page").await else { return };
    let axe = axe().await;
    let host = Host::new().await;
    let (url, _server) = serve(&host).await;
    let things = Things::make(&host).await;
    host.user("ada@example.com", "acme", Role::Owner).await;
    // What moves is told.
    browser.open_page(&format!("{url}/dashboard/sign-in")).await;
    browser.run("await new Promise(requestAnimationFrame); document.body.prepend('late');").await;
    assert_ne!(browser.run(SHIFTS).await, Value::Array(Vec::new()));
    look(&browser, &axe, &format!("{url}/dashboard/sign-in"), "sign-in").await;
    look(&browser, &axe, &format!("{url}/dashboard/join"), "join").await;
    sign_in(&browser, &url, "ada@example.com").await;
    for page in PAGES.into_iter().chain(MANAGED).filter(|page| !page.contains('?') || page.contains("{folder}")) {
        let name = page.replace(['/', '{', '}', '?', '='], "-");
        look(&browser, &axe, &format!("{url}{}", things.path(page)), &name).await;
    }
    picture_for_the_readme(&browser, &host, &url).await;
}

/// A page as the README shows it: a sandbox at work. Looks only; what is seen on it is tested above.
async fn picture_for_the_readme(browser: &Browser, host: &Host, url: &str) {
    let metadata = json!({"agent": "analyst-7", "task": "quarterly report"});
    let ports = json!([{"port": 8000, "protocol": "http", "public": true}]);
    let network = json!(["api.example.com:443", "*.example.org"]);
    let wanted = json!({"template": "base", "timeout": 3600, "metadata": metadata, "exposed_ports": ports,
                        "allow_internet_access": false, "allow_out": network});
    let created = host.create(wanted).await.expect(201);
    let id = created["id"].as_str().unwrap().to_owned();
    for name in ["tools-installed", "data-loaded"] {
        host.checkpoint(&id, json!({"name": name, "memory": true})).await;
    }
    let now = Timestamp::now();
    for step in 0_u32..180 {
        let wave = (f64::from(step) / 9.0).sin() + (f64::from(step) / 31.0).sin();
        // Between 0 and 4: far below what the numbers hold.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let share = |of: f64| ((wave + 2.0) * of / 4.0) as u64;
        let point = MetricPoint {
            time: now - SignedDuration::from_secs(5 * i64::from(180 - step)),
            cpu_millis: share(900.0),
            memory_bytes: (90 << 20) + u64::from(step) * (700 << 10),
            disk_bytes: (200 << 20) + u64::from(step / 20) * (9 << 20),
            received_bytes_per_second: share(900_000.0),
            sent_bytes_per_second: share(120_000.0),
        };
        host.agent.records().metrics.entry(id.clone()).or_default().push(point);
    }
    browser.prefer("light").await;
    browser.resize(1280, 860).await;
    browser.open_page(&format!("{url}/dashboard/acme/sandboxes/{id}")).await;
    browser.says("main", "CPU").await;
    // The stand-in has none that looks like one.
    browser.run("document.querySelector('.facts small').textContent = 'ver06h1a9w2m4k7c3e8z5t0v1b'").await;
    browser.picture_to("readme").await;
}

/// Looks at a page in both widths and both colours, keeps pictures, and asserts that nobody is shut out and nothing moves.
pub(crate) async fn look(browser: &Browser, axe: &Option<String>, page: &str, name: &str) {
    for (width, height) in [(1920, 1080), (360, 740)] {
        browser.prefer("light").await;
        browser.resize(width, height).await;
        browser.open_page(page).await;
        let ready = async || browser.run("return document.readyState").await == "complete";
        eventually(page, ready).await;
        assert_eq!(browser.run(SHIFTS).await, Value::Array(Vec::new()), "{name}, {width} pixels wide, moves");
        let wide = browser.run("return document.documentElement.scrollWidth").await.as_u64().unwrap();
        assert!(wide <= u64::from(width), "{name} is {wide} pixels wide, of {width}");
        if let Some(axe) = axe {
            browser.run(axe).await;
        }
        for (scheme, rules) in [("light", ALL_RULES), ("dark", COLOUR_RULES)] {
            browser.prefer(scheme).await;
            browser.picture_to(&format!("{name}-{scheme}-{width}")).await;
            if axe.is_some() {
                let found = browser.run(&format!("{rules} {LOOK}")).await;
                assert_eq!(found, Value::Array(Vec::new()), "{name}, {scheme}, {width} pixels wide");
            }
        }
    }
}

/// The script that looks for barriers; `None`, said aloud, where it is not there.
pub(crate) async fn axe() -> Option<String> {
    let cache =
        std::env::var_os("SANDPIPER_CACHE").map_or_else(|| PathBuf::from("/var/cache/sandpiper"), PathBuf::from);
    let script = tokio::fs::read_to_string(cache.join(AXE)).await.ok();
    if script.is_none() {
        skipped("barriers in the dashboard's pages", "run scripts/testing/tools, which fetches axe-core");
    }
    script
}
