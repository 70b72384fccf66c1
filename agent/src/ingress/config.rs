//! The `[ingress]` table of the agent's configuration.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// How sandboxes are reached from outside.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IngressConfig {
    /// Address of the one listener.
    pub(crate) listen: SocketAddr,
    /// Domain under which every sandbox has its host names. `*.localhost` reaches the machine itself, without DNS.
    pub(crate) data_plane_host: String,
    /// Port in URLs, where it is not the listener's (a load balancer or a port forward stands in between).
    pub(crate) public_port: Option<u16>,
    pub(crate) tls: Tls,
    /// Client connections at a time; more are turned away.
    pub(crate) max_connections: usize,
    /// Requests and tunnels at a time, for each sandbox's data plane and for all its previews together.
    pub(crate) max_requests_per_sandbox: usize,
    /// A connection on which no byte moved for so long is closed. Streams that live longer must send something.
    pub(crate) idle_timeout_seconds: u64,
}

impl Default for IngressConfig {
    fn default() -> IngressConfig {
        IngressConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7080)),
            data_plane_host: "sandbox.localhost".to_owned(),
            public_port: None,
            tls: Tls::Off,
            max_connections: 1024,
            max_requests_per_sandbox: 256,
            idle_timeout_seconds: 900,
        }
    }
}

/// Written as `"off"`, `"local_ca"` or `{ certificate = "…", key = "…" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tls {
    /// Plain HTTP: for development, or behind something that ends TLS.
    Off,
    /// A certificate of our own authority, made on first use.
    LocalCa,
    /// PEM files: a certificate with its chain for `*.<data_plane_host>`, and its key. Read again when they change.
    Files { certificate: PathBuf, key: PathBuf },
}

/// What is wrong with the table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ConfigError {
    #[error(
        "ingress.data_plane_host = \"{0}\" is not a host name: use letters, digits and hyphens in labels of at most 63 \
         characters joined by dots, no port and no trailing dot"
    )]
    Host(String),
    #[error("ingress.public_port must not be 0")]
    PublicPort,
    #[error("ingress.{0} must be at least 1")]
    Zero(&'static str),
}

impl IngressConfig {
    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if !is_host_name(&self.data_plane_host) {
            return Err(ConfigError::Host(self.data_plane_host.clone()));
        }
        if self.public_port == Some(0) {
            return Err(ConfigError::PublicPort);
        }
        let positive = [
            ("max_connections", self.max_connections as u64),
            ("max_requests_per_sandbox", self.max_requests_per_sandbox as u64),
            ("idle_timeout_seconds", self.idle_timeout_seconds),
        ];
        match positive.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(ConfigError::Zero(name)),
            None => Ok(()),
        }
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        // Far beyond any use, and far from where adding it to a clock overflows.
        Duration::from_secs(self.idle_timeout_seconds.min(365 * 86_400))
    }
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

impl<'de> Deserialize<'de> for Tls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tls, D::Error> {
        deserializer.deserialize_any(TlsVisitor)
    }
}

/// By hand, because an untagged enum would not say what is wrong.
struct TlsVisitor;

impl<'de> Visitor<'de> for TlsVisitor {
    type Value = Tls;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""off", "local_ca" or { certificate = "FILE", key = "FILE" }"#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Tls, E> {
        match text {
            "off" => Ok(Tls::Off),
            "local_ca" => Ok(Tls::LocalCa),
            other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tls, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Files {
            certificate: PathBuf,
            key: PathBuf,
        }
        let Files { certificate, key } = Files::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(Tls::Files { certificate, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<IngressConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_tls_is_understood() {
        assert_eq!(parse("").expect("defaults").tls, Tls::Off);
        assert_eq!(parse("tls = 'off'").expect("valid").tls, Tls::Off);
        assert_eq!(parse("tls = 'local_ca'").expect("valid").tls, Tls::LocalCa);
        let files = parse("tls = { certificate = '/a.pem', key = '/a.key' }").expect("valid").tls;
        assert_eq!(files, Tls::Files { certificate: "/a.pem".into(), key: "/a.key".into() });
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse("tls = 'on'").expect_err("no such mode").contains("local_ca"));
        assert!(parse("tls = { certificate = '/a.pem' }").expect_err("half").contains("key"));
        assert!(parse("lisen = '127.0.0.1:1'").expect_err("a typo").contains("lisen"));
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
