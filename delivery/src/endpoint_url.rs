//! The URL that webhooks are sent to: what may be configured.

use std::fmt;
use std::net::IpAddr;

use http::uri::PathAndQuery;
use url::{Host, Position, Url};

use crate::addresses::{AddressRule, NotPublic};

/// Longest URL, in bytes.
const MAX_LEN: usize = 2048;

/// Why a URL cannot be configured. The messages are for whoever configures it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("The URL is longer than {MAX_LEN} bytes")]
    TooLong,
    #[error("The URL must be absolute and begin with https://")]
    NotHttps,
    #[error("The URL must not contain spaces, backslashes or control characters; write them percent-encoded")]
    Characters,
    #[error("The URL is malformed: {0}")]
    Malformed(url::ParseError),
    #[error("The URL must not carry a user name or password")]
    UserInfo,
    #[error("The URL must not have a fragment (#…): it would never be sent")]
    Fragment,
    #[error("The URL must be public: {0}")]
    NotPublic(#[from] NotPublic),
    #[error("The URL must be public: localhost is this host itself")]
    Localhost,
}

/// A public HTTPS URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl(Url);

/// Who is connected to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authority {
    pub host: EndpointHost,
    pub port: u16,
}

/// A name, to be resolved for every connection, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EndpointHost {
    /// In lower case and ASCII, without a dot at the end.
    Name(String),
    Address(IpAddr),
}

impl EndpointUrl {
    /// Checks `text` by everything that can be known without resolving its name. Addresses in odd forms (`0x7f.1`,
    /// `2130706433`) are addresses here as they are to the parser.
    pub fn parse(text: &str, rule: &AddressRule) -> Result<Self, UrlError> {
        if text.len() > MAX_LEN {
            return Err(UrlError::TooLong);
        }
        // The parser mends what it can; what it would have to mend was meant otherwise, or was meant to be misread.
        if text.chars().any(|character| character.is_control() || character.is_whitespace() || character == '\\') {
            return Err(UrlError::Characters);
        }
        if !text.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
            return Err(UrlError::NotHttps);
        }
        // `https:///host/` would be mended, too.
        if text[8..].starts_with('/') {
            return Err(UrlError::Malformed(url::ParseError::EmptyHost));
        }
        let url = Url::parse(text).map_err(UrlError::Malformed)?;
        // Also where they are empty: `https://@host/`.
        let has_user_info = text[8..].split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'));
        if has_user_info || !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(UrlError::Fragment);
        }
        let url = Self(url);
        match url.authority().host {
            EndpointHost::Address(address) => rule.check(address)?,
            EndpointHost::Name(name) if name == "localhost" || name.ends_with(".localhost") => {
                return Err(UrlError::Localhost);
            }
            EndpointHost::Name(_) => {}
        }
        Ok(url)
    }

    /// Who is connected to.
    pub fn authority(&self) -> Authority {
        let host = match self.0.host() {
            Some(Host::Ipv4(address)) => EndpointHost::Address(address.into()),
            Some(Host::Ipv6(address)) => EndpointHost::Address(address.into()),
            Some(Host::Domain(name)) => EndpointHost::Name(name.trim_end_matches('.').to_owned()),
            // An https URL without a host does not parse.
            None => EndpointHost::Name(String::new()),
        };
        Authority { host, port: self.0.port_or_known_default().unwrap_or(443) }
    }

    /// The value of the header `Host`: with a port only where it is not 443.
    pub fn host_header(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterPort]
    }

    /// What is asked for on the connection.
    pub fn path_and_query(&self) -> PathAndQuery {
        // The parser leaves nothing in either that a request could not carry.
        self.0[Position::BeforePath..Position::AfterQuery].parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
    }

    /// The URL as it is stored and shown.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EndpointUrl, UrlError> {
        EndpointUrl::parse(text, &AddressRule::default())
    }

    #[test]
    fn public_https_urls_are_taken() {
        for text in [
            "https://merchant.example.test/hooks",
            "HTTPS://Merchant.Example.Test:8443/hooks?shop=1&x=%20",
            "https://merchant.example.test./",
            "https://bücher.example.test/",
            "https://1.1.1.1/",
            "https://[2a00::1]:8443/",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn only_absolute_https_urls_are_taken() {
        for text in [
            "",
            "http://a.example.test/",
            "ftp://a.example.test/",
            "/hooks",
            "a.example.test/hooks",
            "//a.example.test/",
            "https:a.example.test",
            "https:/a.example.test",
            "javascript:alert(1)",
            "httpsx://a/",
            "wss://a.example.test/",
            "ht",
        ] {
            assert_eq!(parse(text), Err(UrlError::NotHttps), "{text}");
        }
        for text in [
            "https://",
            "https:///",
            "https:///a.example.test/",
            "https://?x",
            "https://a b/",
            "https://[::1",
            "https://a:99999/",
            "https://a..b.example.test:x/",
            "https://%00/",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_parser_would_mend_is_refused() {
        for text in [
            " https://a.example.test/",
            "https://a.example.test/\n",
            "https:\\\\a.example.test/",
            "https://a.example.test\\@b.example.test/",
            "https://a.exa\tmple.test/",
            "https://a.example.test/a b",
        ] {
            assert_eq!(parse(text), Err(UrlError::Characters), "{text:?}");
        }
        assert_eq!(parse(&format!("https://a.example.test/{}", "x".repeat(2048))), Err(UrlError::TooLong));
        assert_eq!(parse("https://a.example.test/#x"), Err(UrlError::Fragment));
    }

    #[test]
    fn user_names_and_passwords_are_refused() {
        for text in [
            "https://user@a.example.test/",
            "https://user:word@a.example.test/",
            "https://@a.example.test/",
            "https://:@a.example.test/",
            "https://1.1.1.1@127.0.0.1/",
        ] {
            assert_eq!(parse(text), Err(UrlError::UserInfo), "{text}");
        }
    }

    #[test]
    fn addresses_that_are_not_public_are_refused_in_every_form() {
        for text in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://127.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest",
            "https://0/",
            "https://１２７.0.0.1/",
            "https://[64:ff9b::7f00:1]/",
        ] {
            assert!(matches!(parse(text), Err(UrlError::NotPublic(_))), "{text}");
        }
        for text in ["https://localhost/", "https://LOCALHOST:8443/", "https://x.localhost./"] {
            assert_eq!(parse(text), Err(UrlError::Localhost), "{text}");
        }
        let allowed = AddressRule::new(vec!["127.0.0.0/8".parse().unwrap()]);
        assert!(EndpointUrl::parse("https://127.0.0.1:8443/", &allowed).is_ok());
    }

    #[test]
    fn the_parts_of_a_request_are_right() {
        let url = parse("https://Merchant.Example.Test.:8443/a%20b?c=d").unwrap();
        let host = EndpointHost::Name("merchant.example.test".to_owned());
        assert_eq!(url.authority(), Authority { host, port: 8443 });
        assert_eq!(url.host_header(), "merchant.example.test.:8443");
        assert_eq!(url.path_and_query(), "/a%20b?c=d");
        let url = parse("https://merchant.example.test:443").unwrap();
        assert_eq!((url.host_header(), url.path_and_query().as_str()), ("merchant.example.test", "/"));
        assert_eq!(parse("https://[2a00::1]:8443/").unwrap().host_header(), "[2a00::1]:8443");
    }
}
