//! Where a request comes from, and what the guest is told about it.
//!
//! Only this proxy knows the client, and an application that trusts `X-Forwarded-For` and the like must be able to. So what
//! a client claims about itself is dropped; unless it is a proxy that the operator put in front and named as trusted. Then
//! the client is the last address in the chain that is not a trusted one, the chain is kept, and this proxy adds itself.
//!
//! | field | to the guest |
//! |---|---|
//! | `X-Forwarded-For` | the client, or the trusted chain and the address it ended at |
//! | `X-Forwarded-Proto` | `http` or `https`, as the client spoke |
//! | `X-Forwarded-Host`, `X-Forwarded-Port` | host name and port that the client asked for |
//! | `Forwarded` | the same (RFC 7239) |
//!
//! Many servers hand fields to applications as CGI variables, where `X_Forwarded_For` is `X-Forwarded-For`: such a twin of a
//! field above is dropped whoever sends it.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};
use ipnet::IpNet;

use super::headers::list;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The proxies in front of this one.
#[derive(Debug, Clone, Default)]
pub(super) struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    pub(super) fn new(networks: Vec<IpNet>) -> TrustedProxies {
        TrustedProxies(networks)
    }

    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Whose connection it is.
#[derive(Debug)]
pub(super) struct Peer {
    address: IpAddr,
    /// The same in words, which every request on the connection needs.
    text: HeaderValue,
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Peer {
        let address = address.to_canonical();
        // An address has nothing that a field may not hold.
        let text = HeaderValue::try_from(address.to_string()).unwrap_or(HeaderValue::from_static("unknown"));
        Peer { address, text }
    }
}

/// Who sent a request, as far as that can be told.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// The client, behind all trusted proxies.
    pub(super) client: IpAddr,
    peer: &'a Peer,
    /// `http` or `https`.
    scheme: &'static str,
    /// The peer is a trusted proxy.
    trusted: bool,
    /// What a trusted peer said of those before it, for each of the two fields.
    chain: Option<String>,
    forwarded: Option<String>,
}

impl<'a> Source<'a> {
    /// Reads the claims in `headers`, if `peer` may make any. `scheme` is that of the connection.
    pub(super) fn of(
        peer: &'a Peer,
        scheme: &'static str,
        headers: &HeaderMap,
        trusted: &TrustedProxies,
    ) -> Source<'a> {
        if !trusted.contain(peer.address) {
            return Source { client: peer.address, peer, scheme, trusted: false, chain: None, forwarded: None };
        }
        let hops: Vec<&str> = list(headers, &X_FORWARDED_FOR).collect();
        let mut client = peer.address;
        // From here outwards: what is not an address ends the part that can be believed.
        for hop in hops.iter().rev().map_while(|hop| address(hop)) {
            client = hop;
            if !trusted.contain(hop) {
                break;
            }
        }
        let scheme = match list(headers, &X_FORWARDED_PROTO).next() {
            Some("https") => "https",
            Some("http") => "http",
            _ => scheme,
        };
        let joined = |elements: Vec<&str>| (!elements.is_empty()).then(|| elements.join(", "));
        let (chain, forwarded) = (joined(hops), joined(list(headers, &FORWARDED).collect()));
        Source { client, peer, scheme, trusted: true, chain, forwarded }
    }

    /// Replaces every claim in `headers` by what is known. `host` is what the client asked for, port included.
    pub(super) fn set_headers(self, headers: &mut HeaderMap, host: &HeaderValue) {
        let Source { peer, scheme, trusted, chain, forwarded, .. } = self;
        remove_claims(headers, trusted);
        let (open, close) = if peer.address.is_ipv4() { (&b""[..], &b""[..]) } else { (&b"\"["[..], &b"]\""[..]) };
        let asked = host.as_bytes();
        let element =
            [b"for=", open, peer.text.as_bytes(), close, b";host=\"", asked, b"\";proto=", scheme.as_bytes()].concat();
        let port = asked.iter().rposition(|&byte| byte == b':').map(|colon| &asked[colon + 1..]);
        let port = match port.filter(|port| !port.is_empty()) {
            Some(port) => HeaderValue::from_bytes(port),
            None => Ok(HeaderValue::from_static(if scheme == "https" { "443" } else { "80" })),
        };
        let fields = [
            (X_FORWARDED_FOR, append(chain, peer.text.clone())),
            (X_FORWARDED_PORT, port),
            (FORWARDED, HeaderValue::try_from(element).and_then(|element| append(forwarded, element))),
        ];
        for (name, value) in fields {
            // Addresses and host names that led to a sandbox hold nothing that a field may not.
            if let Ok(value) = value {
                headers.insert(name, value);
            }
        }
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
        headers.insert(X_FORWARDED_HOST, host.clone());
    }
}

