//! The attempts that are in progress in this process: how many, and at which endpoints they take long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Endpoint;

/// The attempts.
#[derive(Debug)]
pub(super) struct InProgress<E: Endpoint>(Mutex<Attempts<E>>);

#[derive(Debug)]
struct Attempts<E: Endpoint> {
    /// By number, which is also the order of their beginnings.
    begun: BTreeMap<u64, (E, Instant)>,
    next: u64,
}

/// An attempt in progress; it counts until this is dropped.
#[derive(Debug)]
pub(super) struct AttemptGuard<E: Endpoint> {
    number: u64,
    all: Arc<InProgress<E>>,
}

impl<E: Endpoint> Default for InProgress<E> {
    fn default() -> Self {
        Self(Mutex::new(Attempts { begun: BTreeMap::new(), next: 0 }))
    }
}

impl<E: Endpoint> Drop for AttemptGuard<E> {
    fn drop(&mut self) {
        self.all.lock().begun.remove(&self.number);
    }
}

impl<E: Endpoint> InProgress<E> {
    /// An attempt begins.
    pub(super) fn begin(self: &Arc<Self>, endpoint: E) -> AttemptGuard<E> {
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
    pub(super) fn longer_than(&self, time: Duration) -> BTreeSet<E> {
        let attempts = self.lock();
        let long = attempts.begun.values().take_while(|(_, since)| since.elapsed() >= time);
        long.map(|(endpoint, _)| endpoint.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Attempts<E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
