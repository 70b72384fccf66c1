//! The samples of one sandbox: from readings of counters to rates, and to its files.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sandpiper_machine::MonitorUsage;
use sandpiper_network::Traffic;

use super::window::Window;
use super::{Sample, file};

/// What was read of a sandbox at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// By which times are told apart; the wall clock may be set.
    pub(super) moment: Instant,
    /// Which machine it is: counters of another say nothing about this one.
    pub(super) generation: u64,
    pub(super) usage: MonitorUsage,
    /// Where it has a network.
    pub(super) traffic: Option<Traffic>,
    pub(super) disk_bytes: u64,
}

/// The samples of one sandbox.
#[derive(Debug)]
pub(crate) struct Series {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The folder is being removed: nothing new goes there.
    is_closed: bool,
    before: Option<Reading>,
}

impl Series {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, state: Mutex::default() }
    }

    /// Keeps what the sandbox took since the reading before. Blocks.
    ///
    /// # Errors
    /// The file cannot be written; the sample is lost.
    pub(super) fn add(&self, reading: Reading, now: Timestamp) -> io::Result<()> {
        let mut state = self.lock();
        if state.is_closed {
            return Ok(());
        }
        match state.before.replace(reading).and_then(|before| reading.since(&before, now)) {
            Some(sample) => file::append(&self.folder, &sample),
            None => Ok(()),
        }
    }

    /// Nothing is written any more once this has returned. Blocks while something is.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
    }

    /// The samples of a window. Blocks.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn read(&self, window: Window) -> io::Result<Vec<Sample>> {
        file::read(&self.folder, window.start..=window.end)
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// The rates between two readings of one machine.
    fn since(&self, before: &Self, now: Timestamp) -> Option<Sample> {
        let elapsed = self.moment.checked_duration_since(before.moment)?;
        if self.generation != before.generation || elapsed.is_zero() {
            return None;
        }
        let cpu = self.usage.cpu.checked_sub(before.usage.cpu)?;
        // What passed before it could be read is not of now.
        let (now_through, before_through) = self.traffic.zip(before.traffic).unwrap_or_default();
        let kib = |bytes: u64| u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        Some(Sample {
            at: u32::try_from(now.as_second()).ok()?,
            cpu: per_second(u64::try_from(cpu.as_millis()).ok()?, elapsed),
            memory_kib: kib(self.usage.memory_bytes),
            disk_kib: kib(self.disk_bytes),
            received: per_second(now_through.received.saturating_sub(before_through.received), elapsed),
            sent: per_second(now_through.sent.saturating_sub(before_through.sent), elapsed),
        })
    }
}

/// Rounded; the most that there is room for, where it is more.
fn per_second(count: u64, elapsed: Duration) -> u32 {
    let elapsed = elapsed.as_millis().max(1);
    let rate = (u128::from(count) * 1000 + elapsed / 2) / elapsed;
    u32::try_from(rate).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(moment: Instant, cpu_ms: u64, traffic: Option<(u64, u64)>) -> Reading {
        let usage = MonitorUsage { cpu: Duration::from_millis(cpu_ms), memory_bytes: 64 << 20 };
        let traffic = traffic.map(|(received, sent)| Traffic { received, sent });
        Reading { moment, generation: 1, usage, traffic, disk_bytes: 3 << 20 }
    }

    fn now(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const ALL: Window = Window { start: 0, end: u32::MAX };

    #[test]
    fn a_sample_is_what_was_used_each_second_since_the_reading_before() {
        let folder = tempfile::tempdir().unwrap();
        let series = Series::new(folder.path().to_owned());
        let begin = Instant::now();

        series.add(reading(begin, 1000, Some((100, 0))), now(1000)).unwrap();
        assert_eq!(series.read(ALL).unwrap(), [], "the first has none before it");
        let later = begin + Duration::from_secs(4);
        series.add(reading(later, 3000, Some((500, 9 << 40))), now(1004)).unwrap();

        let expected = Sample { at: 1004, cpu: 500, memory_kib: 65536, disk_kib: 3072, received: 100, sent: u32::MAX };
        assert_eq!(series.read(ALL).unwrap(), [expected]);
    }

    #[test]
    fn counters_of_another_machine_begin_anew() {
        let folder = tempfile::tempdir().unwrap();
        let series = Series::new(folder.path().to_owned());
        let begin = Instant::now();
        let second = |count: u64| begin + Duration::from_secs(count);
        series.add(reading(begin, 9000, None), now(10)).unwrap();

        let resumed = |seconds, cpu| Reading { generation: 2, ..reading(second(seconds), cpu, None) };
        series.add(resumed(5, 40), now(15)).unwrap();
        series.add(resumed(10, 5040), now(20)).unwrap();

        let samples = series.read(ALL).unwrap();
        assert_eq!(samples.iter().map(|sample| (sample.at, sample.cpu)).collect::<Vec<_>>(), [(20, 1000)]);
    }

    #[test]
    fn a_closed_series_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let series = Series::new(folder.path().to_owned());
        let begin = Instant::now();
        series.add(reading(begin, 0, None), now(10)).unwrap();

        series.close();
        series.add(reading(begin + Duration::from_secs(5), 0, None), now(15)).unwrap();

        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
