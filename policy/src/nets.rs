//! Ranges for the firewall: few, and none within another.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// Addresses of IPv4.
const ALL_OF_IPV4: u64 = 1 << 32;

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

    /// The ports on which all of IPv4 is named, by ranges for that port and those for every port; None: on every port.
    pub(crate) fn ports_of_all_ipv4(&self) -> Vec<Option<u16>> {
        // IPv4 comes first.
        let any_port = &self.any_port[..self.any_port.partition_point(|net| net.addr().is_ipv4())];
        // How many addresses the first ranges for every port have together: of none, one, two and so on.
        let mut sums = vec![0];
        sums.extend(any_port.iter().scan(0, |sum, net| {
            *sum += addresses(net);
            Some(*sum)
        }));
        let missing = ALL_OF_IPV4 - sums[any_port.len()];
        if missing == 0 {
            return vec![None];
        }
        let mut added = BTreeMap::<u16, u64>::new();
        for (net, port) in self.ports.iter().take_while(|(net, _)| net.addr().is_ipv4()) {
            let first = any_port.partition_point(|other| other.network() < net.network());
            let end = any_port.partition_point(|other| other.network() <= net.broadcast());
            *added.entry(*port).or_default() += addresses(net) - (sums[end] - sums[first]);
        }
        added.into_iter().filter(|(_, added)| *added == missing).map(|(port, _)| Some(port)).collect()
    }
}

/// How many there are in a range of IPv4.
fn addresses(net: &IpNet) -> u64 {
    ALL_OF_IPV4 >> net.prefix_len()
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
    fn all_of_ipv4_is_found_in_any_pieces() {
        let found = |given: &[(&str, Option<u16>)]| {
            Nets::new(given.iter().map(|(net, port)| (net.parse().unwrap(), *port))).ports_of_all_ipv4()
        };
        let (low, high) = ("0.0.0.0/1", "128.0.0.0/1");
        assert_eq!(found(&[(low, None), (high, None), (high, Some(443))]), [None]);
        assert_eq!(found(&[("0.0.0.0/0", Some(443)), (high, None), ("::/0", None)]), [Some(443)]);
        assert_eq!(found(&[(low, Some(443)), (high, None), (high, Some(443)), (low, Some(80))]), [Some(80), Some(443)]);
        assert_eq!(found(&[(low, Some(443)), ("192.0.0.0/2", None), ("128.0.0.0/2", Some(443))]), [Some(443)]);
        assert_eq!(found(&[(low, Some(443)), (high, Some(80)), ("10.0.0.0/8", None), ("::/0", None)]), []);
        assert_eq!(found(&[("::/0", Some(443)), ("::/0", None)]), []);
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
