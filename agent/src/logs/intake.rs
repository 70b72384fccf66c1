//! Lines that wait for being written: so many and no more.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use sandpiper_machine::sanitize;
use sandpiper_protocol::agent::LogSource;

/// Lines that wait at most: a disk that stands still must not fill memory.
const WAITING: usize = 1024;
/// The time for which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// A line that is to be an entry.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) time: Timestamp,
    pub(super) source: LogSource,
    pub(super) message: String,
}

impl Line {
    /// What the agent has to say of the log itself.
    pub(super) fn of_host(message: String) -> Self {
        Self { time: Timestamp::now(), source: LogSource::Host, message }
    }
}

/// The lines of one log that wait.
#[derive(Debug)]
pub(super) struct Intake {
    lines: Vec<Line>,
    /// The thread that writes knows of them.
    is_announced: bool,
    lines_per_second: u32,
    /// When the counting began, and what of the guest was taken since.
    window: Instant,
    taken: u32,
    /// What was not, of which the log does not say yet.
    dropped: u64,
}

impl Intake {
    pub(super) fn new(lines_per_second: u32) -> Self {
        let window = Instant::now();
        Self { lines: Vec::new(), is_announced: false, lines_per_second, window, taken: 0, dropped: 0 }
    }

    /// Adds a line; true if the thread that writes is to be told.
    pub(super) fn take_in(&mut self, source: LogSource, message: &str) -> bool {
        self.take_in_at(Instant::now(), source, message)
    }

    fn take_in_at(&mut self, now: Instant, source: LogSource, message: &str) -> bool {
        self.begin_window(now);
        let is_of_guest = source != LogSource::Host;
        if self.lines.len() >= WAITING || (is_of_guest && self.taken >= self.lines_per_second) {
            self.dropped += 1;
            return false;
        }
        self.taken += u32::from(is_of_guest);
        self.lines.push(Line { time: Timestamp::now(), source, message: sanitize(message) });
        !std::mem::replace(&mut self.is_announced, true)
    }

    /// All lines, oldest first.
    pub(super) fn take_out(&mut self) -> Vec<Line> {
        self.begin_window(Instant::now());
        self.is_announced = false;
        std::mem::take(&mut self.lines)
    }

    /// Whether nothing waits, not even the word of what was dropped.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0
    }

    /// Counts anew where the time is over, and says first what was dropped in it: once in a window, or that would be a flood.
    fn begin_window(&mut self, now: Instant) {
        if now.duration_since(self.window) < WINDOW {
            return;
        }
        (self.window, self.taken) = (now, 0);
        match std::mem::take(&mut self.dropped) {
            0 => {}
            dropped => self.lines.push(Line::of_host(format!(
                "{dropped} lines were dropped: more came than the log takes, which is {} a second",
                self.lines_per_second
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_to_so_many_lines_a_second_and_the_log_says_how_many_were_dropped() {
        let mut intake = Intake::new(10);
        let began = intake.window;
        for number in 0..25 {
            intake.take_in_at(began, LogSource::Console, &format!("line {number}"));
        }
        assert!(!intake.take_in_at(began, LogSource::Host, "the agent's own word") && intake.lines.len() == 11);

        intake.take_in_at(began + WINDOW, LogSource::Console, "after the flood");

        let said: Vec<_> = intake.lines[9..].iter().map(|line| (line.source, line.message.as_str())).collect();
        let dropped = "15 lines were dropped: more came than the log takes, which is 10 a second";
        assert_eq!(
            said,
            [
                (LogSource::Console, "line 9"),
                (LogSource::Host, "the agent's own word"),
                (LogSource::Host, dropped),
                (LogSource::Console, "after the flood"),
            ]
        );
    }

    #[test]
    fn what_waits_for_a_disk_has_an_end_whoever_says_it() {
        let mut intake = Intake::new(u32::MAX);
        assert!(intake.take_in(LogSource::Host, "the first is announced"));
        for _ in 0..2 * WAITING {
            assert!(!intake.take_in(LogSource::Host, "once is enough"));
        }
        assert_eq!(intake.take_out().len(), WAITING);
        assert!(!intake.is_empty(), "it is to be said what was dropped");
    }
}
