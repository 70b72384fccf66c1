//! The access tokens in a request: taken out, so that no guest ever sees one.
//!
//! A token may come as `Authorization: Bearer`, as `X-Access-Token` (the E2B SDKs need `Authorization: Basic` to name the
//! Linux user), or, where a WebSocket is asked for and a browser cannot set headers, as `?access_token=`. A traffic token,
//! which opens ports alone, comes as `E2b-Traffic-Access-Token`.
//!
//! Whatever has the form of our tokens is removed before a request is forwarded, good or not: one sent to the wrong
//! sandbox by mistake would otherwise hand its tenant the key to another. Credentials of the user's own application pass.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use super::lasting::TRAFFIC_PREFIX;
use crate::session::{SessionError, Sessions, TOKEN_PREFIX};

/// Never sent to a guest when it holds one of our tokens.
const X_ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// Likewise.
const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
const QUERY_PARAMETER: &str = "access_token=";

/// What was found in a request.
#[derive(Default)]
pub(super) struct Credentials {
    access: Shown,
    traffic: Shown,
}

/// What was shown as tokens of one kind.
#[derive(Default)]
struct Shown {
    tokens: Vec<String>,
    /// Something stood where a token belongs that is none.
    unknown: bool,
}

/// Why a request may not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    Missing,
    Wrong(SessionError),
    /// The URL is signed, with something else than the sandbox's token, or was changed since.
    WrongSignature,
    SignatureExpired,
}

/// Why a request may not pass to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrafficDenied {
    Missing,
    Wrong,
}

impl Credentials {
    /// Takes our tokens out of `headers` and `path_and_query`. The query's count only where a WebSocket is asked for,
    /// because query strings end up in histories and logs; they are removed in any case.
    pub(super) fn take(headers: &mut HeaderMap, path_and_query: &mut String, websocket: bool) -> Credentials {
        let mut found = Credentials::default();
        retain(headers, AUTHORIZATION, |value| match bearer(value) {
            Some(token) => found.access.note(token, TOKEN_PREFIX),
            None => true,
        });
        retain(headers, X_ACCESS_TOKEN, |value| found.access.note(value.as_bytes(), TOKEN_PREFIX));
        retain(headers, TRAFFIC_TOKEN, |value| found.traffic.note(value.as_bytes(), TRAFFIC_PREFIX));
        found.take_query(path_and_query, websocket);
        found
    }

    /// Whether one of the tokens opens `sandbox_id`.
    pub(super) fn check(&self, sessions: &Sessions, sandbox_id: &str) -> Result<(), Denied> {
        let mut denied = if self.access.unknown { Denied::Wrong(SessionError::Malformed) } else { Denied::Missing };
        for token in &self.access.tokens {
            match sessions.verify(token, sandbox_id) {
                Ok(()) => return Ok(()),
                Err(error) => denied = Denied::Wrong(error),
            }
        }
        Err(denied)
    }

    /// Whether one of the traffic tokens opens the ports of `sandbox_id`.
    pub(super) fn check_traffic(&self, sessions: &Sessions, sandbox_id: &str) -> Result<(), TrafficDenied> {
        if self.traffic.tokens.iter().any(|token| sessions.is_traffic_token(token, sandbox_id)) {
            return Ok(());
        }
        let was_shown = self.traffic.unknown || !self.traffic.tokens.is_empty();
        Err(if was_shown { TrafficDenied::Wrong } else { TrafficDenied::Missing })
    }

    fn take_query(&mut self, path_and_query: &mut String, websocket: bool) {
        let Some((path, query)) = path_and_query.split_once('?') else { return };
        let is_ours = |pair: &&str| pair.strip_prefix(QUERY_PARAMETER).is_some_and(|t| t.starts_with(TOKEN_PREFIX));
        let (ours, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_ours);
        if ours.is_empty() {
            return;
        }
        if websocket {
            // Our tokens have no character that would be percent-encoded.
            self.access.tokens.extend(ours.iter().map(|pair| pair[QUERY_PARAMETER.len()..].to_owned()));
        }
        *path_and_query = if others.is_empty() { path.to_owned() } else { format!("{path}?{}", others.join("&")) };
    }
}

impl Shown {
    /// Notes a value; true when it does not begin as our tokens do, and may pass. Where bytes follow a token that are no text,
    /// it opens nothing, but whoever gets it can still read it.
    fn note(&mut self, value: &[u8], prefix: &str) -> bool {
        let is_ours = value.starts_with(prefix.as_bytes());
        match std::str::from_utf8(value) {
            Ok(token) if is_ours => self.tokens.push(token.to_owned()),
            _ => self.unknown = true,
        }
        !is_ours
    }
}

/// What the E2B SDKs send as their access token, whatever it is.
pub(super) fn access_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(X_ACCESS_TOKEN)?.to_str().ok()
}

