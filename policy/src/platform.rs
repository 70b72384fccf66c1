//! Ranges that no policy opens: the host and its network, other sandboxes, and what is not the Internet.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::nets::without;
use crate::special::{kept_from_sandboxes, v6};

/// IPv4 addresses in IPv6 form. No packet has them rightly, so that nothing opens them.
const MAPPED: IpNet = v6([0, 0, 0, 0, 0, 0xffff], 96);

/// The operator's say in what is protected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// Opened, where `deny` does not say otherwise: they are as the Internet then, about which policies decide, and
    /// `allow_internet_access` where these say nothing.
    pub allow: Vec<IpNet>,
    /// Protected in addition.
    pub deny: Vec<IpNet>,
}

impl Platform {
    /// Whether the address, as it stands on a packet, is in a protected range.
    pub fn is_protected(&self, address: IpAddr) -> bool {
        self.protecting(address).is_some()
    }

    /// The range that protects the address.
    pub(crate) fn protecting(&self, address: IpAddr) -> Option<IpNet> {
        let holds = |nets: &[IpNet]| nets.iter().find(|net| net.contains(&address)).copied();
        holds(&self.deny).or_else(|| holds(&[MAPPED])).or_else(|| match holds(&self.allow) {
            Some(_) => None,
            None => kept_from_sandboxes().find(|net| net.contains(&address)),
        })
    }

    /// All that is protected, sorted, none within another.
    pub fn protected_nets(&self) -> Vec<IpNet> {
        let kept = kept_from_sandboxes().flat_map(|net| without(net, &self.allow));
        let denied = self.deny.iter().copied();
        IpNet::aggregate(&kept.chain([MAPPED]).chain(denied).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(allow: &[&str], deny: &[&str]) -> Platform {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Platform { allow: nets(allow), deny: nets(deny) }
    }

    /// Both answers, which must be the same.
    fn is_protected(platform: &Platform, address: &str) -> bool {
        let address: IpAddr = address.parse().unwrap();
        let protected = platform.is_protected(address);
        assert_eq!(platform.protected_nets().iter().any(|net| net.contains(&address)), protected, "{address}");
        protected
    }

    #[test]
    fn what_is_not_the_internet_is_protected() {
        let platform = Platform::default();
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.1",
            "192.168.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::2",
            "::192.0.2.1",
            "::ffff:0:192.0.2.1",
            "::ffff:203.0.113.1",
            "::ffff:127.0.0.1",
            "64:ff9b::1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2001::1",
            "2001:0:ffff::1",
            "2002::1",
            "2002:ffff::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "feff::1",
            "ff02::1",
            "ffff::1",
        ] {
            assert!(is_protected(&platform, address), "{address}");
        }
    }

    #[test]
    fn operators_read_of_the_same_ranges() {
        let page = include_str!("../../docs/operators.md");
        let section = page.split("\n### ").find(|section| section.starts_with("Protected ranges")).unwrap();
        let listed = section.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`'));
        let listed: Vec<IpNet> = listed.filter_map(|text| text.parse().ok()).collect();
        assert_eq!(IpNet::aggregate(&listed), Platform::default().protected_nets());
    }

    #[test]
    fn the_internet_around_it_is_not() {
        let platform = Platform::default();
        for address in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.2.1",
            "192.167.255.255",
            "192.169.0.0",
            "198.51.100.1",
            "198.18.0.1",
            "203.0.113.1",
            "223.255.255.255",
            "::1:0:0",
            "::fffe:ffff:ffff",
            "::1:0:0:0",
            "::fffe:ffff:ffff:ffff",
            "::ffff:1:0:0",
            "64:ff9b:0:0:0:1::",
            "64:ff9b:2::",
            "2001:1::",
            "2001:db8::1",
            "2003::",
            "fbff::",
        ] {
            assert!(!is_protected(&platform, address), "{address}");
        }
    }

    #[test]
    fn the_operator_opens_a_range_and_what_he_protects_wins() {
        let platform = platform(&["10.0.0.0/9", "fd00:1::/32", "::/0"], &["10.1.0.0/16", "198.51.100.0/24"]);
        assert!(!is_protected(&platform, "10.0.0.1"));
        assert!(is_protected(&platform, "10.1.0.1"));
        assert!(is_protected(&platform, "10.128.0.1"));
        assert!(is_protected(&platform, "198.51.100.1"));
        assert!(!is_protected(&platform, "fd00:2::1"));
        assert!(is_protected(&platform, "::ffff:10.128.0.1"));
        assert_eq!(platform.protecting("10.1.0.1".parse().unwrap()), Some("10.1.0.0/16".parse().unwrap()));
    }
}
