//! When a delivery is tried again, and when no more. Pure: time and jitter are given.
//!
//! | | |
//! |---|---|
//! | delay after the first attempt | 10 s, doubled after each further one until an hour, then an hour |
//! | `Retry-After` | may make the delay longer, up to an hour; never shorter |
//! | jitter | a random part of up to a tenth on top, also of a whole hour; never less |
//! | attempts | 100, the first among them |
//! | window | no attempt starts later than seven days after the delivery was made |
//!
//! Without jitter the 99 delays come to 3.8 days, so that the hundredth attempt is the usual end. The window ends what was
//! held up here: by downtime, or by a secret that was missing.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// After the first attempt.
pub const FIRST_DELAY: Duration = Duration::from_secs(10);
/// Of backoff and `Retry-After`; jitter comes on top.
pub const LONGEST_DELAY: Duration = Duration::from_secs(3600);
/// Attempts of one delivery.
pub const MAX_ATTEMPTS: u32 = 100;
/// From a delivery's creation to the last moment at which an attempt may start.
pub const WINDOW: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The jitter is this part of the delay at most: one in so many.
const JITTER: f64 = 0.1;

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    At(Timestamp),
    Exhausted,
}

/// What follows after `attempts` attempts of a delivery that was made at `created_at`, the last of which failed now.
/// `retry_after` is what its response asked for; `jitter` is uniform in `[0, 1)`.
pub fn next_attempt(
    attempts: u32,
    created_at: Timestamp,
    now: Timestamp,
    retry_after: Option<Duration>,
    jitter: f64,
) -> Next {
    let asked = retry_after.unwrap_or_default().min(LONGEST_DELAY);
    let delay = backoff(attempts).max(asked);
    let delay = delay + delay.mul_f64(JITTER * jitter.clamp(0.0, 1.0));
    match now.checked_add(delay) {
        Ok(at) if attempts < MAX_ATTEMPTS && !is_over(created_at, at) => Next::At(at),
        _ => Next::Exhausted,
    }
}

/// Whether an attempt at `at` would start too late.
pub fn is_over(created_at: Timestamp, at: Timestamp) -> bool {
    at.duration_since(created_at) > WINDOW
}

fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    FIRST_DELAY.saturating_mul(1 << doublings).min(LONGEST_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CREATED: Timestamp = Timestamp::UNIX_EPOCH;

    fn delay(attempts: u32, retry_after: Option<u64>, jitter: f64) -> Option<SignedDuration> {
        match next_attempt(attempts, CREATED, CREATED, retry_after.map(Duration::from_secs), jitter) {
            Next::At(at) => Some(at.duration_since(CREATED)),
            Next::Exhausted => None,
        }
    }

    /// Attempts until the end, and the time from the first to the last, when each fails at once.
    fn life(retry_after: Option<u64>, jitter: f64) -> (u32, SignedDuration) {
        let (mut now, mut attempts) = (CREATED, 1);
        while let Next::At(at) = next_attempt(attempts, CREATED, now, retry_after.map(Duration::from_secs), jitter) {
            (now, attempts) = (at, attempts + 1);
        }
        (attempts, now.duration_since(CREATED))
    }

    #[test]
    fn delays_double_from_ten_seconds_to_an_hour() {
        let seconds: Vec<_> = (1..=11).map(|attempts| delay(attempts, None, 0.0).unwrap().as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
    }

    #[test]
    fn the_hundredth_attempt_is_the_usual_end() {
        let hours = |(attempts, life): (u32, SignedDuration)| (attempts, life.as_secs_f64() / 3600.0);
        let (attempts, shortest) = hours(life(None, 0.0));
        assert_eq!(attempts, MAX_ATTEMPTS);
        assert!((91.4..91.5).contains(&shortest), "{shortest}");
        let (attempts, longest) = hours(life(Some(u64::MAX), 1.0));
        assert_eq!(attempts, MAX_ATTEMPTS);
        assert!((108.8..109.0).contains(&longest), "{longest}");
    }

    #[test]
    fn the_window_ends_what_was_held_up() {
        let end = CREATED + WINDOW;
        let ten_seconds = SignedDuration::from_secs(10);
        assert_eq!(next_attempt(1, CREATED, end - ten_seconds, None, 0.0), Next::At(end));
        assert_eq!(next_attempt(1, CREATED, end - ten_seconds, None, 0.1), Next::Exhausted);
        assert!(!is_over(CREATED, end));
        assert!(is_over(CREATED, end + SignedDuration::from_millis(1)));
    }

    #[test]
    fn jitter_comes_on_top_of_a_whole_hour_too() {
        assert_eq!(delay(50, None, 1.0).unwrap().as_secs(), 3960);
        assert_eq!(delay(1, Some(7200), 0.0).unwrap().as_secs(), 3600);
        assert_eq!(delay(1, Some(7200), 0.5).unwrap().as_secs(), 3780);
        assert_eq!(delay(1, Some(5), 0.0).unwrap().as_secs(), 10);
    }

    proptest! {
        #[test]
        fn a_delay_is_never_shorter_than_asked_and_a_tenth_longer_at_most(
            attempts in 1..MAX_ATTEMPTS,
            retry_after in proptest::option::of(0..20_000u64),
            jitter in 0.0..1.0,
        ) {
            let base = backoff(attempts).as_secs_f64().max(retry_after.unwrap_or(0).min(3600) as f64);
            let delay = delay(attempts, retry_after, jitter).unwrap().as_secs_f64();
            prop_assert!(base <= delay && delay <= base * 1.1 + 1e-6, "{base} {delay}");
        }

        #[test]
        fn whatever_happens_there_are_a_hundred_attempts_in_seven_days_at_most(
            pauses in proptest::collection::vec((0..100_000i64, 0.0..1.0, proptest::option::of(0..10_000u64)), 100..120),
        ) {
            let (mut now, mut attempts) = (CREATED, 1);
            for (pause, jitter, retry_after) in pauses {
                // Nobody was there at the due time.
                let failed_at = now + SignedDuration::from_secs(pause);
                let retry_after = retry_after.map(Duration::from_secs);
                let Next::At(at) = next_attempt(attempts, CREATED, failed_at, retry_after, jitter) else { break };
                prop_assert!(at > failed_at);
                (now, attempts) = (at, attempts + 1);
                prop_assert!(now.duration_since(CREATED) <= WINDOW);
            }
            prop_assert!(attempts <= MAX_ATTEMPTS);
        }
    }
}
