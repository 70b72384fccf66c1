//! Ranges of addresses as elements of sets.
//!
//! A set of intervals takes thousands of ranges in milliseconds. One whose keys have two parts, a range and a port, is another
//! structure in the kernel (pipapo), which takes a hundred times as long. So ranges that are open for the same ports make
//! up a *group*: a map tells an address's group, and a set says which ports a group has. A map has one group for an address,
//! so this cannot be done for a range within which there is another one; the few of those are in a set with two parts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::batch::{Element, Key};

/// Of a pair of sets, that for an address's family.
pub(super) fn side(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

/// Ranges with ports, as elements; of pairs, for IPv4 and for IPv6.
#[derive(Default)]
pub(super) struct Grouped {
    /// Intervals, and their groups.
    pub(super) groups: [Vec<Element>; 2],
    /// Groups and ports.
    pub(super) group_ports: Vec<Element>,
    /// Ranges and ports.
    pub(super) nested: [Vec<Element>; 2],
}

impl Grouped {
    /// `nets` are sorted.
    pub(super) fn new(nets: &[(IpNet, u16)]) -> Self {
        let mut grouped = Self::default();
        let mut numbers = BTreeMap::new();
        let mut flat = [Vec::new(), Vec::new()];
        let mut ranges = nets.chunk_by(|(net, _), (other, _)| net == other).peekable();
        while let Some(range) = ranges.next() {
            let Some((net, _)) = range.first() else { continue };
            let within = ranges.peek().and_then(|next| next.first());
            if within.is_some_and(|(next, _)| net.contains(next)) {
                let elements = range.iter().map(|(net, port)| with_port(*net, *port));
                grouped.nested[side(net.addr())].extend(elements);
                continue;
            }
            let ports: Vec<u16> = range.iter().map(|(_, port)| *port).collect();
            let next = numbers.len();
            // As many groups as entries at most.
            let number = *numbers.entry(ports).or_insert_with(|| u32::try_from(next).unwrap_or(u32::MAX));
            flat[side(net.addr())].push((*net, Some(Key::number(number))));
        }
        grouped.groups = flat.map(|ranges| intervals(ranges.into_iter()));
        let ports = |(ports, number): (Vec<u16>, u32)| {
            ports.into_iter().map(move |port| Element::new(Key::number_and_port(number, port)))
        };
        grouped.group_ports = numbers.into_iter().flat_map(ports).collect();
        grouped
    }
}

fn with_port(net: IpNet, port: u16) -> Element {
    let bound = |address| Key::address_and_port(address, port);
    Element::between(bound(net.network()), bound(net.broadcast()))
}

/// The elements of a set of intervals, or of a map from them. `nets` are of one family, sorted, and disjoint. Neighbours that
/// have the same data become one interval.
pub(super) fn intervals(nets: impl Iterator<Item = (IpNet, Option<Key>)>) -> Vec<Element> {
    let mut elements = Vec::new();
    // Where the last interval ends, and its data.
    let mut open = (None, None);
    for (net, data) in nets {
        if open != (Some(net.network()), data) {
            elements.extend(open.0.map(|end| Element::interval_end(Key::address(end))));
            elements.push(Element::with_data(Key::address(net.network()), data));
        }
        // The last interval of all addresses has no end.
        open = (next(net.broadcast()), data);
    }
    elements.extend(open.0.map(|end| Element::interval_end(Key::address(end))));
    elements
}

/// The address that follows this one.
fn next(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits().checked_add(1)?).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().checked_add(1)?).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` begins an interval, and `-` ends one; then the data.
    fn words(elements: &[Element]) -> Vec<String> {
        let word = |element: &Element| {
            let address = match element.key().bytes() {
                bytes if bytes.len() == 4 => IpAddr::from(*bytes.first_chunk::<4>().unwrap()),
                bytes => IpAddr::from(*bytes.first_chunk::<16>().unwrap()),
            };
            let data = element.data().map(|data| u32::from_ne_bytes(data.bytes().try_into().unwrap()));
            let data = data.map(|data| format!(" {data}")).unwrap_or_default();
            format!("{}{address}{data}", if element.ends_interval() { "-" } else { "+" })
        };
        elements.iter().map(word).collect()
    }

    #[track_caller]
    fn check(nets: &[&str], expected: &[&str]) {
        assert_eq!(words(&intervals(nets.iter().map(|net| (net.parse().unwrap(), None)))), expected);
    }

    #[test]
    fn an_interval_ends_before_the_next_address() {
        check(&[], &[]);
        check(&["192.0.2.0/24", "203.0.113.7/32"], &["+192.0.2.0", "-192.0.3.0", "+203.0.113.7", "-203.0.113.8"]);
        check(&["2001:db8::/32"], &["+2001:db8::", "-2001:db9::"]);
    }

    #[test]
    fn neighbours_that_no_prefix_joins_are_one_interval() {
        check(&["10.0.1.0/24", "10.0.2.0/23", "10.0.5.0/24"], &["+10.0.1.0", "-10.0.4.0", "+10.0.5.0", "-10.0.6.0"]);
    }

    #[test]
    fn the_last_address_of_all_needs_no_end() {
        check(&["0.0.0.0/0"], &["+0.0.0.0"]);
        check(&["192.0.2.0/24", "224.0.0.0/4", "240.0.0.0/4"], &["+192.0.2.0", "-192.0.3.0", "+224.0.0.0"]);
        check(&["ff00::/8"], &["+ff00::"]);
    }

    #[test]
    fn ranges_with_the_same_ports_are_a_group_and_those_around_others_are_not() {
        let nets = [
            ("198.51.100.0/24", 53),
            ("198.51.100.0/25", 80),
            ("198.51.100.0/25", 443),
            ("198.51.100.128/32", 80),
            ("198.51.100.128/32", 443),
            ("198.51.100.129/32", 22),
            ("2001:db8::/32", 22),
        ];
        let grouped = Grouped::new(&nets.map(|(net, port)| (net.parse().unwrap(), port)));
        let [groups4, groups6] = &grouped.groups;
        assert_eq!(words(groups4), ["+198.51.100.0 0", "-198.51.100.129", "+198.51.100.129 1", "-198.51.100.130"]);
        assert_eq!(words(groups6), ["+2001:db8:: 1", "-2001:db9::"]);
        let port = |element: &Element| {
            let key = element.key();
            let (number, port) = key.bytes().split_at(4);
            (u32::from_ne_bytes(number.try_into().unwrap()), u16::from_be_bytes([port[0], port[1]]))
        };
        let mut ports: Vec<_> = grouped.group_ports.iter().map(port).collect();
        ports.sort_unstable();
        assert_eq!(ports, [(0, 80), (0, 443), (1, 22)]);
        assert_eq!(grouped.nested.map(|elements| elements.len()), [1, 0]);
    }
}
