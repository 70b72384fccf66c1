//! The attempts that this process has under way: how many, and at which endpoints they take long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::webhook_endpoints::EndpointKey;

/// The attempts.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<Attempts>);

#[derive(Debug, Default)]
struct Attempts {
    /// By number, which is also the order of their beginnings.
    begun: BTreeMap<u64, (EndpointKey, Instant)>,
    next: u64,
}

/// The place of an attempt among those that may be under way, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    all: Arc<UnderWay>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().begun.remove(&self.number);
    }
}

impl UnderWay {
    /// An attempt begins.
    pub(super) fn begin(self: &Arc<Self>, endpoint: EndpointKey) -> Place {
        let mut attempts = self.lock();
        let number = attempts.next;
        attempts.next += 1;
        attempts.begun.insert(number, (endpoint, Instant::now()));
        Place { number, all: self.clone() }
    }

    pub(super) fn count(&self) -> usize {
        self.lock().begun.len()
    }

    /// The endpoints at which an attempt has been under way for `time` or longer.
    pub(super) fn longer_than(&self, time: Duration) -> BTreeSet<EndpointKey> {
        let attempts = self.lock();
        let long = attempts.begun.values().take_while(|(_, since)| since.elapsed() >= time);
        long.map(|(endpoint, _)| endpoint.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Attempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
