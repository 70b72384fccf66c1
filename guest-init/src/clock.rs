//! The wall clock: what the host says of it, and setting ours.
//!
//! The host writes down its time at some moment between two that the guest knows: one before it could (a connection was
//! begun, a question was sent) and one after (the line was read). The shorter the time between these, the better the
//! host's clock is known; the middle of it is taken, so half of it is the largest error.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};

/// A clock that differs by less than this is left alone: programs see a clock that is set as a jump.
const TOLERANCE: Duration = Duration::from_millis(2);

/// What the host's clock shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostTime {
    /// Since 1970, at the moment `at`.
    unix: Duration,
    at: Instant,
    window: Duration,
}

impl HostTime {
    /// Of a host that wrote `unix_time_ns` at some moment between `before` and `after`.
    pub(crate) fn between(before: Instant, unix_time_ns: u64, after: Instant) -> Self {
        let window = after.saturating_duration_since(before);
        Self { unix: Duration::from_nanos(unix_time_ns) + window / 2, at: after, window }
    }

    /// How long the time was in which the host wrote its own: twice the largest error.
    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// Whether it still holds after a time, by what the host has written since: no message is read before it was written, and
    /// this one was not under way for longer than `longest`. A machine that stood still meanwhile finds its clock behind.
    pub(crate) fn is_confirmed(&self, unix_time_ns: u64, read: Instant, longest: Duration) -> bool {
        let written = Duration::from_nanos(unix_time_ns);
        let shown = self.unix.saturating_add(read.saturating_duration_since(self.at));
        let error = self.window / 2;
        shown.saturating_add(error) >= written && shown.saturating_sub(error) <= written.saturating_add(longest)
    }

    /// Whether both can be true.
    pub(crate) fn agrees_with(&self, later: &Self) -> bool {
        let shown = self.unix.saturating_add(later.at.saturating_duration_since(self.at));
        shown.abs_diff(later.unix) <= (self.window + later.window) / 2
    }

    /// Since 1970, now.
    fn now(&self) -> Duration {
        self.unix.saturating_add(self.at.elapsed())
    }

    /// Sets the machine's clock if it differs.
    pub(crate) fn set(&self) -> io::Result<()> {
        let present = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME)?);
        let wanted = self.now();
        if wanted.abs_diff(present) > TOLERANCE {
            clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from(wanted))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_what_is_possible_is_taken_and_time_goes_on_from_there() {
        let after = Instant::now();
        let before = after - Duration::from_millis(8);

        let time = HostTime::between(before, 1_000_000_000, after);
        let (earliest, now, latest) = (after.elapsed(), time.now(), after.elapsed());

        assert_eq!(time.window(), Duration::from_millis(8));
        let at_the_reading = Duration::from_millis(1004);
        assert!(now >= at_the_reading + earliest && now <= at_the_reading + latest, "{now:?}");
    }

    #[test]
    fn a_time_is_confirmed_by_one_that_was_written_a_moment_before_it_is_read() {
        let (at, ms) = (Instant::now(), Duration::from_millis);
        let time = HostTime::between(at, 1_000_000_000, at + ms(4));
        // 61 s after 1970 by what is known, or two milliseconds more or less.
        let read = at + ms(60_000) + ms(2);
        let confirmed = |written_ms: u64| time.is_confirmed(written_ms * 1_000_000, read, ms(20));
        assert!(confirmed(61_002) && confirmed(60_990) && confirmed(60_978));
        assert!(!confirmed(61_003), "a clock that stood still is behind what it reads");
        assert!(!confirmed(60_977), "the message may have waited, or the clock be fast");
    }

    #[test]
    fn two_times_agree_as_far_as_they_are_known() {
        let (at, ms) = (Instant::now(), Duration::from_millis);
        let first = HostTime::between(at, 1_000_000_000, at + ms(4));
        // 2 s after 1970 by what is known, with an error of 2 ms; what is later learned has one of 50 ms.
        let agrees = |written_ms: u64| {
            let later = HostTime::between(at + ms(902), written_ms * 1_000_000, at + ms(1002));
            first.agrees_with(&later)
        };
        assert!(agrees(1_898) && agrees(1_950) && agrees(2_002));
        assert!(!agrees(1_897) && !agrees(2_003));
    }

    #[test]
    fn the_largest_number_of_the_host_is_no_panic() {
        let now = Instant::now();
        let time = HostTime::between(now, u64::MAX, now);
        assert!(time.now() >= Duration::from_nanos(u64::MAX));
    }
}
