//! The operator's choices about the network: the agent's `[network]` section, in which every key has a default.
//!
//! ```toml
//! [network]
//! resolvers = ["192.0.2.53"]
//! profiles = "/etc/sandpiper/egress-profiles.json"
//! allow_ranges = ["10.20.0.0/16"]       # an internal network, which is to sandboxes as the Internet then
//! deny_ranges = ["198.51.100.0/24"]     # one that no sandbox reaches
//!
//! [network.limits]
//! new_connections = 200
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sandpiper_policy::Platform;
use serde::Deserialize;

/// A link's name has at most 15 bytes, and a slot's is `<name>v<number>`.
const MAX_NAME: usize = 5;
/// More than a host has memory for guests. Each has its place in the host's table, used or not.
const MAX_SLOTS: u32 = 1024;
/// Of IPv6 (RFC 8200, section 5), and what every link of a slot can carry.
const MTU: std::ops::RangeInclusive<u16> = 1280..=9000;
/// Everything about the network that can be configured.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// False: guests have no network but what the agent speaks with them through.
    pub enabled: bool,
    /// What the names of namespaces (`<name>-7`), of the host's links (`<name>v7`) and of its table begin with. Two agents
    /// on one host need two, and two transit ranges. Change it, and the ranges, only while no sandbox runs.
    pub name: String,
    /// Addresses between the host and its slots, two for each. Nothing else of the host's may use them.
    pub transit: Ipv4Net,
    /// The same for IPv6, a /64 for each.
    pub transit6: Ipv6Net,
    /// Slots at the same time, those included that wait and those that are being taken away.
    pub max_slots: u32,
    /// Memory for connections through the proxies of all sandboxes together, beside what each is guaranteed.
    pub proxy_memory_mb: u32,
    /// Slots that are kept ready for the next sandboxes: as many as may well be asked for at once. To make one takes long, and
    /// longer beside others.
    pub pool: u32,
    /// Longest packet of a guest, in bytes: at most what the host's way to the internet takes.
    pub mtu: u16,
    /// The servers that names are resolved by, each with an optional `:port`. Empty: those of `/etc/resolv.conf`.
    #[serde(deserialize_with = "sandpiper_policy::resolvers")]
    pub resolvers: Vec<SocketAddr>,
    /// The file of egress profiles.
    pub profiles: Option<PathBuf>,
    /// Ranges that are not protected, other than by default: policies decide about them, and where these say nothing,
    /// `allow_internet_access`, whose default is true.
    pub allow_ranges: Vec<IpNet>,
    /// Ranges that are protected besides, from every policy; they win over `allow_ranges`.
    pub deny_ranges: Vec<IpNet>,
    /// What each sandbox gets.
    pub limits: Limits,
    /// Where each slot has a file in which its proxy counts: one of this name's own, in the agent's runtime folder.
    #[serde(skip)]
    pub meters: PathBuf,
}

/// Most that one sandbox uses of the network.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes per second, each way for itself. Not set: as many as the host can move.
    pub bandwidth: Option<u64>,
    /// Packets per second, each way for itself.
    pub packets: u32,
    /// Connections that begin in one second.
    pub new_connections: u32,
    /// Connections at the same time.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bandwidth: None, packets: 250_000, new_connections: 1000, connections: 16_384 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            name: "sp".into(),
            transit: Ipv4Net::new_assert(Ipv4Addr::new(100, 65, 0, 0), 16),
            transit6: Ipv6Net::new_assert(Ipv6Addr::new(0xfd5a, 0x5b, 0, 0, 0, 0, 0, 0), 48),
            max_slots: MAX_SLOTS,
            proxy_memory_mb: 64,
            pool: 12,
            mtu: 1500,
            resolvers: Vec::new(),
            profiles: None,
            allow_ranges: Vec::new(),
            deny_ranges: Vec::new(),
            limits: Limits::default(),
            meters: "/run/sandpiper/network".into(),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`{key}` {problem}")]
pub struct ConfigError {
    /// The whole path of the key, `network.pool` for example.
    pub key: &'static str,
    /// What is wrong and what would be right, as the rest of a sentence that begins with the key.
    pub problem: String,
}

