//! Which host a request names, and where it ends: once, plainly, and the same to everyone who reads it.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, Version};
use sandpiper_policy::Name;

use super::dial::Target;

/// Why a request is answered 400. The text is for the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRequest {
    #[error("This is no proxy to be asked for connections")]
    Connect,
    #[error("A request needs one Host header")]
    HostHeaders,
    #[error("The Host header names no host")]
    Host,
    #[error("The request's target names another host than the Host header")]
    Target,
    #[error("A request needs one plain Content-Length or one Transfer-Encoding, which is chunked, or neither")]
    Framing,
}

/// The host that a request is for, if its end is beyond doubt.
pub(super) fn target<B>(request: &Request<B>) -> Result<Target, BadRequest> {
    if request.method() == Method::CONNECT {
        return Err(BadRequest::Connect);
    }
    if !is_framed_plainly(request.headers()) {
        return Err(BadRequest::Framing);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let named = match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let host = Authority::try_from(host.as_bytes()).map_err(|_| BadRequest::Host)?;
            Some(host)
        }
        (None, _) if request.version() < Version::HTTP_11 => None,
        _ => return Err(BadRequest::HostHeaders),
    };
    // A request that is made as to a proxy. A server would take the host from there (RFC 9112, section 3.2.2).
    if let Some(authority) = request.uri().authority() {
        let same = named.as_ref().is_some_and(|host| host.as_str().eq_ignore_ascii_case(authority.as_str()));
        if !same || request.uri().scheme_str() != Some("http") {
            return Err(BadRequest::Target);
        }
    }
    named.map_or(Ok(Target::Unnamed), |host| host_of(&host))
}

/// hyper takes more codings than this and passes them on as they came. Of lengths it is as strict today.
fn is_framed_plainly(headers: &HeaderMap) -> bool {
    let (lengths, codings) = (headers.get_all(CONTENT_LENGTH), headers.get_all(TRANSFER_ENCODING));
    let (mut lengths, mut codings) = (lengths.iter(), codings.iter());
    match (lengths.next(), codings.next()) {
        (None, None) => true,
        (Some(length), None) => lengths.next().is_none() && length.as_bytes().iter().all(u8::is_ascii_digit),
        (None, Some(coding)) => codings.next().is_none() && coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// An address in place of a name says no more than the connection itself.
fn host_of(authority: &Authority) -> Result<Target, BadRequest> {
    // `host()` leaves out what is before an `@`, and whatever is behind it.
    let rest = authority.as_str().strip_prefix(authority.host()).ok_or(BadRequest::Host)?;
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    if !(rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)) {
        return Err(BadRequest::Host);
    }
    let host = authority.host();
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if host.parse::<Ipv4Addr>().is_ok() || in_brackets.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()) {
        return Ok(Target::Unnamed);
    }
    host.parse::<Name>().map(Target::Named).map_err(|_| BadRequest::Host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn named(name: &str) -> Result<Target, BadRequest> {
        Ok(Target::Named(name.parse().unwrap()))
    }

    #[test]
    fn a_host_is_named_once_and_plainly() {
        let table = [
            ("api.example.test", named("api.example.test")),
            ("API.Example.test:8080", named("api.example.test")),
            ("api.example.test.", named("api.example.test")),
            ("192.0.2.1", Ok(Target::Unnamed)),
            ("192.0.2.1:80", Ok(Target::Unnamed)),
            ("[2001:db8::1]:80", Ok(Target::Unnamed)),
            ("[api.example.test]", Err(BadRequest::Host)),
            ("[2001:db8::1]-:80", Err(BadRequest::Host)),
            ("[2001:db8::1]a", Err(BadRequest::Host)),
            ("api.example.test:+80", Err(BadRequest::Host)),
            ("[2001:db8::12345]:80", Err(BadRequest::Host)),
            ("", Err(BadRequest::Host)),
            ("api.example.test:", Err(BadRequest::Host)),
            ("api.example.test:http", Err(BadRequest::Host)),
            ("api.example.test:99999", Err(BadRequest::Host)),
            ("user@api.example.test", Err(BadRequest::Host)),
            ("api.example.test@evil.example.test", Err(BadRequest::Host)),
            ("api.example.test/evil.example.test", Err(BadRequest::Host)),
            ("api.example.test, evil.example.test", Err(BadRequest::Host)),
            ("api.example.test evil.example.test", Err(BadRequest::Host)),
            ("api.example.test?evil.example.test", Err(BadRequest::Host)),
            ("127.1", Err(BadRequest::Host)),
            ("0x7f.0.0.1", Err(BadRequest::Host)),
            ("http://api.example.test", Err(BadRequest::Host)),
        ];
        for (host, expected) in table {
            assert_eq!(target(&request("/", &[("host", host)])), expected, "{host:?}");
        }
    }

    #[test]
    fn hosts_that_could_be_read_in_two_ways_are_refused() {
        let host = ("host", "a.example.test");
        assert_eq!(target(&request("/", &[])), Err(BadRequest::HostHeaders));
        assert_eq!(target(&request("/", &[host, host])), Err(BadRequest::HostHeaders));
        assert_eq!(target(&request("/", &[host, ("Host", "b.example.test")])), Err(BadRequest::HostHeaders));
        assert_eq!(target(&request("http://a.example.test/", &[host])), named("a.example.test"));
        assert_eq!(target(&request("http://b.example.test/", &[host])), Err(BadRequest::Target));
        assert_eq!(target(&request("http://a.example.test:81/", &[host])), Err(BadRequest::Target));
        assert_eq!(target(&request("http://u@a.example.test/", &[host])), Err(BadRequest::Target));
        assert_eq!(target(&request("ftp://a.example.test/", &[host])), Err(BadRequest::Target));
    }

    #[test]
    fn an_end_that_could_be_read_in_two_ways_is_refused() {
        let host = ("host", "a.example.test");
        let (length, chunked) = (("content-length", "5"), ("transfer-encoding", "Chunked"));
        for framed in [vec![host], vec![host, length], vec![host, chunked]] {
            assert_eq!(target(&request("/", &framed)), named("a.example.test"), "{framed:?}");
        }
        for doubtful in [
            vec![length, length],
            vec![length, chunked],
            vec![chunked, chunked],
            vec![("transfer-encoding", "gzip"), chunked],
            vec![("transfer-encoding", "gzip, chunked")],
            vec![("content-length", "5, 5")],
            vec![("content-length", "+5")],
        ] {
            let headers = [vec![host], doubtful].concat();
            assert_eq!(target(&request("/", &headers)), Err(BadRequest::Framing), "{headers:?}");
        }
    }

    #[test]
    fn only_the_old_version_may_name_none() {
        let mut old = request("/", &[]);
        *old.version_mut() = Version::HTTP_10;
        assert_eq!(target(&old), Ok(Target::Unnamed));
    }

    #[test]
    fn connections_to_elsewhere_are_not_made() {
        let mut connect = request("a.example.test:443", &[("host", "a.example.test:443")]);
        *connect.method_mut() = Method::CONNECT;
        assert_eq!(target(&connect), Err(BadRequest::Connect));
    }
}
