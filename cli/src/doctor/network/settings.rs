//! What the agent's settings say about addresses and names.

use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;
use toml::{Table, Value};

/// Those of the agent's configuration, else the defaults.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// What the names of the host's links to its slots begin with, before a `v` and the slot's number.
    pub(super) name: String,
    /// Addresses between host and slots.
    pub(super) transit: Ipv4Net,
}

impl Default for Settings {
    fn default() -> Self {
        Self { name: "sp".into(), transit: Ipv4Net::new_assert(Ipv4Addr::new(100, 65, 0, 0), 16) }
    }
}

impl Settings {
    pub(super) fn of(file: Option<&Path>) -> Self {
        Self::parse(&file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default())
    }

    /// What the agent would refuse is its own to complain about.
    fn parse(text: &str) -> Self {
        let settings: Table = toml::from_str(text).unwrap_or_default();
        let setting = |key| settings.get("network").and_then(|network| network.get(key)).and_then(Value::as_str);
        let default = Self::default();
        Self {
            name: setting("name").map_or(default.name, str::to_owned),
            transit: setting("transit").and_then(|net| net.parse().ok()).unwrap_or(default.transit),
        }
    }

    /// Whether this is the host's link to one of its own slots.
    pub(super) fn is_slot(&self, link: &str) -> bool {
        let number = link.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('v'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_takes_the_place_of_the_defaults() {
        assert_eq!(Settings::parse("not TOML"), Settings::default());
        assert_eq!(Settings::parse("network = 1"), Settings::default());
        let settings = Settings::parse("[network]\nname = \"lab\"\ntransit = \"10.9.0.0/16\"\n");
        assert_eq!(settings, Settings { name: "lab".into(), transit: "10.9.0.0/16".parse().unwrap() });
    }

    #[test]
    fn links_to_slots_are_known_by_their_names() {
        let settings = Settings::default();
        assert!(settings.is_slot("spv7") && settings.is_slot("spv1024"));
        for link in ["spv", "spvx", "spv7a", "sp7", "eth0", "vspv7"] {
            assert!(!settings.is_slot(link), "{link}");
        }
    }
}
