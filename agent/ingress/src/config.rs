//! The `[ingress]` table of the agent's configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

mod tls;

pub use self::tls::{AcmeConfig, Tls};

/// How sandboxes are reached from outside.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngressConfig {
    /// Address of the one listener.
    pub listen: SocketAddr,
    /// Domain under which every sandbox has its host names. `*.localhost` reaches the machine itself, without DNS.
    pub data_plane_host: String,
    /// Port in URLs, where it is not the listener's (a load balancer or a port forward stands in between).
    pub public_port: Option<u16>,
    pub tls: Tls,
    /// Where the API listens, without TLS: it gets the requests for `api.<data_plane_host>`. Written as an address or `"off"`.
    #[serde(deserialize_with = "address_or_off")]
    pub api: Option<SocketAddr>,
    /// Networks of proxies in front of this one. What they say about the client (`X-Forwarded-For`, `Forwarded`) is
    /// believed and passed on; what anyone else says is dropped.
    pub trusted_proxies: Vec<IpNet>,
    /// Client connections at a time; more are turned away.
    pub max_connections: usize,
    /// Connections at a time of one client: an IPv4 address, or an IPv6 network of 64 bits. Trusted proxies have no limit.
    pub max_connections_per_client: usize,
    /// Requests and tunnels at a time, for each sandbox's data plane and for all its previews together.
    pub max_requests_per_sandbox: usize,
    /// Of those to previews, how many one client may have.
    pub max_requests_per_client: usize,
    /// Memory for requests and tunnels of all sandboxes together, beside what each is guaranteed.
    pub requests_memory_mb: u32,
    /// A connection on which no byte moved for so long is closed. Streams that live longer must send something.
    pub idle_timeout_seconds: u64,
    /// How long a client may pause in the middle of a request's body, gRPC streams excepted.
    pub body_timeout_seconds: u64,
}

impl Default for IngressConfig {
    fn default() -> IngressConfig {
        IngressConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7080)),
            data_plane_host: "sandbox.localhost".to_owned(),
            public_port: None,
            tls: Tls::Off,
            api: None,
            trusted_proxies: Vec::new(),
            max_connections: 4096,
            max_connections_per_client: 1024,
            max_requests_per_sandbox: 256,
            max_requests_per_client: 192,
            requests_memory_mb: 512,
            idle_timeout_seconds: 900,
            body_timeout_seconds: 60,
        }
    }
}

/// What is wrong with the table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error(
        "ingress.data_plane_host = \"{0}\" is not a host name: use letters, digits and hyphens in labels of at most 63 \
         characters joined by dots, no port and no trailing dot"
    )]
    Host(String),
    #[error("ingress.public_port must not be 0")]
    PublicPort,
    #[error("ingress.api = \"{0}\" is the ingress itself: give the address that the API listens on")]
    ApiIsIngress(SocketAddr),
    #[error("ingress.{0} must be at least 1")]
    Zero(&'static str),
    #[error("ingress.tls.acme.{key} {problem}")]
    Acme { key: &'static str, problem: &'static str },
}

impl IngressConfig {
    /// Checks what the types do not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !is_host_name(&self.data_plane_host) {
            return Err(ConfigError::Host(self.data_plane_host.clone()));
        }
        if self.public_port == Some(0) {
            return Err(ConfigError::PublicPort);
        }
        if let Some(api) = self.api.filter(|api| is_same_listener(*api, self.listen)) {
            return Err(ConfigError::ApiIsIngress(api));
        }
        let positive = [
            ("max_connections", self.max_connections as u64),
            ("max_connections_per_client", self.max_connections_per_client as u64),
            ("max_requests_per_sandbox", self.max_requests_per_sandbox as u64),
            ("max_requests_per_client", self.max_requests_per_client as u64),
            ("requests_memory_mb", self.requests_memory_mb.into()),
            ("idle_timeout_seconds", self.idle_timeout_seconds),
            ("body_timeout_seconds", self.body_timeout_seconds),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero(name));
        }
        self.tls.validate()
    }

    pub fn idle_timeout(&self) -> Duration {
        seconds(self.idle_timeout_seconds)
    }

    pub fn body_timeout(&self) -> Duration {
        seconds(self.body_timeout_seconds)
    }
}

fn address_or_off<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "off" {
        return Ok(None);
    }
    let wrong =
        |_| D::Error::custom(format_args!("{text:?} is neither \"off\" nor an address and a port: \"127.0.0.1:7070\""));
    text.parse().map(Some).map_err(wrong)
}

/// Whether who connects to `address` may meet the listener at `listen`.
fn is_same_listener(address: SocketAddr, listen: SocketAddr) -> bool {
    let anywhere = address.ip().is_unspecified() || listen.ip().is_unspecified();
    address.port() == listen.port() && (anywhere || address.ip() == listen.ip())
}

/// At most a year: far beyond any use, and far from where adding it to a clock overflows.
fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(365 * 86_400))
}

/// A host name that leaves room for `p65535-` and a route token's 26 characters in 253.
fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let numeric = |label: &str| label.bytes().all(|b| b.is_ascii_digit());
    name.len() <= 200 && name.split('.').all(label) && !name.rsplit('.').next().is_some_and(numeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<IngressConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("lisen = '127.0.0.1:1'").expect_err("a typo").contains("lisen"));
        assert!(parse("trusted_proxies = ['10.0.0.0']").expect_err("no network").contains("trusted_proxies"));
        assert!(parse("api = 'http://127.0.0.1:7070'").expect_err("no address").contains("127.0.0.1:7070"));
        let zero = parse("body_timeout_seconds = 0").expect("well-formed").validate();
        assert_eq!(zero, Err(ConfigError::Zero("body_timeout_seconds")));
    }

    #[test]
    fn the_api_is_off_or_another_listener() {
        let with = |text: &str| parse(text).expect("well-formed");
        assert_eq!(with("").api, None);
        assert_eq!(with("api = 'off'").api, None);
        assert_eq!(with("api = '127.0.0.1:7070'").api, Some(SocketAddr::from(([127, 0, 0, 1], 7070))));
        assert_eq!(with("listen = '127.0.0.1:1'\napi = '127.0.0.2:1'").validate(), Ok(()));
        for listen in ["127.0.0.1:1", "0.0.0.0:1", "[::]:1"] {
            let own = with(&format!("listen = '{listen}'\napi = '127.0.0.1:1'")).validate();
            assert!(matches!(own, Err(ConfigError::ApiIsIngress(_))), "{listen}: {own:?}");
        }
    }

    #[test]
    fn only_host_names_are_hosts() {
        let with = |host: &str| IngressConfig { data_plane_host: host.to_owned(), ..Default::default() }.validate();
        assert_eq!(with("sandbox.localhost"), Ok(()));
        for wrong in ["", "a..b", "-a.example", "a.example.", "a.example:80", "*.a.example", "A.example", "10.0.0.1"] {
            assert_eq!(with(wrong), Err(ConfigError::Host(wrong.to_owned())));
        }
    }
}