/// Removes what this module sets, and what others of the family say: `X-Forwarded-User` is even taken for a login. Of a
/// trusted proxy only what merely looks like them.
fn remove_claims(headers: &mut HeaderMap, trusted: bool) {
    let is_claim = |name: &str| name.starts_with("x-forwarded-") || name == "x-real-ip";
    let is_removed = |name: &&HeaderName| match name.as_str() {
        name if name.contains('_') => is_claim(&name.replace('_', "-")),
        name => !trusted && is_claim(name),
    };
    let removed: Vec<HeaderName> = headers.keys().filter(is_removed).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

/// `last`, behind what a trusted peer said of those before it.
fn append(chain: Option<String>, last: HeaderValue) -> Result<HeaderValue, InvalidHeaderValue> {
    match chain {
        Some(chain) => HeaderValue::try_from([chain.as_bytes(), b", ", last.as_bytes()].concat()),
        None => Ok(last),
    }
}

/// An address as proxies write it: `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:4711`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))?;
    Some(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn trusted() -> TrustedProxies {
        TrustedProxies::new(vec!["198.51.100.0/24".parse().expect("a network"), "2001:db8::/32".parse().expect("one")])
    }

    fn client(peer: &str, chain: &'static str) -> String {
        let headers = map(&[("x-forwarded-for", chain)]);
        Source::of(&peer.parse::<IpAddr>().expect("an address").into(), "http", &headers, &trusted()).client.to_string()
    }

    #[test]
    fn claims_of_a_client_are_replaced() {
        let mut headers = map(&[
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-port", "22"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-user", "root"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x-forwarded_user", "root"),
            ("x-real-ip", "10.0.0.1"),
            ("x_real_ip", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
        ]);
        let peer = Peer::from(IpAddr::from([192, 0, 2, 7]));
        let source = Source::of(&peer, "http", &headers, &trusted());
        assert_eq!(source.client, IpAddr::from([192, 0, 2, 7]));
        source.set_headers(&mut headers, &HeaderValue::from_static("p80-a.sandbox.localhost:7080"));
        let expected = map(&[
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "p80-a.sandbox.localhost:7080"),
            ("x-forwarded-port", "7080"),
            ("forwarded", "for=192.0.2.7;host=\"p80-a.sandbox.localhost:7080\";proto=http"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_added_to_the_chain() {
        let mut headers = map(&[
            ("x-forwarded-for", "203.0.113.9, 192.0.2.1"),
            ("x-forwarded-for", "198.51.100.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "elsewhere.example.test"),
            ("x-forwarded-user", "ann"),
            ("x_forwarded_user", "bob"),
            ("forwarded", "for=192.0.2.1"),
        ]);
        let peer = Peer::from("2001:db8::5".parse::<IpAddr>().expect("an address"));
        let source = Source::of(&peer, "http", &headers, &trusted());
        assert_eq!(source.client, IpAddr::from([192, 0, 2, 1]), "what stands before it, anyone may have written");
        source.set_headers(&mut headers, &HeaderValue::from_static("a.example.test"));
        let expected = map(&[
            ("x-forwarded-for", "203.0.113.9, 192.0.2.1, 198.51.100.2, 2001:db8::5"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "a.example.test"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-user", "ann"),
            ("forwarded", "for=192.0.2.1, for=\"[2001:db8::5]\";host=\"a.example.test\";proto=https"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_trusted() {
        assert_eq!(client("192.0.2.7", "203.0.113.9"), "192.0.2.7", "not a proxy of ours");
        assert_eq!(client("198.51.100.1", "203.0.113.9"), "203.0.113.9");
        assert_eq!(client("::ffff:198.51.100.1", "203.0.113.9:4711, [2001:db8::1]:80"), "203.0.113.9");
        assert_eq!(client("198.51.100.1", "203.0.113.9, unknown, 198.51.100.2"), "198.51.100.2");
        assert_eq!(client("198.51.100.1", "198.51.100.3, 198.51.100.2"), "198.51.100.3");
        assert_eq!(client("198.51.100.1", ""), "198.51.100.1");
    }
}
