//! Lines that wait for being written: so many and no more.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use sandpiper_machine::{sanitize, sanitize_to};
use sandpiper_protocol::agent::{LogEntry, LogProcess, LogSource};
use sandpiper_protocol::guest::{MAX_OUTPUT_LINE, OutputLine};

/// Lines that wait at most, of what processes write and of everything else: a disk that stands still must not fill memory.
const WAITING: usize = 1024;
/// The time for which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Bytes of a program's name, or of a process's tag.
const MAX_NAME: usize = 64;

/// A line that is to be an entry.
#[derive(Debug)]
pub(super) struct Line {
    time: Timestamp,
    pub(super) source: LogSource,
    pub(super) message: String,
    process: Option<LogProcess>,
}

impl Line {
    fn new(source: LogSource, message: String) -> Self {
        Self { time: Timestamp::now(), source, message, process: None }
    }

    /// What the agent has to say of the log itself.
    pub(super) fn of_host(message: String) -> Self {
        Self::new(LogSource::Host, message)
    }

    /// What a process wrote, as the guest says.
    fn of_process(line: OutputLine) -> Self {
        let OutputLine { stream, pid, command, tag, text, cut } = line;
        let cut = cut || text.len() > MAX_OUTPUT_LINE;
        let name = |text: &str| sanitize_to(text, MAX_NAME);
        let process = LogProcess { pid, command: name(&command), tag: tag.as_deref().map(name), stream, cut };
        Self { process: Some(process), ..Self::new(LogSource::Process, sanitize_to(&text, MAX_OUTPUT_LINE)) }
    }

    /// The entry with this sequence.
    pub(super) fn into_entry(self, sequence: u64) -> LogEntry {
        let Self { time, source, message, process } = self;
        LogEntry { sequence, time, source, message, process }
    }
}

/// The lines of one log that wait.
#[derive(Debug)]
pub(super) struct Intake {
    lines: Vec<Line>,
    /// The thread that writes knows of them.
    is_announced: bool,
    lines_per_second: u32,
    /// When the counting began.
    window: Instant,
    /// What processes write is counted apart: a flood of it costs nothing else.
    output: Count,
    others: Count,
}

/// How many lines there were of one kind.
#[derive(Debug, Default)]
struct Count {
    waiting: usize,
    /// Of the guest, in this window.
    taken: u32,
    /// What was not taken, of which the log does not say yet.
    dropped: u64,
}

impl Intake {
    pub(super) fn new(lines_per_second: u32) -> Self {
        let (window, output, others) = (Instant::now(), Count::default(), Count::default());
        Self { lines: Vec::new(), is_announced: false, lines_per_second, window, output, others }
    }

    /// Adds a line; true if the thread that writes is to be told.
    pub(super) fn take_in(&mut self, source: LogSource, message: &str) -> bool {
        self.take_in_at(Instant::now(), Line::new(source, sanitize(message)))
    }

    /// Adds what processes wrote, of which the guest itself left so many lines out; true if the thread that writes is to be told.
    pub(super) fn take_in_output(&mut self, lines: Vec<OutputLine>, left_out: u64) -> bool {
        let now = Instant::now();
        self.output.dropped = self.output.dropped.saturating_add(left_out);
        let mut is_news = false;
        for line in lines {
            is_news |= self.take_in_at(now, Line::of_process(line));
        }
        is_news
    }

    fn take_in_at(&mut self, now: Instant, line: Line) -> bool {
        self.begin_window(now);
        let is_of_guest = line.source != LogSource::Host;
        let lines_per_second = self.lines_per_second;
        let count = self.count(line.source);
        if count.waiting >= WAITING || (is_of_guest && count.taken >= lines_per_second) {
            count.dropped = count.dropped.saturating_add(1);
            return false;
        }
        count.waiting += 1;
        count.taken += u32::from(is_of_guest);
        self.lines.push(line);
        !std::mem::replace(&mut self.is_announced, true)
    }

    fn count(&mut self, source: LogSource) -> &mut Count {
        if source == LogSource::Process { &mut self.output } else { &mut self.others }
    }

