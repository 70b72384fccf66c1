//! How many attempts may be under way at a time. Pure.
//!
//! Two limits keep one endpoint from holding up the others. Each **endpoint** has a *cap*, which grows by one with every
//! prompt answer and falls to the smallest at once when it is slow: an endpoint that answers in 50 ms may take a thousand
//! deliveries a second, one that hangs holds four attempts. And all endpoints **together** have the limit of the
//! configuration, of which one has an eighth at most unless that is very small.
//!
//! After a start everything that came due meanwhile is due at once. It is spread by beginning small: caps are at their
//! smallest, and the common limit grows from [`FIRST_WINDOW`] by [`WINDOW_GROWTH`] each second.

use std::time::Duration;

/// Cap of an endpoint that is new, or slow.
pub const SMALLEST_CAP: u32 = 4;
/// Cap of an endpoint that has always been prompt.
pub const LARGEST_CAP: u32 = 128;
/// Longest time of an attempt that counts as prompt.
const PROMPT: Duration = Duration::from_secs(1);
/// Shortest time of an attempt that counts as slow.
const SLOW: Duration = Duration::from_secs(5);
/// Attempts at a time, of all endpoints together, in the first second.
pub const FIRST_WINDOW: usize = 64;
/// That many more with each second.
pub const WINDOW_GROWTH: usize = 64;

/// The cap of an endpoint after an attempt that took `duration`.
pub fn cap_after(cap: u32, duration: Duration) -> u32 {
    if duration <= PROMPT {
        cap.saturating_add(1).clamp(SMALLEST_CAP, LARGEST_CAP)
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
        let grown = (0..1000).fold(SMALLEST_CAP, |cap, _| cap_after(cap, prompt));
        assert_eq!(grown, LARGEST_CAP);
        assert_eq!(cap_after(grown, Duration::from_secs(3)), LARGEST_CAP);
        assert_eq!(cap_after(grown, Duration::from_secs(30)), SMALLEST_CAP);
    }

    #[test]
    fn the_common_limit_grows_from_a_small_one() {
        assert_eq!(window(Duration::ZERO, 1024), FIRST_WINDOW);
        assert_eq!(window(Duration::from_secs(1), 1024), FIRST_WINDOW + WINDOW_GROWTH);
        assert_eq!(window(Duration::from_secs(60), 1024), 1024);
        assert_eq!(window(Duration::ZERO, 8), 8);
    }
}
