//! `[webhooks]` of the configuration. When to try again and how long is the specification's, not the operator's.

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
}

impl Default for Settings {
    fn default() -> Self {
        Self { allow_addresses: Vec::new(), ca_file: None, concurrency: NonZeroUsize::MIN.saturating_add(1023) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_inside_is_allowed_unless_it_is_said() {
        let settings: Settings = toml::from_str("").unwrap();
        assert!(settings.allow_addresses.is_empty() && settings.ca_file.is_none());
        assert_eq!(settings.concurrency.get(), 1024);
        let settings: Settings = toml::from_str("allow_addresses = [\"127.0.0.0/8\", \"::1/128\"]").unwrap();
        assert_eq!(settings.allow_addresses.len(), 2);
        for wrong in ["allow_addresses = [\"localhost\"]", "allow_adresses = []", "concurrency = 0", "base_delay = 1"] {
            assert!(toml::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
    }
}
