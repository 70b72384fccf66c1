//! Which addresses webhooks are sent to: [public ones](is_public) only.
//!
//! A stranger chooses the URL, so without this rule it could have this host ask its neighbours: a cloud's metadata, a
//! database, itself. A name may resolve to anything at any moment; so the rule is applied to *all* addresses of every answer,
//! before each connection is opened, and only addresses that passed are connected to.

use std::net::IpAddr;

use ipnet::IpNet;
use sandpiper_policy::is_public;

/// What may be connected to.
#[derive(Debug, Clone, Default)]
pub struct AddressRule {
    allowed: Vec<IpNet>,
}

/// An address that is neither public nor allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a public address")]
pub struct NotPublic(pub IpAddr);

impl AddressRule {
    /// Public addresses, and those in `allowed`, which is for development.
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self { allowed }
    }

    /// Passes one address.
    pub fn check(&self, address: IpAddr) -> Result<(), NotPublic> {
        if is_public(address) || self.allowed.iter().any(|net| net.contains(&address)) {
            Ok(())
        } else {
            Err(NotPublic(address))
        }
    }

    /// Passes the addresses of a name: all or none. One that is not public among others that are is an attempt to be
    /// connected to it by luck.
    pub fn check_all(&self, addresses: &[IpAddr]) -> Result<(), NotPublic> {
        addresses.iter().try_for_each(|address| self.check(*address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(rule: &AddressRule, address: &str) -> bool {
        rule.check(address.parse().unwrap()).is_ok()
    }

    #[test]
    fn what_is_not_the_internet_is_refused() {
        let rule = AddressRule::default();
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "192.168.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::a00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "200::1",
            "400::1",
            "64:ff9c::808:808",
            "1fff:ffff::1",
            "4000::1",
            "8000::1",
            "e000::1",
        ] {
            assert!(!passes(&rule, address), "{address}");
        }
    }

    #[test]
    fn what_lies_next_to_it_is_public() {
        let rule = AddressRule::default();
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
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "64:ff9b::808:808",
            "2000::1",
            "2001:200::1",
            "2001:db7:ffff::1",
            "2001:db9::1",
            "2003::1",
            "2a00::1",
            "3ffe:ffff::1",
        ] {
            assert!(passes(&rule, address), "{address}");
        }
    }

    #[test]
    fn the_operator_may_allow_ranges() {
        let rule = AddressRule::new(vec!["127.0.0.0/8".parse().unwrap()]);
        assert!(passes(&rule, "127.0.0.1"));
        assert!(!passes(&rule, "10.0.0.1"));
        assert!(!passes(&rule, "::ffff:127.0.0.1"));
    }

    #[test]
    fn one_address_that_is_not_public_refuses_them_all() {
        let rule = AddressRule::default();
        let (public, loopback): (IpAddr, IpAddr) = ("1.1.1.1".parse().unwrap(), "127.0.0.1".parse().unwrap());
        assert_eq!(rule.check_all(&[public, public]), Ok(()));
        assert_eq!(rule.check_all(&[public, loopback]), Err(NotPublic(loopback)));
    }
}