impl Config {
    /// Checks what can be checked without the host.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, problem: String| Err(ConfigError { key, problem });
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if !(1..=MAX_NAME).contains(&self.name.len()) || !self.name.bytes().all(plain) {
            return invalid(
                "network.name",
                format!("must be 1 to {MAX_NAME} lower-case letters or digits, not {:?}", self.name),
            );
        }
        if !(1..=MAX_SLOTS).contains(&self.max_slots) {
            return invalid("network.max_slots", format!("must be between 1 and {MAX_SLOTS}, not {}", self.max_slots));
        }
        if self.pool > self.max_slots {
            return invalid(
                "network.pool",
                format!("must be at most `max_slots`, {}, not {}", self.max_slots, self.pool),
            );
        }
        if !MTU.contains(&self.mtu) {
            let (least, most) = (MTU.start(), MTU.end());
            return invalid("network.mtu", format!("must be between {least} and {most} bytes, not {}", self.mtu));
        }
        self.check_transit()?;
        if let Some(path) = self.profiles.as_ref().filter(|path| !path.is_absolute()) {
            return invalid(
                "network.profiles",
                format!("must be an absolute path, not {:?}", path.display().to_string()),
            );
        }
        for (key, ranges) in [("network.allow_ranges", &self.allow_ranges), ("network.deny_ranges", &self.deny_ranges)]
        {
            if let Some(range) = ranges.iter().find(|range| range.addr() != range.network()) {
                return invalid(
                    key,
                    format!("has {range}, whose bits after the prefix are set; write {}", range.trunc()),
                );
            }
        }
        let rates = [
            ("network.limits.packets", self.limits.packets),
            ("network.limits.new_connections", self.limits.new_connections),
            ("network.limits.connections", self.limits.connections),
        ];
        if let Some((key, _)) = rates.iter().find(|(_, value)| *value == 0) {
            return invalid(key, "must be at least 1".into());
        }
        // A second's worth passes at once, and that must be a packet at least.
        let least = 2 * u64::from(*MTU.end());
        if let Some(bytes) = self.limits.bandwidth.filter(|bytes| *bytes < least) {
            let problem = format!("must be at least {least} bytes per second, not {bytes}; leave it out for no limit");
            return invalid("network.limits.bandwidth", problem);
        }
        Ok(())
    }

    /// The transit ranges are private, whole, large enough, and not what guests see.
    fn check_transit(&self) -> Result<(), ConfigError> {
        let invalid = |key, problem: String| Err(ConfigError { key, problem });
        let (transit, transit6) = (IpNet::from(self.transit), IpNet::from(self.transit6));
        for (key, range, guest) in [
            ("network.transit", transit, IpAddr::from(crate::plan::GATEWAY)),
            ("network.transit6", transit6, IpAddr::from(crate::plan::GATEWAY6)),
        ] {
            if range.addr() != range.network() {
                return invalid(key, format!("must be {}, without bits set after the prefix", range.trunc()));
            }
            let protected = Platform::default();
            if !protected.is_protected(range.network()) || !protected.is_protected(range.broadcast()) {
                return invalid(key, format!("must be a range of private addresses, not {range}"));
            }
            if range.contains(&guest) {
                return invalid(
                    key,
                    format!("must not contain {guest}, which every guest's gateway has, as {range} does"),
                );
            }
        }
        // Numbers begin at 1.
        let pairs = 1_u64 << (32 - self.transit.prefix_len()) >> 1;
        if pairs <= u64::from(self.max_slots) {
            let problem = format!(
                "has {pairs} pairs of addresses, too few for {} slots and the range's own first",
                self.max_slots
            );
            return invalid("network.transit", problem);
        }
        if self.transit6.prefix_len() > 48 {
            return invalid(
                "network.transit6",
                format!("must have a prefix of at most 48 bits, not {}", self.transit6),
            );
        }
        Ok(())
    }

    /// What no policy on this host opens.
    pub fn platform(&self) -> Platform {
        Platform { allow: self.allow_ranges.clone(), deny: self.deny_ranges.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_valid_and_has_room_for_all_slots() {
        Config::default().check().unwrap();
    }

    #[test]
    fn a_name_that_would_not_fit_into_a_links_is_refused() {
        assert_eq!(
            problem(|config| config.name = "sandbox".into()),
            "`network.name` must be 1 to 5 lower-case letters or digits, not \"sandbox\""
        );
        assert!(problem(|config| config.name = String::new()).starts_with("`network.name`"));
        assert!(problem(|config| config.name = "a-b".into()).starts_with("`network.name`"));
    }

    #[test]
    fn a_bad_value_is_refused_with_its_key_and_range() {
        assert_eq!(problem(|config| config.max_slots = 0), "`network.max_slots` must be between 1 and 1024, not 0");
        assert_eq!(problem(|config| config.mtu = 576), "`network.mtu` must be between 1280 and 9000 bytes, not 576");
        assert_eq!(problem(|config| config.limits.packets = 0), "`network.limits.packets` must be at least 1");
        assert!(problem(|config| config.pool = 2000).starts_with("`network.pool` must be at most `max_slots`"));
        assert!(problem(|config| config.profiles = Some("profiles.json".into())).contains("absolute path"));
        assert!(problem(|config| config.limits.bandwidth = Some(1)).starts_with("`network.limits.bandwidth`"));
    }

    #[test]
    fn a_transit_range_that_cannot_work_is_refused() {
        let transit = |text: &str| problem(|config| config.transit = text.parse().unwrap());
        assert_eq!(transit("10.1.2.3/16"), "`network.transit` must be 10.1.0.0/16, without bits set after the prefix");
        assert_eq!(
            transit("198.51.0.0/16"),
            "`network.transit` must be a range of private addresses, not 198.51.0.0/16"
        );
        assert!(transit("100.64.0.0/16").contains("must not contain 100.64.0.1"));
        assert!(transit("10.1.0.0/24").contains("128 pairs of addresses, too few for 1024 slots"));
        let transit6 = |text: &str| problem(|config| config.transit6 = text.parse().unwrap());
        assert!(transit6("2001:db8::/48").contains("private addresses"));
        assert!(transit6("fd00:1::/64").contains("at most 48 bits"));
    }

    #[test]
    fn a_resolver_may_have_a_port() {
        let text = r#"{"resolvers": ["192.0.2.53", "192.0.2.53:5353", "2001:db8::53", "[2001:db8::53]:5353"]}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        let resolvers: Vec<_> = config.resolvers.iter().map(ToString::to_string).collect();
        assert_eq!(resolvers, ["192.0.2.53:53", "192.0.2.53:5353", "[2001:db8::53]:53", "[2001:db8::53]:5353"]);
        let error = serde_json::from_str::<Config>(r#"{"resolvers": ["dns.example.test"]}"#).unwrap_err();
        assert!(error.to_string().contains("\"dns.example.test\" is no address"), "{error}");
    }

    #[test]
    fn a_misspelt_key_is_refused_by_name() {
        let error = serde_json::from_str::<Config>(r#"{"allow_range": []}"#).unwrap_err();
        assert!(error.to_string().contains("allow_range"), "{error}");
    }
}
