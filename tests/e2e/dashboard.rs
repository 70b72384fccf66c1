//! The dashboard with a real guest: what a person does in the first minutes.

use futures_util::{SinkExt, StreamExt};
use reqwest::{Response, StatusCode, redirect};
use serde_json::Value;
use support::Host;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

tests! {
    shared: [
        somebody_invited_joins_starts_a_sandbox_and_uses_its_shell,
    ],
    alone: [],
}

/// A browser, as far as the pages need one.
struct Visitor {
    http: reqwest::Client,
    url: String,
    cookie: String,
}

impl Visitor {
    async fn get(&self, path: &str) -> String {
        let response =
            self.http.get(format!("{}{path}", self.url)).header("cookie", &self.cookie).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.text().await.unwrap()
    }

    /// Sends a form of the page at `page`; the response leads elsewhere.
    async fn send(&self, page: &str, path: &str, fields: &[(&str, &str)]) -> Response {
        let word = if self.cookie.is_empty() { String::new() } else { hidden(&self.get(page).await, "form") };
        let fields = [("form", word.as_str())].into_iter().chain(fields.iter().copied());
        let encoded = reqwest::Url::parse_with_params("http://form", fields).unwrap();
        let request = self.http.post(format!("{}{path}", self.url)).header("cookie", &self.cookie);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let response = request.body(encoded.query().unwrap().to_owned()).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER, "{path}: {:?}", response.text().await);
        response
    }
}

fn hidden(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!(r#"name="{name}" value=""#)).expect("a form");
    rest.split('"').next().unwrap().to_owned()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}

async fn somebody_invited_joins_starts_a_sandbox_and_uses_its_shell() {
    let host = Host::shared();
    let team = sandpiper_protocol::id::generate("crew");
    let invitation = host.api_program(&["team", "invite", &team, "--role", "owner", "--plan", "pro"]);
    let http = reqwest::Client::builder().redirect(redirect::Policy::none()).build().unwrap();
    let mut person = Visitor { http, url: host.api_url.clone(), cookie: String::new() };

    let email = format!("emil@{team}.example");
    let fields =
        [("token", invitation.trim()), ("email", &email), ("name", "Emil"), ("password", "correct horse battery")];
    let joined = person.send("", "/dashboard/join", &fields).await;
    person.cookie = header(&joined, "set-cookie").split(';').next().unwrap().to_owned();
    let new = format!("/dashboard/{team}/new");
    let started = person.send(&new, &new, &[("template", "base"), ("minutes", "10"), ("internet", "yes")]).await;
    let page = header(&started, "location").to_owned();
    assert!(person.get(&page).await.contains(r#"class="state ready""#));

    let socket = format!("{}{page}/terminal/socket?cols=80&rows=24", person.url.replace("http", "ws"));
    let mut request = socket.into_client_request().unwrap();
    request.headers_mut().insert("cookie", person.cookie.parse().unwrap());
    request.headers_mut().insert("origin", person.url.parse().unwrap());
    let (mut shell, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let line = "echo $(uname -s) $(id -un) $((6*7))-there; exit 5\n";
    shell.send(Message::binary(line.as_bytes().to_vec())).await.unwrap();
    let (mut shown, mut told) = (String::new(), Vec::new());
    while let Some(Ok(message)) = shell.next().await {
        match message {
            Message::Binary(bytes) => shown.push_str(&String::from_utf8_lossy(&bytes)),
            Message::Text(text) => told.push(serde_json::from_str::<Value>(&text).unwrap()),
            _ => {}
        }
    }
    assert!(shown.contains("Linux user 42-there"), "{shown}");
    assert_eq!(told.last().unwrap()["ended"], "exit status 5", "{told:?}");

    let act = format!("{page}/do");
    person.send(&page, &act, &[("action", "pause")]).await;
    assert!(person.get(&page).await.contains(r#"class="state stopped""#));
    person.send(&page, &act, &[("action", "delete")]).await;
    assert!(!person.get(&format!("/dashboard/{team}/sandboxes")).await.contains(&page));
}
