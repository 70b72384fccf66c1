//! The dashboard: what its pages show and do, for whom, and what they never do.

use axum::body::Body;
use axum::http::Request;
use url::form_urlencoded::Serializer;

use crate::support::{Answer, Host};

mod browser;
mod files;
mod forms;
mod pages;
mod safety;
mod sign_in;
mod terminal;

pub(crate) use browser::{axe, listen, look, serve_on};

/// Somebody who looks, with the cookie of a session.
pub(crate) struct Visitor<'a> {
    host: &'a Host,
    cookie: String,
}

impl Host {
    /// Who has this session.
    pub(crate) fn visitor(&self, token: &str) -> Visitor<'_> {
        Visitor { host: self, cookie: format!("__Host-sandpiper={token}") }
    }

    /// A form that is sent without a session.
    pub(crate) async fn entrance(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Answer {
        self.send(form("", path, fields, headers)).await
    }
}

impl Visitor<'_> {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.host.send(Request::get(path).header("cookie", &self.cookie).body(Body::empty()).unwrap()).await
    }

    /// The page, which must be there.
    pub(crate) async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status.as_u16(), 200, "{path}: {}", answer.text);
        answer.text
    }

    /// The word of the forms of this session's pages.
    async fn word(&self) -> String {
        let page = self.page("/dashboard/account").await;
        hidden(&page, "form").unwrap()
    }

    /// Sends these fields as a form of one of the pages, with its word.
    pub(crate) async fn send(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let word = self.word().await;
        self.send_as(&word, path, fields).await
    }

    /// Sends files as a form of one of the pages, with its word.
    async fn upload(&self, path: &str, files: &[(&str, &[u8])]) -> Answer {
        let word = self.word().await;
        self.host.send(upload(&self.cookie, path, &[("form", &word)], files)).await
    }

    pub(crate) async fn send_as(&self, word: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let fields: Vec<_> = [("form", word)].into_iter().chain(fields.iter().copied()).collect();
        self.host.send(form(&self.cookie, path, &fields, &[])).await
    }
}

/// What a form with files is sent as: these fields, and files by their names.
fn upload(cookie: &str, path: &str, fields: &[(&str, &str)], files: &[(&str, &[u8])]) -> Request<Body> {
    let mut body = Vec::new();
    let parts = fields.iter().map(|(name, value)| (format!("\"{name}\""), value.as_bytes()));
    let files = files.iter().map(|(name, content)| (format!("\"file\"; filename=\"{name}\""), *content));
    for (name, content) in parts.chain(files) {
        body.extend(format!("--b\r\nContent-Disposition: form-data; name={name}\r\n\r\n").into_bytes());
        body.extend(content);
        body.extend(b"\r\n");
    }
    body.extend(b"--b--\r\n");
    let request = Request::post(path).header("content-type", "multipart/form-data; boundary=b");
    request.header("cookie", cookie).body(body.into()).unwrap()
}

pub(crate) fn form(cookie: &str, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::post(path).header("content-type", "application/x-www-form-urlencoded");
    if !cookie.is_empty() {
        request = request.header("cookie", cookie);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Serializer::new(String::new()).extend_pairs(fields).finish();
    request.body(body.into()).unwrap()
}

/// The value of the first hidden field of this name.
pub(crate) fn hidden(page: &str, name: &str) -> Option<String> {
    let (_, rest) = page.split_once(&format!(r#"type="hidden" name="{name}" value=""#))?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Where a response leads.
#[track_caller]
pub(crate) fn leads_to(answer: &Answer) -> &str {
    assert_eq!(answer.status.as_u16(), 303, "{}", answer.text);
    answer.header("location").unwrap()
}
