//! Which header fields pass through the proxy, and which it sets (RFC 9110 section 7.6).

use std::net::IpAddr;

use http::header::{
    CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

/// Fields that concern one connection only, apart from those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes the fields that concern the connection a message came on. `Content-Length` may go too, if a peer names it in
/// `Connection`: the framing of the next hop follows the body as it was parsed, never a field.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = list(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The elements of a comma-separated field, over all its lines.
pub(super) fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|element| !element.is_empty())
}

/// What a guest is told about where a request came from.
pub(super) struct Origin<'a> {
    pub(super) peer: IpAddr,
    /// `http` or `https`.
    pub(super) scheme: &'static str,
    /// Host as the client sent it, port included.
    pub(super) host: &'a HeaderValue,
}

/// Makes the fields of a client's request those of the request to the guest.
pub(super) fn prepare_request(headers: &mut HeaderMap, origin: &Origin<'_>) {
    let trailers = list(headers, &TE).any(|coding| coding.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    // Answered here: hyper asks the client for the body as soon as the guest's connection wants it.
    headers.remove(EXPECT);
    headers.remove(FORWARDED);
    // Only this proxy knows the client. An application that trusts these fields must be able to.
    let claimed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("x-forwarded-") || name.as_str() == "x-real-ip")
        .cloned()
        .collect();
    for name in claimed {
        headers.remove(name);
    }
    if let Ok(peer) = HeaderValue::from_str(&origin.peer.to_canonical().to_string()) {
        headers.insert(X_FORWARDED_FOR, peer);
    }
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(origin.scheme));
    headers.insert(X_FORWARDED_HOST, origin.host.clone());
    headers.insert(HOST, origin.host.clone());
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("TE"));
    }
    join_cookies(headers);
}

/// HTTP/2 may send `Cookie` in several fields, HTTP/1.1 may not (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1 {
        // Valid parts joined by valid bytes are valid.
        if let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            headers.insert(COOKIE, cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn origin(host: &HeaderValue) -> Origin<'_> {
        Origin { peer: IpAddr::from([192, 0, 2, 7]), scheme: "https", host }
    }

    #[test]
    fn only_end_to_end_fields_pass() {
        let mut headers = map(&[
            ("connection", "close, X-Private"),
            ("connection", "x-other"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic eA=="),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-private", "1"),
            ("x-other", "2"),
            ("x-kept", "3"),
        ]);
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-kept", "3")]));
    }

    #[test]
    fn claims_about_the_client_are_replaced() {
        let host = HeaderValue::from_static("p80-a.sandbox.localhost:7080");
        let mut headers = map(&[
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-port", "22"),
            ("x-real-ip", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
            ("expect", "100-continue"),
        ]);
        prepare_request(&mut headers, &origin(&host));
        let expected = map(&[
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "p80-a.sandbox.localhost:7080"),
            ("host", "p80-a.sandbox.localhost:7080"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_peer_cannot_drop_what_the_proxy_sets() {
        let host = HeaderValue::from_static("a.sandbox.localhost");
        let mut headers = map(&[("connection", "host, x-forwarded-for, content-length"), ("content-length", "3")]);
        prepare_request(&mut headers, &origin(&host));
        assert_eq!(headers["host"], "a.sandbox.localhost");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert!(!headers.contains_key("content-length"));
    }

    #[test]
    fn cookie_crumbs_are_joined_and_trailers_announced() {
        let host = HeaderValue::from_static("a.sandbox.localhost");
        let mut headers = map(&[("cookie", "a=1"), ("cookie", "b=2"), ("te", "gzip;q=0.5, Trailers")]);
        prepare_request(&mut headers, &origin(&host));
        assert_eq!(headers["cookie"], "a=1; b=2");
        assert_eq!((&headers["te"], &headers["connection"]), (&"trailers".parse().unwrap(), &"TE".parse().unwrap()));
    }
}
