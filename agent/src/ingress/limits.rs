//! How much of the proxy one sandbox may occupy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::stats::Kind;

/// Requests and tunnels in flight, by sandbox and kind: visitors of a preview cannot lock the owner out of the data plane.
#[derive(Debug)]
pub(super) struct InFlight {
    limit: usize,
    counts: Mutex<HashMap<Key, usize>>,
}

type Key = (String, Kind);

/// One request's place, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Arc<InFlight>,
    key: Key,
}

impl InFlight {
    pub(super) fn new(limit: usize) -> Arc<InFlight> {
        Arc::new(InFlight { limit, counts: Mutex::default() })
    }

    /// A place for one more request, or `None` when the sandbox has its share already.
    pub(super) fn enter(self: &Arc<Self>, sandbox_id: &str, kind: Kind) -> Option<Place> {
        let key = (sandbox_id.to_owned(), kind);
        let mut counts = self.counts();
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Place { of: self.clone(), key })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        // No code panics between taking and releasing the lock, and a count is right after every statement.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_sandbox_and_kind_and_given_back() {
        let in_flight = InFlight::new(1);
        let first = in_flight.enter("sbxa", Kind::DataPlane).expect("free");
        assert!(in_flight.enter("sbxa", Kind::DataPlane).is_none());
        let _preview = in_flight.enter("sbxa", Kind::Preview).expect("counted apart");
        let _other = in_flight.enter("sbxb", Kind::DataPlane).expect("another sandbox");
        drop(first);
        let again = in_flight.enter("sbxa", Kind::DataPlane).expect("free again");
        drop(again);
        assert_eq!(in_flight.counts().len(), 2, "nothing is kept of a sandbox without requests");
    }
}
