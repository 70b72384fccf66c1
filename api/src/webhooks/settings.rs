//! `[webhooks]` of the configuration. When to try again and how long is the specification's, not the operator's.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

const DNS_PORT: u16 = 53;

/// What an operator can set.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Ranges that webhooks may go to although they are not public: for development, and said aloud at every start.
    pub allow_addresses: Vec<IpNet>,
    /// Certificates in PEM of authorities to trust besides the system's: likewise.
    pub ca_file: Option<PathBuf>,
    /// Attempts at a time, of all endpoints together.
    pub concurrency: NonZeroUsize,
    /// Whom to ask for the addresses of names, in place of the servers of `/etc/resolv.conf`.
    #[serde(deserialize_with = "resolvers")]
    pub resolvers: Vec<SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow_addresses: Vec::new(),
            ca_file: None,
            concurrency: NonZeroUsize::MIN.saturating_add(1023),
            resolvers: Vec::new(),
        }
    }
}

/// Addresses, each with an optional port.
fn resolvers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let parse = |text: &String| {
        let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT));
        address.or_else(|_| text.parse()).map_err(|_| {
            serde::de::Error::custom(format!(
                "{text:?} is no address; write it as 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:5353"
            ))
        })
    };
    Vec::<String>::deserialize(deserializer)?.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_addresses_with_or_without_a_port() {
        let settings: Settings = toml::from_str("resolvers = [\"192.0.2.53\", \"[2001:db8::53]:5353\"]").unwrap();
        let resolvers: Vec<_> = settings.resolvers.iter().map(ToString::to_string).collect();
        assert_eq!(resolvers, ["192.0.2.53:53", "[2001:db8::53]:5353"]);
    }

    #[test]
    fn nothing_inside_is_allowed_unless_it_is_said() {
        let settings: Settings = toml::from_str("").unwrap();
        assert!(settings.allow_addresses.is_empty() && settings.ca_file.is_none());
        assert_eq!(settings.concurrency.get(), 1024);
        let settings: Settings = toml::from_str("allow_addresses = [\"127.0.0.0/8\", \"::1/128\"]").unwrap();
        assert_eq!(settings.allow_addresses.len(), 2);
        for wrong in [
            "allow_addresses = [\"localhost\"]",
            "allow_adresses = []",
            "concurrency = 0",
            "base_delay = 1",
            "resolvers = [\"localhost\"]",
        ] {
            assert!(toml::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
    }
}