/// Keeps those values of `name` for which `keep` holds.
fn retain(headers: &mut HeaderMap, name: HeaderName, mut keep: impl FnMut(&HeaderValue) -> bool) {
    if !headers.contains_key(&name) {
        return;
    }
    let values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
    let kept: Vec<HeaderValue> = values.iter().filter(|value| keep(value)).cloned().collect();
    if kept.len() < values.len() {
        headers.remove(&name);
        for value in kept {
            headers.append(name.clone(), value);
        }
    }
}

/// The credential of the scheme `Bearer`, whose name has no case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = value.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sessions() -> (tempfile::TempDir, Sessions) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sessions = Sessions::open(&folder.path().join("key"), Duration::from_secs(60)).expect("a key");
        (folder, sessions)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")))
            .collect()
    }

    #[test]
    fn basic_selects_the_user_while_the_token_comes_beside_it() {
        let (_folder, sessions) = sessions();
        let (token, _) = sessions.mint("sbxa", None);
        let mut headers = headers(&[("authorization", "Basic cm9vdDo="), ("x-access-token", &token)]);

        let found = Credentials::take(&mut headers, &mut "/".to_owned(), false);

        assert_eq!(found.check(&sessions, "sbxa"), Ok(()));
        assert_eq!(found.check(&sessions, "sbxb"), Err(Denied::Wrong(SessionError::Foreign)));
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["authorization"], "Basic cm9vdDo=");
    }

    #[test]
    fn the_application_keeps_its_own_credentials() {
        let mut headers = headers(&[("authorization", "Bearer app-token"), ("x-access-token", "app")]);
        let mut path = "/socket?access_token=app&x=1".to_owned();

        let found = Credentials::take(&mut headers, &mut path, true);

        let (_folder, sessions) = sessions();
        assert_eq!(found.check(&sessions, "sbxa"), Err(Denied::Wrong(SessionError::Malformed)));
        assert_eq!(headers.len(), 2);
        assert_eq!(path, "/socket?access_token=app&x=1");
    }

    #[test]
    fn a_token_in_the_query_counts_for_websockets_and_is_always_removed() {
        let (_folder, sessions) = sessions();
        let (token, _) = sessions.mint("sbxa", None);
        let mut path = format!("/socket?a=1&access_token={token}&b=2");
        let found = Credentials::take(&mut HeaderMap::new(), &mut path, true);
        assert_eq!(found.check(&sessions, "sbxa"), Ok(()));
        assert_eq!(path, "/socket?a=1&b=2");

        let mut path = format!("/page?access_token={token}");
        let found = Credentials::take(&mut HeaderMap::new(), &mut path, false);
        assert_eq!(found.check(&sessions, "sbxa"), Err(Denied::Missing));
        assert_eq!(path, "/page");
    }

    #[test]
    fn a_traffic_token_opens_ports_and_never_reaches_a_guest() {
        let (_folder, sessions) = sessions();
        let token = sessions.traffic("sbxa");
        let mut shown = headers(&[("e2b-traffic-access-token", &token)]);

        let found = Credentials::take(&mut shown, &mut "/".to_owned(), false);

        assert!(shown.is_empty());
        assert_eq!(found.check_traffic(&sessions, "sbxa"), Ok(()));
        assert_eq!(found.check_traffic(&sessions, "sbxb"), Err(TrafficDenied::Wrong));
        assert_eq!(found.check(&sessions, "sbxa"), Err(Denied::Missing));
        let found = Credentials::take(&mut headers(&[("e2b-traffic-access-token", "x")]), &mut "/".to_owned(), false);
        assert_eq!(found.check_traffic(&sessions, "sbxa"), Err(TrafficDenied::Wrong));
        assert_eq!(Credentials::default().check_traffic(&sessions, "sbxa"), Err(TrafficDenied::Missing));
    }

    #[test]
    fn a_token_before_bytes_that_are_no_text_opens_nothing_and_reaches_no_guest() {
        let (_folder, sessions) = sessions();
        let [access, traffic] = [sessions.mint("sbxa", None).0, sessions.traffic("sbxa")];
        let shown = [
            ("authorization", format!("Bearer {access}")),
            ("x-access-token", access),
            ("e2b-traffic-access-token", traffic),
        ];
        for (name, value) in shown {
            let value = HeaderValue::from_bytes(&[value.as_bytes(), b"\xff"].concat()).expect("a value");
            let mut headers = HeaderMap::from_iter([(HeaderName::from_static(name), value)]);

            let found = Credentials::take(&mut headers, &mut "/".to_owned(), false);

            assert!(headers.is_empty(), "{name}");
            assert!(found.check(&sessions, "sbxa").is_err());
            assert!(found.check_traffic(&sessions, "sbxa").is_err());
        }
    }

    #[test]
    fn the_scheme_has_no_case() {
        let (_folder, sessions) = sessions();
        let (token, _) = sessions.mint("sbxa", None);
        let mut headers = headers(&[("authorization", &format!("bEARER  {token}"))]);
        let found = Credentials::take(&mut headers, &mut "/".to_owned(), false);
        assert_eq!(found.check(&sessions, "sbxa"), Ok(()));
        assert!(headers.is_empty());
    }
}
