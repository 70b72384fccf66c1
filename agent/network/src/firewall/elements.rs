//! What a policy, and the pins of names, are in the slot's sets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use sandpiper_policy::{PinTier, Policy, Tier};

use super::batch::{Batch, Element, INET, Key, NETDEV, Set};
use super::ranges::{Grouped, intervals, side};
use super::rules::MOST_PINS;
use crate::pin::Pinned;

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`: what the maps and sets that hold a single fact have elements for.
const FAMILIES: [u8; 2] = [2, 10];
/// In every mark of a connection, so that none is 0, which is the mark of one that was not decided yet.
pub(super) const MARKED: u32 = 1 << 31;

const GENERATION: Set = inet("generation");
const CURRENT: Set = inet("current");
const INTERNET: Set = inet("internet");
const INTERCEPT: Set = inet("intercept");
const GUEST: Set = Set { family: NETDEV, name: "guest" };
const PROTECTED: [Set; 2] = [inet("protected4"), inet("protected6")];

/// The sets of a tier; of pairs, for IPv4 and for IPv6.
struct TierSets {
    nets: [Set; 2],
    groups: [Set; 2],
    group_ports: Set,
    nested: [Set; 2],
    pins: [Set; 2],
    pin_ports: [Set; 2],
}

const ALLOW: TierSets = TierSets {
    nets: [inet("allow4"), inet("allow6")],
    groups: [inet("allow_group4"), inet("allow_group6")],
    group_ports: inet("allow_group_port"),
    nested: [inet("allow_port4"), inet("allow_port6")],
    pins: [inet("allow_pin4"), inet("allow_pin6")],
    pin_ports: [inet("allow_pin_port4"), inet("allow_pin_port6")],
};
const DENY: TierSets = TierSets {
    nets: [inet("deny4"), inet("deny6")],
    groups: [inet("deny_group4"), inet("deny_group6")],
    group_ports: inet("deny_group_port"),
    nested: [inet("deny_port4"), inet("deny_port6")],
    pins: [inet("deny_pin4"), inet("deny_pin6")],
    pin_ports: [inet("deny_pin_port4"), inet("deny_pin_port6")],
};
const PROFILE: TierSets = TierSets {
    nets: [inet("profile4"), inet("profile6")],
    groups: [inet("profile_group4"), inet("profile_group6")],
    group_ports: inet("profile_group_port"),
    nested: [inet("profile_port4"), inet("profile_port6")],
    pins: [inet("profile_pin4"), inet("profile_pin6")],
    pin_ports: [inet("profile_pin_port4"), inet("profile_pin_port6")],
};

const fn inet(name: &'static str) -> Set {
    Set { family: INET, name }
}

fn sets_of(tier: PinTier) -> &'static TierSets {
    match tier {
        Tier::AllowOut => &ALLOW,
        Tier::DenyOut => &DENY,
        Tier::Profile => &PROFILE,
    }
}

/// Replaces the policy and all pins.
pub(super) fn apply(batch: &mut Batch, policy: &Policy, generation: u32, pins: &[Pinned]) {
    let mark = Key::number(generation | MARKED);
    fill(batch, GENERATION, FAMILIES.map(|family| Element::with_data(Key::family(family), Some(mark))));
    fill(batch, CURRENT, [Element::new(mark)]);
    for (set, fact) in [(INTERNET, policy.internet()), (INTERCEPT, policy.denies_names())] {
        fill(batch, set, FAMILIES.iter().filter(|_| fact).map(|family| Element::new(Key::family(*family))));
    }
    fill_nets(batch, PROTECTED, policy.protected());
    for tier in [Tier::AllowOut, Tier::DenyOut, Tier::Profile] {
        let (sets, nets) = (sets_of(tier), policy.nets(tier));
        fill_nets(batch, sets.nets, &nets.any_port);
        let Grouped { groups, group_ports, nested } = Grouped::new(&nets.ports);
        fill(batch, sets.group_ports, group_ports);
        for (set, elements) in sets.groups.into_iter().zip(groups).chain(sets.nested.into_iter().zip(nested)) {
            fill(batch, set, elements);
        }
        for set in sets.pins.into_iter().chain(sets.pin_ports) {
            batch.flush(set);
        }
    }
    for (set, mut elements) in by_set(pins).into_values() {
        elements.truncate(MOST_PINS);
        batch.add(set, elements);
    }
}

/// Adds pins, or renews them. A kernel before 6.12 leaves the time-out of an element as it is when it is added again, so each
/// is taken out in between; and what is taken out has to be there, so each is added before that.
pub(super) fn pin(batch: &mut Batch, pins: &[Pinned]) {
    for (set, elements) in by_set(pins).into_values() {
        batch.add(set, elements.iter().copied());
        batch.delete(set, elements.iter().copied());
        batch.add(set, elements);
    }
}

/// Says who the guest is.
pub(super) fn set_guest(batch: &mut Batch, mac: [u8; 6]) {
    fill(batch, GUEST, [Element::new(Key::mac(mac))]);
}

fn fill(batch: &mut Batch, set: Set, elements: impl IntoIterator<Item = Element>) {
    batch.flush(set);
    batch.add(set, elements);
}

fn fill_nets(batch: &mut Batch, sets: [Set; 2], nets: &[IpNet]) {
    for (ipv6, set) in sets.into_iter().enumerate() {
        let ours = nets.iter().filter(|net| side(net.addr()) == ipv6);
        fill(batch, set, intervals(ours.map(|net| (*net, None))));
    }
}

/// Each pin once, with the longest life that it was given, and those of a set with the longest lives first.
fn by_set(pins: &[Pinned]) -> BTreeMap<&'static str, (Set, Vec<Element>)> {
    let mut lives = BTreeMap::<_, Duration>::new();
    for pin in pins {
        let life = lives.entry((pin.tier, pin.address.to_canonical(), pin.port)).or_default();
        *life = pin.life.max(*life);
    }
    let mut lives: Vec<_> = lives.into_iter().collect();
    lives.sort_by_key(|(_, life)| Reverse(*life));

    let mut sets = BTreeMap::new();
    for ((tier, address, port), life) in lives {
        let (pair, key) = match port {
            None => (&sets_of(tier).pins, Key::address(address)),
            Some(port) => (&sets_of(tier).pin_ports, Key::address_and_port(address, port)),
        };
        let set = pair[side(address)];
        sets.entry(set.name).or_insert_with(|| (set, Vec::new())).1.push(Element::with_life(key, life));
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_that_comes_twice_has_the_longer_life() {
        let pin = |address: &str, seconds| Pinned {
            tier: Tier::AllowOut,
            address: address.parse().unwrap(),
            port: None,
            life: Duration::from_secs(seconds),
        };
        let pins = [pin("192.0.2.1", 90), pin("::ffff:192.0.2.1", 300), pin("192.0.2.2", 100), pin("2001:db8::1", 90)];
        let sets = by_set(&pins);
        let lives = |name| sets[name].1.iter().map(|element| element.life().unwrap().as_secs()).collect::<Vec<_>>();
        assert_eq!(lives("allow_pin4"), [300, 100]);
        assert_eq!(lives("allow_pin6"), [90]);
    }
}
