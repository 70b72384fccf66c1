//! What has gone wrong with one warm snapshot, and when it may be made again.
//!
//! A host that is busy starts slowly, and what is slow may look broken. So a snapshot that did not start goes only when
//! that happened a few times in a row while a boot in its place went well; and what could not be made is soon tried again,
//! later and later if that goes on.

use std::time::{Duration, Instant};

/// Starts in a row that did not go well, after which a snapshot is made anew.
const STRIKES: u32 = 3;
/// Pause after a snapshot that could not be made or was thrown away; doubled up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

#[derive(Debug, Default)]
pub(super) struct Trouble {
    strikes: u32,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Trouble {
    /// Notes a start that did not go well; true when the snapshot is to go.
    pub(super) fn strike(&mut self) -> bool {
        self.strikes += 1;
        self.strikes >= STRIKES
    }

    /// Notes that the snapshot could not be made, or was thrown away.
    pub(super) fn fail(&mut self, now: Instant) {
        let pause = PAUSE.0.saturating_mul(1 << self.failures.min(16)).min(PAUSE.1);
        *self = Self { strikes: 0, failures: self.failures + 1, retry_at: Some(now + pause) };
    }

    /// Whether the snapshot may be made.
    pub(super) fn may_retry(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|time| time <= now)
    }

    /// Whether this is too long ago to be of any interest.
    pub(super) fn is_past(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|time| time + PAUSE.1 <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_strike_in_a_row_counts() {
        let mut trouble = Trouble::default();
        assert_eq!([trouble.strike(), trouble.strike(), trouble.strike()], [false, false, true]);
    }

    #[test]
    fn the_first_pause_is_short_and_the_longest_ten_minutes() {
        let now = Instant::now();
        let mut trouble = Trouble::default();
        for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
            trouble.fail(now);
            assert!(!trouble.may_retry(now + Duration::from_secs(seconds - 1)), "{seconds}");
            assert!(trouble.may_retry(now + Duration::from_secs(seconds)), "{seconds}");
        }
        assert!(!trouble.is_past(now + PAUSE.1) && trouble.is_past(now + PAUSE.1 * 2));
    }
}
