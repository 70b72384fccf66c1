//! How many attempts may be under way at a time. Pure.
//!
//! Two limits keep one endpoint from holding up the others. Each **endpoint** has a *cap*, which grows by one with every
//! prompt response. It falls to the smallest when a response was slow, when an attempt has had none for as long, and when the
//! URL changes: an endpoint that answers in 50 ms may take a thousand deliveries a second, one that hangs holds four
//! attempts. And all endpoints **together** have the limit of the configuration, of which one has an eighth at most, or
//! four attempts where that is more.
//!
//! After a start everything that came due meanwhile is due at once. It is spread by beginning small: caps are at their
//! smallest, and the common limit grows from [`FIRST_WINDOW`] by [`WINDOW_GROWTH`] each second.

use std::time::Duration;

/// Cap of an endpoint that is new, or slow.
pub const SMALLEST_CAP: u32 = 4;
/// More than this no endpoint has, whatever the configuration allows.
const LARGEST_CAP: u32 = 128;
/// Longest time of an attempt that counts as prompt.
const PROMPT: Duration = Duration::from_secs(1);
/// Shortest time of an attempt that counts as slow, whether it has ended or not.
pub const SLOW: Duration = Duration::from_secs(5);
/// Attempts at a time, of all endpoints together, in the first second.
pub const FIRST_WINDOW: usize = 64;
/// That many more with each second.
pub const WINDOW_GROWTH: usize = 64;

/// Cap of an endpoint that has always been prompt, where `limit` attempts may be under way at all of them together.
pub fn largest_cap(limit: usize) -> u32 {
    u32::try_from(limit / 8).unwrap_or(u32::MAX).clamp(SMALLEST_CAP, LARGEST_CAP)
}

/// The cap of an endpoint after an attempt that took `duration`. One above the largest, which makes up for attempts of a
/// dead process, does not grow.
pub fn cap_after(cap: u32, largest: u32, duration: Duration) -> u32 {
    if duration <= PROMPT {
        if cap < largest { cap + 1 } else { cap }
    } else if duration < SLOW {
        cap
    } else {
        SMALLEST_CAP
    }
}

/// Attempts that may be under way at a time, so long after the start, where `limit` are allowed at most.
pub fn window(since_start: Duration, limit: usize) -> usize {
    let seconds = usize::try_from(since_start.as_secs()).unwrap_or(usize::MAX);
    FIRST_WINDOW.saturating_add(seconds.saturating_mul(WINDOW_GROWTH)).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_endpoint_gets_a_large_cap_and_loses_it_at_once_when_it_hangs() {
        let prompt = Duration::from_millis(50);
        let grown = (0..1000).fold(SMALLEST_CAP, |cap, _| cap_after(cap, 100, prompt));
        assert_eq!(grown, 100);
        assert_eq!(cap_after(grown, 100, Duration::from_secs(3)), 100);
        assert_eq!(cap_after(grown, 100, Duration::from_secs(30)), SMALLEST_CAP);
    }

    #[test]
    fn no_endpoint_has_more_than_an_eighth_unless_that_is_very_small() {
        let caps = [1, 16, 64, 1024, 100_000].map(largest_cap);
        assert_eq!(caps, [4, 4, 8, 128, 128]);
    }

    #[test]
    fn the_common_limit_grows_from_a_small_one() {
        assert_eq!(window(Duration::ZERO, 1024), FIRST_WINDOW);
        assert_eq!(window(Duration::from_secs(1), 1024), FIRST_WINDOW + WINDOW_GROWTH);
        assert_eq!(window(Duration::from_secs(60), 1024), 1024);
        assert_eq!(window(Duration::ZERO, 8), 8);
    }
}
