//! What is billed, compared with what ran.
//!
//! ```text
//!   began          ended            a run: when its machine began and ended to be its team's, as the observer saw it
//!  ├─────┤────────├─────┤
//!     ├───────────────┤             its interval: one, with its ends in these bounds
//!
//!   paused         resumed
//!  ├──────┤        ├──────┤         requests, from the first one sent to the answer: nothing is billed between them,
//!                                   and something is by the end of the second
//! ```
//!
//! Times are milliseconds since 1970.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use jiff::Timestamp;

/// Between two readings of the clock, and as much as file systems round.
pub(crate) const CLOCK_MS: i64 = 50;
/// What every sandbox of a drill has: vCPUs and MiB.
const SHAPE: (u64, u64) = (1, 256);

/// The time for which one machine was its team's.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) sandbox: String,
    /// False where the machine lived, but was its team's only between two looks, if ever.
    pub(crate) is_certain: bool,
    pub(crate) began: RangeInclusive<i64>,
    pub(crate) ended: RangeInclusive<i64>,
    /// Where no agent was there to see its end: where it may have been seen last.
    pub(crate) last_seen: Option<RangeInclusive<i64>>,
    /// And when an agent noted last that it ran.
    pub(crate) noted_ms: Option<i64>,
    /// How long it was at most.
    pub(crate) most_ms: i64,
    /// How much later than the times of the files that say so it may have begun and ended; the ends above have it.
    pub(crate) late_ms: i64,
}

/// What a client wanted of a sandbox, and was told that it is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Running,
    Stopped,
}

/// A request that was repeated until it succeeded.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) sandbox: String,
    pub(crate) wanted: Wanted,
    /// From the first request to the answer.
    pub(crate) time: RangeInclusive<i64>,
}

/// What the API bills.
#[derive(Debug, Clone)]
pub(crate) struct Interval {
    pub(crate) id: String,
    pub(crate) sandbox: String,
    pub(crate) shape: (u64, u64),
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
    /// None of one that goes on.
    pub(crate) end_reason: Option<String>,
}

/// What came of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) findings: Vec<String>,
    /// Runs that were seen for certain.
    pub(crate) runs: usize,
    pub(crate) intervals: usize,
    /// All runs together were at least and at most so long.
    pub(crate) least_ms: i64,
    pub(crate) most_ms: i64,
    /// All intervals together.
    pub(crate) billed_ms: i64,
    /// Runs that were seen for certain and are billed once: together, by the times of the files, and as they are billed.
    pub(crate) seen_ms: i64,
    pub(crate) billed_once_ms: i64,
    /// Between what was seen of one of these and what is billed of it, at most.
    pub(crate) largest_difference_ms: i64,
}

/// Compares what ran, of sandboxes that are all gone, with what is billed.
pub(crate) fn compare(runs: &[Run], windows: &[Window], intervals: &[Interval]) -> Comparison {
    let mut comparison = Comparison::default();
    let names = runs.iter().map(|run| &run.sandbox).chain(windows.iter().map(|window| &window.sandbox));
    let names: BTreeSet<&String> = names.chain(intervals.iter().map(|interval| &interval.sandbox)).collect();
    for name in names {
        let mut sandbox = Sandbox {
            name,
            runs: runs.iter().filter(|run| run.sandbox == *name).collect(),
            windows: windows.iter().filter(|window| window.sandbox == *name).collect(),
            intervals: intervals.iter().filter(|interval| interval.sandbox == *name).collect(),
        };
        sandbox.windows.sort_by_key(|window| *window.time.start());
        sandbox.intervals.sort_by_key(|interval| (interval.from_ms, interval.to_ms));
        sandbox.compare(&mut comparison);
    }
    comparison
}

/// All that is known of one sandbox; windows and intervals by their beginnings.
struct Sandbox<'a> {
    name: &'a str,
    runs: Vec<&'a Run>,
    windows: Vec<&'a Window>,
    intervals: Vec<&'a Interval>,
}

