//! Signing in at a provider of OpenID Connect, by the dashboard's pages.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::body::Body;
use axum::http::Request;
use sandpiper_accounts::oidc::Settings;
use sandpiper_api::config::Config;
use serde_json::Value;

use crate::dashboard::{form, leads_to};
use crate::support::provider::{Provider, SECRET, Surfer};
use crate::support::{Answer, Host};

mod browser;
mod flow;
mod hostile;
mod linking;

/// Where browsers reach the host.
const ORIGIN: &str = "https://sandpiper.example.com";

/// Sets the provider of this issuer, to which this host is a client with a secret.
fn configure(config: &mut Config, issuer: &str) {
    std::fs::create_dir_all(&config.state_dir).unwrap();
    let file = config.state_dir.join("oidc.secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    config.oidc = Some(settings(issuer, Some(&file)));
}

fn settings(issuer: &str, secret: Option<&Path>) -> Settings {
    Settings {
        issuer: issuer.to_owned(),
        client_id: if secret.is_some() { "sandpiper" } else { "public" }.to_owned(),
        client_secret_file: secret.map(Path::to_owned),
        origin: ORIGIN.to_owned(),
        name: "Example & Co".to_owned(),
        scopes: vec!["email".to_owned(), "profile".to_owned()],
        sign_up: false,
        allowed_domains: Vec::new(),
    }
}

/// Where a provider sends browsers back to.
fn redirect_uri(origin: &str) -> String {
    format!("{origin}/dashboard/sign-in/oidc/callback")
}

/// A provider, and a host where people sign in at it.
async fn stage(change: impl FnOnce(&mut Settings)) -> Option<(Provider, Host)> {
    let provider = Provider::start(&redirect_uri(ORIGIN)).await?;
    let host = Host::with(|config| {
        configure(config, &provider.issuer);
        change(config.oidc.as_mut().unwrap());
    })
    .await;
    Some((provider, host))
}

/// Somebody's browser: what it has of this host, and of the provider.
struct Browser<'a> {
    host: &'a Host,
    surfer: Surfer,
}

/// A sign-in that this browser has begun.
struct Begun {
    /// At the provider.
    url: String,
    /// The cookie of this host.
    cookie: String,
}

impl<'a> Browser<'a> {
    fn of(host: &'a Host) -> Self {
        Self { host, surfer: Surfer::new() }
    }

    async fn get(&self, path: &str, cookie: &str) -> Answer {
        let request = Request::get(path).header("cookie", cookie).header("host", "sandpiper.example.com");
        self.host.send(request.body(Body::empty()).unwrap()).await
    }

    async fn begin(&self) -> Begun {
        let answer = self.get("/dashboard/sign-in/oidc", "").await;
        Begun { url: leads_to(&answer).to_owned(), cookie: cookie(&answer, "__Host-sandpiper-oidc") }
    }

    /// Back from the provider.
    async fn end(&self, begun: &Begun, callback: &str) -> Answer {
        self.get(callback, &begun.cookie).await
    }

    /// All of it, as whom the provider knows under this name.
    async fn sign_in(&self, name: &str) -> Answer {
        let begun = self.begin().await;
        let callback = self.surfer.sign_in(&begun.url, name).await;
        self.end(&begun, &callback).await
    }

    /// Likewise, with an invitation.
    async fn join(&self, invitation: &str, name: &str) -> Answer {
        let answer = self.host.send(form("", "/dashboard/join/oidc", &[("token", invitation)], &[])).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
        let (_, rest) = answer.text.split_once(r#"content="0;url="#).expect("a way on");
        let url = rest.split_once('"').unwrap().0.replace("&#38;", "&").replace("&amp;", "&");
        let begun = Begun { url, cookie: cookie(&answer, "__Host-sandpiper-oidc") };
        let callback = self.surfer.sign_in(&begun.url, name).await;
        self.end(&begun, &callback).await
    }
}

/// The cookie of this name that a response sets, as it is sent back.
#[track_caller]
fn cookie(answer: &Answer, name: &str) -> String {
    let mut cookies = answer.headers.get_all("set-cookie").into_iter().map(|value| value.to_str().unwrap());
    let found = cookies.find(|cookie| cookie.starts_with(&format!("{name}=")));
    let found = found.unwrap_or_else(|| panic!("{} sets no {name}: {}", answer.status, answer.text));
    for attribute in ["; Path=/;", "; Secure", "; HttpOnly", "; SameSite=Lax", "; Max-Age="] {
        assert!(found.contains(attribute), "{found}");
    }
    found.split_once(';').unwrap().0.to_owned()
}

/// The token of the session that a sign-in has brought.
#[track_caller]
fn session(answer: &Answer) -> String {
    assert_eq!(leads_to(answer), "/dashboard");
    let (_, token) =
        cookie(answer, "__Host-sandpiper").split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    token
}

/// Asserts that nobody was signed in, and that the page says why, with the form for a password.
#[track_caller]
fn refused(answer: &Answer, status: u16, why: &str) {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
    assert!(answer.text.contains(why), "{why}: {}", answer.text);
    assert!(answer.text.contains(r#"name="password""#), "{}", answer.text);
    let sessions = answer.headers.get_all("set-cookie").into_iter();
    let sessions = sessions.filter(|cookie| cookie.to_str().unwrap().starts_with("__Host-sandpiper="));
    assert_eq!(sessions.count(), 0, "a session has begun");
}

/// What `GET /v1/me` says.
async fn me(host: &Host, token: &str) -> Value {
    host.call("GET", "/v1/me", token, None).await.expect(200)
}

/// Users, by their ends in the audit of sign-ins at the provider, newest first.
async fn audited(host: &Host) -> Vec<(Option<String>, u16)> {
    let entries = host.app.store.audit.newest(None, 100).await.unwrap().into_iter();
    let entries = entries.filter(|entry| entry.action == "POST /v1/login/oidc");
    entries.map(|entry| (entry.user_id, entry.status)).collect()
}