    /// All lines, oldest first.
    pub(super) fn take_out(&mut self) -> Vec<Line> {
        self.begin_window(Instant::now());
        self.is_announced = false;
        (self.output.waiting, self.others.waiting) = (0, 0);
        std::mem::take(&mut self.lines)
    }

    /// Whether nothing waits, not even the word of what was dropped.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.output.dropped == 0 && self.others.dropped == 0
    }

    /// Counts anew where the time is over, and says first what was dropped in it: once in a window, or that would be a flood.
    fn begin_window(&mut self, now: Instant) {
        if now.duration_since(self.window) < WINDOW {
            return;
        }
        self.window = now;
        for source in [LogSource::Host, LogSource::Process] {
            let count = self.count(source);
            count.taken = 0;
            let dropped = match (std::mem::take(&mut count.dropped), source) {
                (0, _) => continue,
                (dropped, LogSource::Process) => {
                    format!("{dropped} lines were left out: more was written than the log takes")
                }
                (dropped, _) => format!(
                    "{dropped} lines were dropped: more came than the log takes, which is {} a second",
                    self.lines_per_second
                ),
            };
            self.lines.push(Line::new(source, dropped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::guest::OutputStream;

    #[test]
    fn a_flood_is_cut_to_so_many_lines_a_second_and_the_log_says_how_many_were_dropped() {
        let mut intake = Intake::new(10);
        let began = intake.window;
        for number in 0..25 {
            intake.take_in_at(began, Line::new(LogSource::Console, format!("line {number}")));
        }
        assert!(!intake.take_in_at(began, Line::of_host("the agent's own word".into())) && intake.lines.len() == 11);

        intake.take_in_at(began + WINDOW, Line::new(LogSource::Console, "after the flood".into()));

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

    fn output(text: &str) -> OutputLine {
        let (stream, command) = (OutputStream::Stdout, "sh".to_owned());
        OutputLine { stream, pid: 1, command, tag: None, text: text.into(), cut: false }
    }

    #[test]
    fn what_processes_write_takes_no_room_from_anything_else() {
        let mut intake = Intake::new(u32::MAX);
        assert!(intake.take_in_output(vec![output("a line"); 2 * WAITING], 5));
        assert_eq!(intake.output.dropped, WAITING as u64 + 5);
        for number in 0..WAITING {
            intake.take_in(LogSource::Host, &number.to_string());
        }
        assert_eq!((intake.lines.len(), intake.others.dropped), (2 * WAITING, 0));

        intake.take_in_at(Instant::now() + WINDOW, Line::of_host("later".into()));

        let said = intake.lines.last().unwrap();
        let left_out = format!("{} lines were left out: more was written than the log takes", WAITING + 5);
        assert_eq!((said.source, said.message.as_str()), (LogSource::Process, &*left_out));
        assert!(said.process.is_none(), "it is nothing that a process wrote");
    }

    #[test]
    fn the_log_has_as_many_lines_of_output_a_second_as_of_everything_else() {
        let mut intake = Intake::new(10);
        intake.take_in_output(vec![output("a line"); 25], u64::MAX);
        for _ in 0..25 {
            intake.take_in(LogSource::Guest, "init");
        }
        assert_eq!((intake.output.taken, intake.output.dropped), (10, u64::MAX));
        assert_eq!((intake.others.taken, intake.others.dropped), (10, 15));
    }

    #[test]
    fn hostile_output_is_bounded_and_stays_what_it_is() {
        let long = "\u{1b}\"é\n".repeat(100_000);
        let hostile = OutputLine { command: long.clone(), tag: Some(long.clone()), ..output(&long) };

        let LogEntry { source, message, process, .. } = Line::of_process(hostile).into_entry(1);

        let LogProcess { command, tag, cut, .. } = process.unwrap();
        assert!(source == LogSource::Process && cut);
        // A control character becomes three bytes.
        assert!(message.len() <= 3 * MAX_OUTPUT_LINE && command.len() <= 3 * MAX_NAME, "{message}");
        assert_eq!(tag, Some(command));
        assert!(!message.contains(|c: char| c.is_control()));
    }
}
