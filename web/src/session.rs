//! The cookie that holds a login session's token.
//!
//! `__Host-` has browsers keep it for this host alone: a sandbox's preview, on a host below this one, neither gets nor sets it.
//! They take it over TLS, and on the machine itself (`localhost`).

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use sandpiper_db::hex;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const COOKIE: &str = "__Host-sandpiper";
/// What a token is made of: anything else in the cookie is no token, and would not fit a header.
const MAX_TOKEN: usize = 128;

/// A login session, as a browser holds it; whether it is over the API says.
#[derive(Clone)]
pub struct Session(Zeroizing<String>);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session(…)")
    }
}

impl Session {
    fn parse(token: &str) -> Option<Self> {
        let is_token = token.len() <= MAX_TOKEN && !token.is_empty();
        let fits = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (is_token && fits).then(|| Self(Zeroizing::new(token.to_owned())))
    }

    /// The token itself.
    pub fn token(&self) -> &str {
        &self.0
    }

    /// What every form of this session's pages carries. It tells nothing about the token.
    pub fn form_word(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"sandpiper dashboard form\0");
        hash.update(self.0.as_bytes());
        hex::encode(&hash.finalize())
    }

    /// The header with which the token is shown to the API.
    pub fn authorization(&self) -> HeaderValue {
        let text = Zeroizing::new(format!("Bearer {}", *self.0));
        // Letters and digits: see `parse`.
        let mut value = HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        value.set_sensitive(true);
        value
    }
}

/// The cookie of a session that has begun and ends by itself at `until`.
pub fn cookie(token: &str, until: Timestamp, now: Timestamp) -> String {
    let seconds = until.duration_since(now).as_secs().max(0);
    format!("{COOKIE}={token}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax")
}

/// What takes the cookie away.
pub fn no_cookie() -> String {
    format!("{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax")
}

/// The session of a request, if it has one.
#[derive(Debug, Clone)]
pub struct MaybeSession(pub Option<Session>);

impl<S: Sync> FromRequestParts<S> for MaybeSession {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(cookie_of(&parts.headers, COOKIE).and_then(Session::parse)))
    }
}

/// The value of the first cookie of this name.
pub fn cookie_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(named, _)| *named == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(cookies: &[&str]) -> Option<Session> {
        let mut request = axum::http::Request::builder();
        for cookie in cookies {
            request = request.header(header::COOKIE, *cookie);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        MaybeSession::from_request_parts(&mut parts, &()).await.unwrap().0
    }

    #[tokio::test]
    async fn only_a_token_in_the_cookie_of_this_name_is_a_session() {
        assert!(of(&["a=b; __Host-sandpiper=sps_12ab; c=d"]).await.is_some());
        assert!(of(&["a=b", "__Host-sandpiper=sps_12ab"]).await.is_some());
        for cookie in ["sandpiper=sps_12ab", "__Host-sandpiper=", "__Host-sandpiper=a\"b", "__Host-sandpiper"] {
            assert!(of(&[cookie]).await.is_none(), "{cookie}");
        }
        assert!(of(&[&format!("__Host-sandpiper={}", "a".repeat(MAX_TOKEN + 1))]).await.is_none());
    }

    #[test]
    fn the_word_of_a_form_is_the_sessions_own_and_not_its_token() {
        let (one, two) = (Session::parse("sps_1").unwrap(), Session::parse("sps_2").unwrap());
        assert_ne!(one.form_word(), two.form_word());
        assert_eq!(one.form_word(), Session::parse("sps_1").unwrap().form_word());
        assert!(!one.form_word().contains("sps_1"));
    }
}
