//! Which header fields pass through the proxy, and which it sets (RFC 9110 section 7.6).

use http::Version;
use http::header::{CONNECTION, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE};

use super::forwarded::Source;

/// Head of a message in either direction. Of its fields hyper takes 100, which is left as it is: for any other number it
/// allocates room anew with each message.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// Whether a field concerns one connection only, apart from those that `Connection` names.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes the fields that concern the connection a message came on. `Content-Length` may go too, if a peer names it in
/// `Connection`: the framing of the next hop follows the body as it was parsed, never a field.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named = list(headers, &CONNECTION).filter_map(|name| name.parse().ok());
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_hop_by_hop(name)).cloned().chain(named).collect();
    for name in names {
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

/// The protocol that a request goes to the guest in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Protocol {
    Http1,
    /// Without TLS and without having asked ("prior knowledge"), for gRPC: it needs streams in both directions and trailers.
    Http2,
}

impl Protocol {
    /// gRPC over HTTP/2, and nothing else. gRPC-Web is made for HTTP/1.1 and has a type of its own.
    pub(super) fn of(version: Version, headers: &HeaderMap) -> Protocol {
        let grpc = headers.get(CONTENT_TYPE).is_some_and(|value| {
            let rest = value.as_bytes().strip_prefix(b"application/grpc");
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
        });
        if grpc && version == Version::HTTP_2 { Protocol::Http2 } else { Protocol::Http1 }
    }
}

/// Makes the fields of a client's request those of the request to the guest.
pub(super) fn prepare_request(headers: &mut HeaderMap, protocol: Protocol, host: &HeaderValue, source: Source<'_>) {
    let trailers = list(headers, &TE).any(|coding| coding.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    // Answered here: hyper asks the client for the body as soon as the guest's connection wants it.
    headers.remove(EXPECT);
    source.set_headers(headers, host);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    match protocol {
        Protocol::Http1 => {
            headers.insert(HOST, host.clone());
            if trailers {
                headers.insert(CONNECTION, HeaderValue::from_static("TE"));
            }
            join_cookies(headers);
        }
        // Its place is `:authority`.
        Protocol::Http2 => {
            headers.remove(HOST);
        }
    }
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

    /// What becomes of `headers`, sent by 192.0.2.7 over TLS.
    fn prepared(mut headers: HeaderMap, protocol: Protocol) -> HeaderMap {
        let peer = std::net::IpAddr::from([192, 0, 2, 7]).into();
        let source = Source::of(&peer, "https", &headers, &Default::default());
        prepare_request(&mut headers, protocol, &HeaderValue::from_static("a.sandbox.localhost"), source);
        headers
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
    fn a_peer_cannot_drop_what_the_proxy_sets() {
        let headers = map(&[
            ("connection", "host, x-forwarded-for, content-length"),
            ("content-length", "3"),
            ("expect", "100-continue"),
        ]);
        let headers = prepared(headers, Protocol::Http1);
        assert_eq!(headers["host"], "a.sandbox.localhost");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert!(!headers.contains_key("content-length") && !headers.contains_key("expect"));
    }

    #[test]
    fn cookie_crumbs_are_joined_and_trailers_announced() {
        let headers = map(&[("cookie", "a=1"), ("cookie", "b=2"), ("te", "gzip;q=0.5, Trailers")]);
        let headers = prepared(headers, Protocol::Http1);
        assert_eq!(headers["cookie"], "a=1; b=2");
        assert_eq!((&headers["te"], &headers["connection"]), (&"trailers".parse().unwrap(), &"TE".parse().unwrap()));
    }

    #[test]
    fn http2_has_no_connection_fields() {
        let headers = prepared(map(&[("te", "trailers"), ("host", "a.sandbox.localhost")]), Protocol::Http2);
        assert_eq!(headers["te"], "trailers");
        assert!(!headers.contains_key("connection") && !headers.contains_key("host"));
    }

    #[test]
    fn only_grpc_over_http2_goes_on_as_http2() {
        let of = |version, value| Protocol::of(version, &map(&[("content-type", value)]));
        assert_eq!(of(Version::HTTP_2, "application/grpc"), Protocol::Http2);
        assert_eq!(of(Version::HTTP_2, "application/grpc+proto"), Protocol::Http2);
        assert_eq!(of(Version::HTTP_2, "application/grpc-web+proto"), Protocol::Http1);
        assert_eq!(of(Version::HTTP_2, "application/json"), Protocol::Http1);
        assert_eq!(of(Version::HTTP_11, "application/grpc"), Protocol::Http1);
        assert_eq!(Protocol::of(Version::HTTP_2, &HeaderMap::new()), Protocol::Http1);
    }
}
