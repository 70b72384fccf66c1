//! Names and addresses: those that every slot has inside, and those that follow from a slot's number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config::Config;
use crate::links::Mac;

/// The first half of the Ethernet addresses that are made up here: not a maker's, and not of a group.
const OWN: [u8; 3] = [0x02, b'S', b'P'];

/// The guest's side of every slot looks the same, so that a snapshot goes on in any of them: also the Ethernet address of
/// the gateway, which a guest remembers.
pub(crate) const GATEWAY_MAC: Mac = [OWN[0], OWN[1], OWN[2], 0, 0, 1];

/// The guest's address in every slot, and that of its gateway and resolver; their prefix has [`PREFIX`] bits.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 2);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
pub const PREFIX: u8 = 30;
/// The same for IPv6.
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd5a, 0x5a, 0, 0, 0, 0, 0, 2);
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd5a, 0x5a, 0, 0, 0, 0, 0, 1);
pub const PREFIX6: u8 = 64;

/// The slot's links: the tap towards the guest, and the pair's end towards the host.
pub(crate) const TAP: &str = "tap0";
pub(crate) const UPLINK: &str = "up0";

/// Names and addresses of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) number: u32,
    /// Of the namespace.
    pub(crate) name: String,
    /// The host's end of the pair that joins them.
    pub(crate) link: String,
    /// The file in which its proxy counts.
    pub(crate) meter: PathBuf,
    pub(crate) host: Transit,
    pub(crate) slot: Transit,
}

/// An end of the pair of links between the host and a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transit {
    pub(crate) mac: Mac,
    pub(crate) address: Ipv4Addr,
    pub(crate) address6: Ipv6Addr,
}

impl Transit {
    /// The addresses, each with the length of the prefix that both ends share.
    pub(crate) fn nets(&self) -> [IpNet; 2] {
        [Ipv4Net::new_assert(self.address, 31).into(), Ipv6Net::new_assert(self.address6, 127).into()]
    }

    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        [self.address.into(), self.address6.into()]
    }
}

impl Plan {
    /// The plan of the slot `number`; `None` for one that the transit ranges have no addresses for.
    pub(crate) fn of(config: &Config, number: u32) -> Option<Self> {
        let first = u32::from(config.transit.network()).checked_add(number.checked_mul(2)?)?;
        let first6 = u128::from(config.transit6.network()).checked_add(u128::from(number) << 64)?;
        let [.., high, low] = number.to_be_bytes();
        let end = |which: u8| Transit {
            mac: [OWN[0], OWN[1], OWN[2], 1 + which, high, low],
            address: Ipv4Addr::from(first | u32::from(which)),
            address6: Ipv6Addr::from(first6 | u128::from(which)),
        };
        let (host, slot) = (end(0), end(1));
        let fits = u16::try_from(number).is_ok()
            && config.transit.contains(&slot.address)
            && config.transit6.contains(&slot.address6);
        fits.then(|| {
            let name = format!("{}{number}", namespaces(config));
            let meter = config.meters.join(&name);
            Self { number, name, link: format!("{}{number}", host_links(config)), meter, host, slot }
        })
    }

    /// The mark of its connections in the host's table of connections: its address, since the small numbers and single bits
    /// are what others on the host use.
    pub(crate) fn mark(&self) -> u32 {
        self.slot.address.into()
    }

    /// The plan of the slot that has this namespace, or this link on the host.
    pub(crate) fn by_name(config: &Config, name: &str) -> Option<Self> {
        let number = [namespaces(config), host_links(config)].iter().find_map(|prefix| name.strip_prefix(prefix))?;
        let plan = Self::of(config, number.parse().ok()?)?;
        (plan.name == name || plan.link == name).then_some(plan)
    }
}

/// What the names of all slots' namespaces begin with, and nobody else's who keeps to another `network.name`.
pub(crate) fn namespaces(config: &Config) -> String {
    format!("{}-", config.name)
}

/// What the names of all slots' links on the host begin with.
pub(crate) fn host_links(config: &Config) -> String {
    format!("{}v", config.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_addresses_of_its_own() {
        let config = Config::default();
        let plan = Plan::of(&config, 7).unwrap();
        assert_eq!((plan.name.as_str(), plan.link.as_str()), ("sp-7", "spv7"));
        assert_eq!(plan.host.nets().map(|net| net.to_string()), ["100.65.0.14/31", "fd5a:5b:0:7::/127"]);
        assert_eq!(plan.slot.nets().map(|net| net.to_string()), ["100.65.0.15/31", "fd5a:5b:0:7::1/127"]);
        assert_ne!(plan.host.mac, plan.slot.mac);
        let next = Plan::of(&config, 8).unwrap();
        assert!(plan.slot.address < next.host.address && plan.slot.address6 < next.host.address6);
    }

    #[test]
    fn a_number_beyond_the_ranges_has_no_plan() {
        let config = Config { transit: "10.9.0.0/29".parse().unwrap(), ..Config::default() };
        assert!(Plan::of(&config, 3).is_some());
        assert!(Plan::of(&config, 4).is_none());
        assert!(Plan::of(&Config::default(), 65_536).is_none());
        assert!(Plan::of(&Config::default(), u32::MAX).is_none());
    }

    #[test]
    fn only_names_that_a_slot_would_have_are_taken_for_one() {
        let config = Config::default();
        assert_eq!(Plan::by_name(&config, "sp-12").unwrap().number, 12);
        assert_eq!(Plan::by_name(&config, "spv12").unwrap().number, 12);
        for other in ["sp-", "sp-012", "sp-+1", "sp2-1", "spv", "spvpn0", "spv1a", "veth1"] {
            assert_eq!(Plan::by_name(&config, other), None, "{other}");
        }
    }
}
