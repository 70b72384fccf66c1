//! Token buckets, which bound what a guest may have done in a second.
//!
//! A bucket holds what passes in a second, and is full at first. It is asked whether it is empty before something passes, and
//! charged for all of it, so it may owe; what comes next waits that much longer.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// What it holds is told by the time at which it will be full: a second from now if it is empty, later if it owes.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Per second.
    rate: NonZeroU64,
    /// `None` if it has been full ever since it was made.
    full_at: Option<Instant>,
}

impl Bucket {
    /// Of none at all, which nobody can mean, it gives one.
    pub(crate) fn new(rate: u64) -> Self {
        Self { rate: NonZeroU64::new(rate).unwrap_or(NonZeroU64::MIN), full_at: None }
    }

    /// When it will hold something again, if it does not at `now`.
    pub(crate) fn empty_until(&self, now: Instant) -> Option<Instant> {
        let missing = self.full_at?.saturating_duration_since(now);
        let wait = missing.checked_sub(SECOND)?;
        // Exactly empty is empty.
        Some(now + wait.max(Duration::from_nanos(1)))
    }

    /// Takes `count` at `now`, more than there is if need be.
    pub(crate) fn take(&mut self, count: u64, now: Instant) {
        // What is taken at once has less than 2^28 bytes: no overflow.
        let cost = Duration::from_nanos(count.saturating_mul(1_000_000_000).div_ceil(self.rate.get()));
        let from = self.full_at.map_or(now, |full_at| full_at.max(now));
        self.full_at = Some(from + cost);
    }
}
