//! How much of the proxy one sandbox or one client may occupy.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use tokio::sync::OwnedSemaphorePermit;

use super::headers::Protocol;
use super::memory::{self, Memory};
use super::stats::Kind;

/// So many of something at a time for each key.
#[derive(Debug)]
pub(super) struct Limit<K: Eq + Hash> {
    most: usize,
    counts: Mutex<HashMap<K, usize>>,
}

/// One of the places of a key, given back when dropped.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash> {
    of: Arc<Limit<K>>,
    key: K,
    /// Places that its key had before.
    others: usize,
}

impl<K: Eq + Hash + Clone> Limit<K> {
    pub(super) fn new(most: usize) -> Arc<Limit<K>> {
        Arc::new(Limit { most, counts: Mutex::default() })
    }

    /// A place for one more, or `None` when `key` has its share already.
    pub(super) fn enter(self: &Arc<Self>, key: K) -> Option<Place<K>> {
        let mut counts = self.counts();
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        let others = *count;
        *count += 1;
        drop(counts);
        Some(Place { of: self.clone(), key, others })
    }
}

impl<K: Eq + Hash> Limit<K> {
    fn counts(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        // No code panics between taking and releasing the lock, and a count is right after every statement.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        if let Some(count) = counts.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// Whom addresses are counted for: one IPv4 address, or the 64-bit prefix that one IPv6 client has all of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Neighbourhood(IpAddr);

impl From<IpAddr> for Neighbourhood {
    fn from(address: IpAddr) -> Neighbourhood {
        match address.to_canonical() {
            IpAddr::V4(address) => Neighbourhood(address.into()),
            IpAddr::V6(address) => Neighbourhood(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
        }
    }
}

/// Requests and tunnels in flight.
///
/// They are counted by sandbox and kind: visitors of a preview cannot lock the owner out of the data plane. And by
/// visitor and sandbox for previews: one visitor cannot lock out the others. Here the API counts as a sandbox with previews.
#[derive(Debug)]
pub(super) struct InFlight {
    sandboxes: Arc<Limit<(Arc<str>, Kind)>>,
    visitors: Arc<Limit<(Neighbourhood, Arc<str>)>>,
    memory: Memory,
}

/// What a request occupies until its response is complete.
#[derive(Debug)]
pub(super) struct Occupied {
    _sandbox: Place<(Arc<str>, Kind)>,
    _visitor: Option<Place<(Neighbourhood, Arc<str>)>>,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Whose share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Sandbox,
    Visitor,
    /// The memory that all sandboxes share, of which this one has had enough.
    Memory,
}

impl InFlight {
    pub(super) fn new(for_each_sandbox: usize, for_each_visitor: usize, memory: Memory) -> InFlight {
        InFlight { sandboxes: Limit::new(for_each_sandbox), visitors: Limit::new(for_each_visitor), memory }
    }

    /// Counts a request of `client`, which reaches the guest over `protocol`, until the guard is dropped.
    pub(super) fn enter(
        &self,
        sandbox_id: &str,
        kind: Kind,
        client: IpAddr,
        protocol: Protocol,
    ) -> Result<Occupied, Full> {
        let sandbox: Arc<str> = sandbox_id.into();
        let visitor = match kind {
            Kind::Preview | Kind::Api => {
                let key = (Neighbourhood::from(client), sandbox.clone());
                Some(self.visitors.enter(key).ok_or(Full::Visitor)?)
            }
            Kind::DataPlane | Kind::Unknown => None,
        };
        let sandbox = self.sandboxes.enter((sandbox, kind)).ok_or(Full::Sandbox)?;
        let memory = self.memory.exchange(protocol, sandbox.others).map_err(|memory::Full| Full::Memory)?;
        Ok(Occupied { _sandbox: sandbox, _visitor: visitor, _memory: memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const BOB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn places_are_counted_by_sandbox_and_kind_and_given_back() {
        let in_flight = InFlight::new(1, 1, Memory::new(1));
        let first = in_flight.enter("sbxa", Kind::DataPlane, ANN, Protocol::Http1).expect("free");
        assert_eq!(in_flight.enter("sbxa", Kind::DataPlane, BOB, Protocol::Http1).err(), Some(Full::Sandbox));
        let _preview = in_flight.enter("sbxa", Kind::Preview, ANN, Protocol::Http1).expect("counted apart");
        let _other = in_flight.enter("sbxb", Kind::DataPlane, ANN, Protocol::Http1).expect("another sandbox");
        drop(first);
        let again = in_flight.enter("sbxa", Kind::DataPlane, ANN, Protocol::Http1).expect("free again");
        drop(again);
        assert_eq!(in_flight.sandboxes.counts().len(), 2, "nothing is kept of a sandbox without requests");
    }

    #[test]
    fn one_visitor_leaves_room_for_others() {
        let in_flight = InFlight::new(2, 1, Memory::new(1));
        let _ann = in_flight.enter("sbxa", Kind::Preview, ANN, Protocol::Http1).expect("free");
        assert_eq!(in_flight.enter("sbxa", Kind::Preview, ANN, Protocol::Http1).err(), Some(Full::Visitor));
        let _elsewhere = in_flight.enter("sbxb", Kind::Preview, ANN, Protocol::Http1).expect("another sandbox");
        let _bob = in_flight.enter("sbxa", Kind::Preview, BOB, Protocol::Http1).expect("another visitor");
    }

    #[test]
    fn a_sandbox_that_holds_all_memory_is_refused_more_and_no_other_is() {
        let in_flight = InFlight::new(100, 100, Memory::new(1));
        let enter = |sandbox, kind| in_flight.enter(sandbox, kind, ANN, Protocol::Http1);
        let held: Vec<_> = (0..12).map(|_| enter("sbxa", Kind::Preview).expect("free")).collect();
        assert_eq!(enter("sbxa", Kind::Preview).err(), Some(Full::Memory));
        assert!(enter("sbxa", Kind::DataPlane).is_ok() && enter("sbxb", Kind::Preview).is_ok());
        drop(held);
        assert_eq!(in_flight.memory.exchange(Protocol::Http1, 100).map(|permit| permit.is_some()), Ok(true));
        assert!(in_flight.sandboxes.counts().is_empty());
    }

    #[test]
    fn an_ipv6_client_is_its_whole_prefix() {
        let of = |text: &str| Neighbourhood::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
