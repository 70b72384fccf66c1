//! Ranges for the firewall: few, and none within another.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// All of IPv4.
const ALL_OF_IPV4: IpNet = IpNet::new_assert(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The ranges of one tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nets {
    /// For every protocol and port; sorted, none touches another that it could be joined with.
    pub any_port: Vec<IpNet>,
    /// For TCP and UDP to one port; as `any_port` for each port, and none lies within one of those. Sorted.
    pub ports: Vec<(IpNet, u16)>,
}

impl Nets {
    pub(crate) fn new(nets: impl IntoIterator<Item = (IpNet, Option<u16>)>) -> Self {
        let mut by_port = BTreeMap::<Option<u16>, Vec<IpNet>>::new();
        for (net, port) in nets {
            by_port.entry(port).or_default().push(net);
        }
        let any_port = IpNet::aggregate(&by_port.remove(&None).unwrap_or_default());
        let mut ports = Vec::new();
        for (port, mut nets) in by_port {
            nets.retain(|net| !covers(&any_port, net));
            ports.extend(IpNet::aggregate(&nets).into_iter().zip(std::iter::repeat(port).flatten()));
        }
        ports.sort_unstable();
        Self { any_port, ports }
    }

    /// The ports that all of IPv4 is named with; None for any port.
    pub(crate) fn ports_of_all_ipv4(&self) -> impl Iterator<Item = Option<u16>> {
        // The one IPv4 range that there is then, and IPv4 comes first.
        let any_port = self.any_port.first() == Some(&ALL_OF_IPV4);
        let ports = self.ports.iter().take_while(|(net, _)| *net == ALL_OF_IPV4);
        any_port.then_some(None).into_iter().chain(ports.map(|(_, port)| Some(*port)))
    }
}

/// Whether one of `nets`, sorted and disjoint, holds all of `net`: only the last that begins no later can.
fn covers(nets: &[IpNet], net: &IpNet) -> bool {
    let later = nets.partition_point(|other| other.network() <= net.network());
    later.checked_sub(1).is_some_and(|index| nets[index].contains(net))
}

/// What is left of `net` without `holes`.
pub(crate) fn without(net: IpNet, holes: &[IpNet]) -> Vec<IpNet> {
    if holes.iter().any(|hole| hole.contains(&net)) {
        return Vec::new();
    }
    if !holes.iter().any(|hole| net.contains(hole)) {
        return vec![net];
    }
    // A hole lies within: it is longer, so that there are halves.
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, holes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn neighbours_are_joined_and_what_lies_within_is_left_out() {
        let given = [
            ("198.51.100.0/25", None),
            ("198.51.100.128/25", None),
            ("198.51.100.7/32", None),
            ("198.51.100.7/32", Some(443)),
            ("203.0.113.0/25", Some(443)),
            ("203.0.113.128/25", Some(443)),
            ("203.0.113.0/24", Some(80)),
            ("198.51.0.0/16", Some(80)),
            ("2001:db8::/33", None),
            ("2001:db8:8000::/33", None),
        ];
        let made = Nets::new(given.map(|(net, port)| (net.parse().unwrap(), port)));
        assert_eq!(made.any_port, nets(&["198.51.100.0/24", "2001:db8::/32"]));
        let ports: Vec<_> = made.ports.iter().map(|(net, port)| format!("{net}:{port}")).collect();
        assert_eq!(ports, ["198.51.0.0/16:80", "203.0.113.0/24:80", "203.0.113.0/24:443"]);
    }

    #[test]
    fn a_hole_is_cut_out_of_a_range() {
        let hole = nets(&["10.0.0.0/9", "10.192.0.0/10"]);
        assert_eq!(without("10.0.0.0/8".parse().unwrap(), &hole), nets(&["10.128.0.0/10"]));
        assert_eq!(without("10.0.0.0/9".parse().unwrap(), &hole), nets(&[]));
        assert_eq!(without("172.16.0.0/12".parse().unwrap(), &hole), nets(&["172.16.0.0/12"]));
        let single = without("fc00::/7".parse().unwrap(), &nets(&["fd00::1/128"]));
        assert_eq!(single.len(), 121);
    }
}
