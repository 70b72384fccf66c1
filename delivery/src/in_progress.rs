//! The attempts that are in progress in this process: how many, and at which endpoints they take long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::webhook_endpoints::EndpointKey;

/// The attempts.
#[derive(Debug, Default)]
pub(super) struct InProgress(Mutex<Attempts>);

#[derive(Debug, Default)]
struct Attempts {
    /// By number, which is also the order of their beginnings.
    begun: BTreeMap<u64, (EndpointKey, Instant)>,
    next: u64,
}

/// An attempt in progress; it counts until this is dropped.
#[derive(Debug)]
pub(super) struct AttemptGuard {
    number: u64,
    all: Arc<InProgress>,
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.all.lock().begun.remove(&self.number);
    }
}

impl InProgress {
    /// An attempt begins.
    pub(super) fn begin(self: &Arc<Self>, endpoint: EndpointKey) -> AttemptGuard {
        let mut attempts = self.lock();
        let number = attempts.next;
        attempts.next += 1;
        attempts.begun.insert(number, (endpoint, Instant::now()));
        AttemptGuard { number, all: self.clone() }
    }

    pub(super) fn count(&self) -> usize {
        self.lock().begun.len()
    }

    /// The endpoints at which an attempt has been in progress for `time` or longer.
    pub(super) fn longer_than(&self, time: Duration) -> BTreeSet<EndpointKey> {
        let attempts = self.lock();
        let long = attempts.begun.values().take_while(|(_, since)| since.elapsed() >= time);
        long.map(|(endpoint, _)| endpoint.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Attempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
