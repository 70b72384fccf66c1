//! How often a key may ask.

use std::num::NonZeroU32;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use serde::Deserialize;

use crate::error::ApiError;

/// A token bucket, as an operator sets it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    pub per_second: NonZeroU32,
    pub burst: NonZeroU32,
}

/// One token bucket per key.
pub struct RateLimits {
    buckets: DefaultKeyedRateLimiter<String>,
    clock: DefaultClock,
}

impl std::fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RateLimits")
    }
}

impl RateLimits {
    /// Full buckets.
    pub fn new(limit: RateLimit) -> Self {
        Self::of(governor::Quota::per_second(limit.per_second).allow_burst(limit.burst))
    }

    /// Full buckets, of so many a minute.
    pub fn per_minute(number: NonZeroU32) -> Self {
        Self::of(governor::Quota::per_minute(number))
    }

    fn of(quota: governor::Quota) -> Self {
        Self { buckets: RateLimiter::keyed(quota), clock: DefaultClock::default() }
    }

    /// Takes a token of this key's bucket.
    ///
    /// # Errors
    ///
    /// 429 when it is empty.
    pub fn check(&self, key_id: &String) -> Result<(), ApiError> {
        self.buckets.check_key(key_id).map_err(|not_until| {
            let wait = not_until.wait_time_from(self.clock.now());
            // Whole seconds, rounded up: a client that waits as told gets through.
            ApiError::rate_limited(wait.as_secs() + 1)
        })
    }

    /// Forgets the buckets that are full again.
    pub fn prune(&self) {
        self.buckets.retain_recent();
    }
}
