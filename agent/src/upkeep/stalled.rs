//! Owners whose layers could not be merged: each is left alone for a while, longer each time, and the others are not held up.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// First and longest delay.
const DELAY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

#[derive(Debug, Default)]
pub(crate) struct Stalled {
    owners: HashMap<String, Stall>,
}

#[derive(Debug)]
struct Stall {
    delay: Duration,
    until: Instant,
}

impl Stalled {
    /// Notes a merge that could not proceed; true for the first of this owner in a row, which is worth a word.
    pub(crate) fn stall(&mut self, id: &str, now: Instant) -> bool {
        let longer = self.owners.get(id).map(|stall| (stall.delay * 2).min(DELAY.1));
        let delay = longer.unwrap_or(DELAY.0);
        self.owners.insert(id.to_owned(), Stall { delay, until: now + delay });
        longer.is_none()
    }

    /// Notes a merge that was done.
    pub(crate) fn go_on(&mut self, id: &str) {
        self.owners.remove(id);
    }

    /// Whether this owner is left alone now.
    pub(crate) fn is_delayed(&self, id: &str, now: Instant) -> bool {
        self.owners.get(id).is_some_and(|stall| now < stall.until)
    }

    /// Forgets owners that are gone.
    pub(crate) fn retain(&mut self, is_here: impl Fn(&str) -> bool) {
        self.owners.retain(|id, _| is_here(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_an_hour_and_are_logged_once() {
        let now = Instant::now();
        let mut stalled = Stalled::default();
        for (times, minutes) in [1, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
            assert_eq!(stalled.stall("one", now), times == 0);
            let delay = Duration::from_secs(minutes * 60);
            assert!(stalled.is_delayed("one", now + delay - Duration::from_secs(1)), "{minutes}");
            assert!(!stalled.is_delayed("one", now + delay) && !stalled.is_delayed("two", now), "{minutes}");
        }
        stalled.go_on("one");
        assert!(!stalled.is_delayed("one", now) && stalled.stall("one", now));
        stalled.retain(|id| id != "one");
        assert!(stalled.stall("one", now));
    }
}