impl Sandbox<'_> {
    fn compare(&self, comparison: &mut Comparison) {
        let mut findings = [self.of_each(), self.of_pairs(), self.of_runs(), self.of_windows()].concat();
        let least: i64 = self.runs.iter().map(|run| run.least_ms()).sum();
        let most: i64 = self.runs.iter().map(|run| run.most_ms).sum();
        let billed: i64 = self.intervals.iter().map(|interval| interval.length_ms()).sum();
        if findings.is_empty() && !(least..=most).contains(&billed) {
            let [least, most, billed] = [least, most, billed].map(seconds);
            findings.push(format!(
                "{billed} s are billed, and its machines ran for {least} s at least and {most} s at most"
            ));
        }
        comparison.findings.extend(findings.into_iter().map(|finding| format!("{}: {finding}", self.name)));
        comparison.runs += self.runs.iter().filter(|run| run.is_certain).count();
        comparison.intervals += self.intervals.len();
        comparison.least_ms += least;
        comparison.most_ms += most;
        comparison.billed_ms += billed;
        for (index, intervals) in self.billed() {
            let (Some(index), [interval]) = (index, &intervals[..]) else { continue };
            let run = self.runs[index];
            if run.is_certain {
                let (seen, billed) = (run.seen_ms(interval.is_lost()), interval.length_ms());
                comparison.seen_ms += seen;
                comparison.billed_once_ms += billed;
                comparison.largest_difference_ms = comparison.largest_difference_ms.max((seen - billed).abs());
            }
        }
    }

    /// What is wrong with single intervals.
    fn of_each(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for interval in &self.intervals {
            let shown = interval.shown();
            if interval.shape != SHAPE {
                let (cpu, memory) = interval.shape;
                findings.push(format!("{shown} is billed with {cpu} vCPUs and {memory} MiB, which it never had"));
            }
            let is_asked = || self.windows.iter().any(|window| window.stops_at(interval.to_ms));
            match interval.end_reason.as_deref() {
                None => findings.push(format!("open: {shown} goes on, and the sandbox is gone")),
                Some("crashed" | "lost") => {}
                // Of one that no client was told of the API takes away what is left.
                Some("paused" | "deleted") if self.windows.is_empty() || is_asked() => {}
                Some(_) => findings.push(format!("{shown} ended for a reason that nobody gave just then")),
            }
        }
        findings
    }

    /// Intervals that are not one after the other.
    fn of_pairs(&self) -> Vec<String> {
        let pairs = self.intervals.windows(2).filter(|pair| pair[1].from_ms < pair[0].to_ms);
        pairs.map(|pair| format!("doubled: {} and {} overlap", pair[0].shown(), pair[1].shown())).collect()
    }

    /// Runs without their interval, and the other way round.
    fn of_runs(&self) -> Vec<String> {
        let mut findings = Vec::new();
        let billed = self.billed();
        for interval in billed.get(&None).into_iter().flatten() {
            findings.push(format!("invented: {}; no machine of the sandbox ran then", interval.shown()));
        }
        for (index, run) in self.runs.iter().enumerate() {
            match billed.get(&Some(index)).map(Vec::as_slice).unwrap_or_default() {
                [] if run.is_certain => findings.push(format!("lost: {} is not billed", run.shown())),
                [] => {}
                [interval] => findings.extend(run.differs(interval)),
                several => {
                    let shown: Vec<_> = several.iter().map(|interval| interval.shown()).collect();
                    findings.push(format!("doubled: {} is billed as {}", run.shown(), shown.join(" and ")));
                }
            }
        }
        findings
    }

    /// What was answered to clients, and is not so.
    fn of_windows(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for (index, window) in self.windows.iter().enumerate() {
            let (asked, answered) = (*window.time.start() - CLOCK_MS, *window.time.end() + CLOCK_MS);
            if window.wanted == Wanted::Running {
                let meets = |interval: &&&Interval| interval.from_ms <= answered && self.end_of(interval) >= asked;
                if self.intervals.iter().find(meets).is_none() {
                    findings.push(format!("lost: it was started {}, and that is not billed", shown(&window.time)));
                }
                continue;
            }
            let next = self.windows[index + 1..].iter().find(|next| next.wanted == Wanted::Running);
            let started = next.map_or(i64::MAX, |next| *next.time.start() - CLOCK_MS);
            for interval in self.intervals.iter().filter(|one| one.to_ms > answered && one.from_ms < started) {
                findings.push(format!("too long: {}, and it was stopped {}", interval.shown(), shown(&window.time)));
            }
        }
        findings
    }

    /// The intervals of each run, and those of none.
    fn billed(&self) -> BTreeMap<Option<usize>, Vec<&Interval>> {
        let mut billed: BTreeMap<_, Vec<&Interval>> = BTreeMap::new();
        for interval in &self.intervals {
            billed.entry(self.run_of(interval)).or_default().push(interval);
        }
        billed
    }

    /// The run that an interval is of: among those that it touches the one whose beginning is nearest.
    fn run_of(&self, interval: &Interval) -> Option<usize> {
        let touched = self.runs.iter().enumerate().filter(|(_, run)| {
            interval.from_ms <= *run.ended.end() + CLOCK_MS && interval.to_ms >= *run.began.start() - CLOCK_MS
        });
        let nearest = touched.min_by_key(|(_, run)| distance(&run.began, interval.from_ms));
        nearest.map(|(index, _)| index)
    }

    /// Until when the machine of an interval may have run: longer than it is billed, where nobody saw that.
    fn end_of(&self, interval: &Interval) -> i64 {
        let run = self.run_of(interval).filter(|_| interval.is_lost());
        run.map_or(interval.to_ms, |index| interval.to_ms.max(*self.runs[index].ended.end()))
    }
}

