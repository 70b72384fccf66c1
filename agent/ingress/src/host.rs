//! The one host that a request is for (RFC 9112 section 3.2).

use http::header::{HOST, HeaderValue};
use http::request::Parts;
use http::uri::Scheme;

use super::refusal::Refusal;

/// The host of `request`, port included, as the client sent it.
pub(super) fn requested_host(request: &Parts) -> Result<HeaderValue, Refusal> {
    let mut fields = request.headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return Err(Refusal::Invalid("A request has one Host field"));
    }
    if request.uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS) {
        return Err(Refusal::Invalid("Only http and https are served here"));
    }
    // `:authority` of HTTP/2, or a target in absolute form, which takes precedence over Host (RFC 9112 section 3.2.2).
    let host = match (request.uri.authority(), field) {
        (None, None) => return Err(Refusal::Invalid("The request names no host")),
        (None, Some(field)) => field.clone(),
        (Some(authority), field) => {
            if field.is_some_and(|field| !field.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())) {
                return Err(Refusal::Invalid("The Host field contradicts the request target"));
            }
            HeaderValue::from_str(authority.as_str()).map_err(|_| INVALID)?
        }
    };
    if is_host(host.as_bytes()) { Ok(host) } else { Err(INVALID) }
}

const INVALID: Refusal = Refusal::Invalid("The host is not a host name with an optional port");

/// Whether `host` has only what host names, addresses and ports are made of: no user, no path, no list.
fn is_host(host: &[u8]) -> bool {
    !host.is_empty() && host.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, hosts: &[&'static str]) -> Result<HeaderValue, Refusal> {
        let mut request = http::Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        requested_host(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn the_field_and_the_target_name_the_same_host_or_one_of_them_does() {
        assert_eq!(of("/", &["a.example.test:80"]), Ok(HeaderValue::from_static("a.example.test:80")));
        assert_eq!(of("http://a.example.test/x", &[]), Ok(HeaderValue::from_static("a.example.test")));
        assert_eq!(of("https://a.example.test/", &["A.example.test"]), Ok(HeaderValue::from_static("a.example.test")));
        assert_eq!(of("*", &["a.example.test"]), Ok(HeaderValue::from_static("a.example.test")));
    }

    #[test]
    fn everything_else_is_no_valid_request() {
        let table: [(&str, &[&'static str]); 9] = [
            ("/", &[]),
            ("/", &[""]),
            ("/", &["a.example.test", "a.example.test"]),
            ("http://a.example.test/", &["b.example.test"]),
            ("http://user@a.example.test/", &[]),
            ("ftp://a.example.test/", &[]),
            ("/", &["user@a.example.test"]),
            ("/", &["a.example.test/path"]),
            ("/", &["a.example.test, b.example.test"]),
        ];
        for (target, hosts) in table {
            assert!(matches!(of(target, hosts), Err(Refusal::Invalid(_))), "{target} {hosts:?}");
        }
    }
}
