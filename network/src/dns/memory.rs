//! Addresses that the guest was told, for as long as it may use them: a policy that comes later has to know them, as the guest
//! will not ask again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sandpiper_policy::{Name, Policy, Resolution, Rule};

use crate::pin::Pinned;

/// Addresses of names that are remembered. Beyond them, those that end first are forgotten: after a change of the policy
/// the guest has to resolve these anew.
const REMEMBERED: usize = 4096;

/// What one guest was told.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Until when an address is a name's.
    until: HashMap<(Name, IpAddr), Instant>,
}

impl Memory {
    pub(crate) fn remember(&mut self, name: &Name, addresses: impl Iterator<Item = (IpAddr, Duration)>) {
        let now = Instant::now();
        for (address, life) in addresses {
            if self.until.len() >= REMEMBERED {
                self.make_room(now);
            }
            self.until.insert((name.clone(), address), now + life);
        }
    }

    /// The pins that a policy wants for what the guest still knows.
    pub(crate) fn pins(&self, policy: &Policy) -> Vec<Pinned> {
        let now = Instant::now();
        let mut pins = Vec::new();
        for ((name, address), until) in &self.until {
            let life = until.saturating_duration_since(now);
            if life.is_zero() {
                continue;
            }
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
        let names = self.until.iter().filter(|((_, known), until)| *known == address && **until > now);
        names.map(|((name, _), _)| policy.named(name, port)).find_map(|decision| match decision.rule {
            rule @ Rule::DenyOut(_) => Some(rule),
            _ => None,
        })
    }

    fn make_room(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
        while self.until.len() >= REMEMBERED {
            let Some(first) = self.until.iter().min_by_key(|(_, until)| **until).map(|(key, _)| key.clone()) else {
                return;
            };
            self.until.remove(&first);
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
        assert_eq!(memory.until.len(), REMEMBERED);
        assert_eq!(memory.pins(&policy(&["lasting.example.test"])).len(), 1);
    }
}
