//! Addresses that the guest was told, for as long as it may use them: a policy that comes later has to know them, as the guest
//! will not ask again.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sandpiper_policy::{Name, Policy, Resolution, Rule};

use crate::pin::Pinned;

/// Addresses of names that are remembered. Beyond them, those that end first are forgotten: after a change of the policy
/// the guest has to resolve these anew.
const REMEMBERED: usize = 4096;

/// What one guest was told. The guest decides how often it asks, so remembering costs no look at all that is known.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The names of an address, and until when it is theirs.
    names: HashMap<IpAddr, HashMap<Name, Instant>>,
    /// The same by its end, the first first.
    ends: BTreeSet<(Instant, IpAddr, Name)>,
}

impl Memory {
    pub(crate) fn remember(&mut self, name: &Name, addresses: impl Iterator<Item = (IpAddr, Duration)>) {
        let now = Instant::now();
        for (address, life) in addresses {
            let end = now + life;
            if let Some(former) = self.names.entry(address).or_default().insert(name.clone(), end) {
                self.ends.remove(&(former, address, name.clone()));
            }
            self.ends.insert((end, address, name.clone()));
        }
        while self.ends.first().is_some_and(|(end, ..)| *end <= now) || self.ends.len() > REMEMBERED {
            self.forget_first();
        }
    }

    /// The pins that a policy wants for what the guest still knows.
    pub(crate) fn pins(&self, policy: &Policy) -> Vec<Pinned> {
        let now = Instant::now();
        let mut pins = Vec::new();
        for (end, address, name) in self.ends.iter().rev().take_while(|(end, ..)| *end > now) {
            let life = end.saturating_duration_since(now);
            if let Resolution::Allowed { pins: wanted } = policy.resolve(name) {
                let pinned =
                    |pin: sandpiper_policy::Pin| Pinned { tier: pin.tier, address: *address, port: pin.port, life };
                pins.extend(wanted.into_iter().map(pinned));
            }
        }
        pins
    }

    /// Why the policy denies a port of this address: it is known to be that of a name which is denied there. (A name that is
    /// denied altogether is not resolved, so its addresses are not known.)
    pub(crate) fn denied(&self, policy: &Policy, address: IpAddr, port: u16) -> Option<Rule> {
        let now = Instant::now();
        let names = self.names.get(&address)?.iter().filter(|(_, end)| **end > now);
        names.map(|(name, _)| policy.named(name, port)).find_map(|decision| match decision.rule {
            rule @ Rule::DenyOut(_) => Some(rule),
            _ => None,
        })
    }

    fn forget_first(&mut self) {
        let Some((_, address, name)) = self.ends.pop_first() else { return };
        if let Some(names) = self.names.get_mut(&address) {
            names.remove(&name);
            if names.is_empty() {
                self.names.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_policy::{PinTier, Platform, Profiles};
    use sandpiper_protocol::agent::NetworkPolicy;

    const MINUTE: Duration = Duration::from_secs(60);

    fn policy(allow_out: &[&str]) -> Policy {
        let policy = NetworkPolicy {
            allow_internet_access: false,
            allow_out: allow_out.iter().map(|entry| (*entry).to_owned()).collect(),
            ..NetworkPolicy::default()
        };
        Policy::compile(&policy, &Profiles::default(), &Platform::default()).unwrap()
    }

    #[test]
    fn a_new_policy_gets_pins_for_its_own_names_and_ports_only() {
        let mut memory = Memory::default();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        memory.remember(&"a.example.test".parse().unwrap(), [(address, MINUTE)].into_iter());
        memory.remember(&"b.example.test".parse().unwrap(), [("192.0.2.2".parse().unwrap(), MINUTE)].into_iter());

        let pins = memory.pins(&policy(&["a.example.test:443"]));
        assert_eq!(pins.len(), 1);
        assert_eq!((pins[0].tier, pins[0].address, pins[0].port), (PinTier::AllowOut, address, Some(443)));
        assert!(pins[0].life <= MINUTE);
    }

    #[test]
    fn what_ended_is_not_pinned_again() {
        let mut memory = Memory::default();
        memory
            .remember(&"a.example.test".parse().unwrap(), [("192.0.2.1".parse().unwrap(), Duration::ZERO)].into_iter());
        assert!(memory.pins(&policy(&["a.example.test"])).is_empty());
    }

    #[test]
    fn a_flood_of_answers_keeps_those_that_last() {
        let mut memory = Memory::default();
        let lasting: Name = "lasting.example.test".parse().unwrap();
        memory.remember(&lasting, [("192.0.2.1".parse().unwrap(), 60 * MINUTE)].into_iter());
        let other: Name = "other.example.test".parse().unwrap();
        let many = (0..u32::try_from(2 * REMEMBERED).unwrap()).map(|n| (IpAddr::from(n.to_be_bytes()), MINUTE));
        memory.remember(&other, many);
        assert_eq!((memory.ends.len(), memory.names.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(memory.pins(&policy(&["lasting.example.test"])).len(), 1);
    }

    #[test]
    fn an_address_that_is_told_again_is_remembered_once_and_longer() {
        let mut memory = Memory::default();
        let (name, address): (Name, IpAddr) = ("a.example.test".parse().unwrap(), "192.0.2.1".parse().unwrap());
        for life in [MINUTE, 2 * MINUTE] {
            memory.remember(&name, [(address, life)].into_iter());
        }
        assert_eq!(memory.ends.len(), 1);
        let pins = memory.pins(&policy(&["a.example.test"]));
        assert_eq!(pins.len(), 1);
        assert!(pins[0].life > MINUTE);
    }

    #[test]
    fn a_port_of_an_address_is_denied_for_the_name_that_was_told_with_it() {
        let mut memory = Memory::default();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        memory.remember(&"a.example.test".parse().unwrap(), [(address, MINUTE)].into_iter());
        let policy = NetworkPolicy { deny_out: vec!["a.example.test:22".to_owned()], ..NetworkPolicy::default() };
        let policy = Policy::compile(&policy, &Profiles::default(), &Platform::default()).unwrap();

        assert!(matches!(memory.denied(&policy, address, 22), Some(Rule::DenyOut(_))));
        assert_eq!(memory.denied(&policy, address, 23), None);
        assert_eq!(memory.denied(&policy, "192.0.2.2".parse().unwrap(), 22), None);
    }
}
