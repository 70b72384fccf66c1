//! The page that people see instead of a response.
//!
//! It is one document without script, font, image or anything else to load, and its policy lets a browser load nothing
//! and apply no style but this one. All that is put into it are constants of the proxy, numbers and ids made here: no part
//! of a request is repeated, so there is nothing to escape.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

/// Light or dark, as the reader has it.
const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1f2428; --soft: #6a737d; --line: #d8dee4; --ground: #fbfbfa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #8b949e; --line: #30363d; --ground: #14171a; }
}
body { margin: 0; min-height: 100vh; display: grid; place-content: center; background: var(--ground); color: var(--ink);
  font: 17px/1.6 system-ui, sans-serif; }
main { max-width: 34rem; padding: 2rem; }
h1 { margin: .2rem 0 .8rem; font-size: 1.7rem; line-height: 1.25; font-weight: 600; }
p { margin: 0; }
.status, footer { color: var(--soft); font-size: .85rem; }
footer { margin-top: 2rem; padding-top: 1rem; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
code { font: .95em ui-monospace, monospace; }
";

/// `Content-Security-Policy` of everything that the proxy says itself.
pub(super) static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let style = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    );
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// What the page says.
pub(super) struct Page<'a> {
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) message: &'static str,
    pub(super) port: Option<u16>,
    pub(super) request_id: &'a str,
}

impl Page<'_> {
    pub(super) fn render(&self) -> Bytes {
        let Page { status, title, message, port, request_id } = self;
        let port = port.map(|port| format!(" · Port {port}")).unwrap_or_default();
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n<main>\n<p class=\"status\">{status}{port}</p>\n<h1>{title}</h1>\n<p>{message}.</p>\n\
             <footer>Sandpiper · <code>{request_id}</code></footer>\n</main>\n</html>\n"
        )
        .into()
    }
}
