//! `[webhooks]` and `[team_webhooks]` of the configuration. When to try again and how long is the specification's, not the operator's.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

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
    #[serde(deserialize_with = "sandpiper_policy::resolvers")]
    pub resolvers: Vec<SocketAddr>,
    /// How long deliveries are kept after their end.
    pub keep_days: u32,
}

/// More than the seven days for which a delivery is attempted.
const SHORTEST_KEEP: u32 = 8;

impl Settings {
    /// Which setting is wrong, and why, if any is.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        (self.keep_days < SHORTEST_KEEP).then_some(("keep_days", "must be at least 8"))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow_addresses: Vec::new(),
            ca_file: None,
            concurrency: NonZeroUsize::MIN.saturating_add(1023),
            resolvers: Vec::new(),
            keep_days: 90,
        }
    }
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
    fn nothing_is_deleted_before_it_could_be_over() {
        assert_eq!(Settings::default().problem(), None);
        for (keep_days, is_wrong) in [(0, true), (7, true), (8, false), (u32::MAX, false)] {
            let settings = Settings { keep_days, ..Settings::default() };
            assert_eq!(settings.problem().is_some(), is_wrong, "{keep_days}");
        }
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
