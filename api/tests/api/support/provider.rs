//! A certified provider of OpenID Connect, of its own process: `provider/main.mjs`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;

use reqwest::redirect::Policy;
use sandpiper_skip::skipped;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::BOUND;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/support/provider/main.mjs");
/// What scripts/testing/tools installs.
const FOLDER: &str = "tools/oidc-provider-9.13.3";
/// The oldest Node that it runs on.
const NODE: u32 = 20;
/// The secret of its client `sandpiper`.
pub(crate) const SECRET: &str = "a secret: 100% of it";

/// The provider. It ends with this.
pub(crate) struct Provider {
    pub(crate) issuer: String,
    process: Child,
    http: reqwest::Client,
}

impl Provider {
    /// One that sends browsers back to this address. `None`, said aloud, where it cannot run.
    pub(crate) async fn start(redirect_uri: &str) -> Option<Self> {
        const WHAT: &str = "signing in at a provider";
        let version = Command::new("node").arg("--version").output().await;
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < NODE) {
            skipped(WHAT, "this machine does not have Node 20 or later");
            return None;
        }
        let cache =
            std::env::var_os("SANDPIPER_CACHE").map_or_else(|| PathBuf::from("/var/cache/sandpiper"), PathBuf::from);
        let folder = cache.join(FOLDER);
        if !folder.join("installed").exists() {
            skipped(WHAT, "run scripts/testing/tools, which installs oidc-provider");
            return None;
        }
        let mut command = Command::new("node");
        command.arg(PROGRAM).arg(&folder).arg(redirect_uri).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let issuer = timeout(BOUND, lines.next_line()).await.expect("it starts").unwrap().expect("an issuer");
        Some(Self { issuer, process, http: reqwest::Client::builder().no_proxy().build().unwrap() })
    }

    /// Has it know somebody, by a name that is the subject, too.
    pub(crate) async fn person(&self, name: &str, claims: Value) {
        self.tell("people", json!({name: claims})).await;
    }

    /// Has it sign with other keys.
    pub(crate) async fn change_keys(&self) {
        self.tell("keys", json!({})).await;
    }

    /// Has it tell of people in ID tokens.
    pub(crate) async fn tell_in_id_tokens(&self) {
        self.tell("claims", json!({"in_id_token": true})).await;
    }

    async fn tell(&self, what: &str, body: Value) {
        let url = format!("{}/-/{what}", self.issuer);
        let told = self.http.put(url).body(body.to_string()).send().await.unwrap();
        assert!(told.status().is_success(), "{what}: {}", told.status());
    }

    /// Ends it.
    pub(crate) async fn stop(&mut self) {
        self.process.kill().await.unwrap();
    }
}

/// What somebody has of the provider in a browser: its cookies, by name.
pub(crate) struct Surfer {
    http: reqwest::Client,
    cookies: Mutex<HashMap<String, String>>,
}

impl Surfer {
    pub(crate) fn new() -> Self {
        let http = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        Self { http, cookies: Mutex::default() }
    }

    /// Goes to an address at the provider, signs in there under this name, agrees to all, and is sent back: whither, without the
    /// origin.
    pub(crate) async fn sign_in(&self, url: &str, name: &str) -> String {
        self.walk(url, async |page| {
            let prompt = if page.contains(r#"name="login""#) { "login" } else { "consent" };
            let fields = [("prompt", prompt), ("login", name), ("password", "any")];
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
            let action = between(page, r#"action=""#);
            let request = self.http.post(action).header("content-type", "application/x-www-form-urlencoded");
            self.send(request.body(form)).await
        })
        .await
    }

    /// Likewise, but does not sign in after all.
    pub(crate) async fn cancel(&self, url: &str) -> String {
        self.walk(url, async |page| {
            let (before, _) = page.split_once(r#"">[ Cancel ]"#).expect("a way out");
            let (_, way) = before.rsplit_once('"').unwrap();
            self.send(self.http.get(way)).await
        })
        .await
    }

    /// Follows redirects, and has `fill` answer the pages, until one leads away from the provider.
    async fn walk(&self, url: &str, fill: impl AsyncFn(&str) -> reqwest::Response) -> String {
        let own = url::Url::parse(url).unwrap();
        let mut response = self.send(self.http.get(url)).await;
        for _ in 0..20 {
            let Some(location) = response.headers().get("location") else {
                assert!(response.status().is_success(), "{}: {}", response.url(), response.status());
                let page = response.text().await.unwrap();
                response = fill(&page).await;
                continue;
            };
            let next = response.url().join(location.to_str().unwrap()).unwrap();
            if next.origin() != own.origin() {
                return next[url::Position::BeforePath..].to_owned();
            }
            response = self.send(self.http.get(next)).await;
        }
        panic!("the provider sends nobody back from {url}");
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> reqwest::Response {
        let cookies: Vec<_> =
            self.cookies.lock().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        let response = request.header("cookie", cookies.join("; ")).send().await.unwrap();
        for cookie in response.headers().get_all("set-cookie") {
            let (pair, _) = cookie.to_str().unwrap().split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            self.cookies.lock().unwrap().insert(name.to_owned(), value.to_owned());
        }
        response
    }
}

/// What is between this text and the next quote.
fn between<'a>(page: &'a str, before: &str) -> &'a str {
    let (_, rest) = page.split_once(before).unwrap_or_else(|| panic!("no {before} in {page}"));
    rest.split_once('"').unwrap().0
}