impl Run {
    fn least_ms(&self) -> i64 {
        if !self.is_certain {
            return 0;
        }
        let last_seen = self.last_seen.as_ref().map_or(i64::MAX, |seen| *seen.start());
        (last_seen.min(*self.ended.start()) - self.began.end()).max(0)
    }

    /// How long it was by the times of the files that say so: both its ends are seen as late. Of one that nobody saw end, until
    /// it was noted last.
    fn seen_ms(&self, is_lost: bool) -> i64 {
        let ended_ms = self.noted_ms.filter(|_| is_lost).unwrap_or(self.ended.end() - self.late_ms);
        (ended_ms - (self.began.end() - self.late_ms)).max(0)
    }

    /// What an interval that should be this run's says otherwise.
    fn differs(&self, interval: &Interval) -> Vec<String> {
        let mut findings = Vec::new();
        let billed = interval.shown();
        if !self.began.contains(&interval.from_ms) {
            findings.push(format!("{billed}; its machine began to be the team's {}", shown(&self.began)));
        }
        let ended = match (&self.last_seen, interval.is_lost()) {
            (None, true) => {
                findings.push(format!("{billed}; an agent was there to see it end {}", shown(&self.ended)));
                return findings;
            }
            // One that was seen last before it began to be billed is billed for no time.
            (Some(seen), true) => &(*seen.start()..=*seen.end().max(&interval.from_ms)),
            (_, false) => &self.ended,
        };
        if interval.end_reason.is_some() && !ended.contains(&interval.to_ms) {
            findings.push(format!("{billed}; its machine ended to be the team's {}", shown(ended)));
        }
        if interval.length_ms() > self.most_ms {
            findings.push(format!("too long: {billed}; it ran for {} s at most", seconds(self.most_ms)));
        }
        findings
    }

    fn shown(&self) -> String {
        format!("a run that began {} and ended {}", shown(&self.began), shown(&self.ended))
    }
}

impl Window {
    /// Whether it may have stopped the sandbox then.
    fn stops_at(&self, at_ms: i64) -> bool {
        self.wanted == Wanted::Stopped && (*self.time.start() - CLOCK_MS..=*self.time.end() + CLOCK_MS).contains(&at_ms)
    }
}

impl Interval {
    pub(crate) fn length_ms(&self) -> i64 {
        self.to_ms - self.from_ms
    }

    fn is_lost(&self) -> bool {
        self.end_reason.as_deref() == Some("lost")
    }

    fn shown(&self) -> String {
        let reason = self.end_reason.as_deref().unwrap_or("open");
        format!("{} ({} to {}, {reason})", self.id, time(self.from_ms), time(self.to_ms))
    }
}

fn distance(range: &RangeInclusive<i64>, at_ms: i64) -> i64 {
    (range.start() - at_ms).max(at_ms - range.end()).max(0)
}

fn shown(range: &RangeInclusive<i64>) -> String {
    format!("between {} and {}", time(*range.start()), time(*range.end()))
}

/// As logs have it, to find there what happened.
fn time(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |at| at.strftime("%H:%M:%S%.3f").to_string())
}

/// Seconds to the millisecond.
pub(crate) fn seconds(ms: i64) -> String {
    format!("{}{}.{:03}", if ms < 0 { "-" } else { "" }, ms.abs() / 1000, ms.abs() % 1000)
}
