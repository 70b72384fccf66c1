//! How long the steps take by which a guest becomes ready, for the host's operators.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sandpiper_protocol::guest::GuestStep;

/// The steps since a moment. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    origin: Instant,
    steps: Arc<Mutex<Vec<GuestStep>>>,
}

impl Timeline {
    pub(crate) fn since(origin: Instant) -> Self {
        Self { origin, steps: Arc::default() }
    }

    /// Does `work`, as a step of this name.
    pub(crate) fn step<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.add(name, began, Instant::now());
        result
    }

    /// As [`Self::step`].
    pub(crate) async fn step_of<T>(&self, name: &str, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = work.await;
        self.add(name, began, Instant::now());
        result
    }

    fn add(&self, name: &str, from: Instant, to: Instant) {
        let us = |at: Instant| u64::try_from(at.saturating_duration_since(self.origin).as_micros()).unwrap_or(u64::MAX);
        let step = GuestStep { name: name.to_owned(), from_us: us(from), to_us: us(to) };
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    pub(crate) fn steps(&self) -> Vec<GuestStep> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
