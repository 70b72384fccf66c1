//! `GET /metrics`: what the sandbox has and uses, now.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hyper::StatusCode;
use serde::Serialize;

use super::App;
use super::http::{Response, error, json};

const MIB: u64 = 1024 * 1024;

/// Hundredths of a second, of all processors, below which the share of the reading before is told again: two clients that
/// ask at the same time get one response, not one that the other's question made up.
const MIN_TICKS: u64 = 10;

/// One reading. Sizes are in bytes where the name does not say otherwise.
#[derive(Debug, Serialize)]
struct Metrics {
    /// Seconds since 1970.
    ts: u64,
    cpu_count: usize,
    /// Of all processors, since the reading before, and since the boot at first; 0 to 100.
    cpu_used_pct: f64,
    mem_total: u64,
    /// Neither free nor a cache, which gives way.
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_total: u64,
    disk_used: u64,
}

/// The processors' times as they were read last.
#[derive(Debug, Default)]
pub(super) struct Processors(Mutex<Share>);

#[derive(Debug, Default, Clone, Copy)]
struct Share {
    times: Times,
    percent: f64,
}

/// Hundredths of a second since the boot, of all processors.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Times {
    busy: u64,
    total: u64,
}

/// Responds to `GET /metrics`.
pub(super) async fn metrics(app: &Arc<App>) -> Response {
    let app = Arc::clone(app);
    // Asks a file system, which may wait for a disk.
    match tokio::task::spawn_blocking(move || read(&app.processors)).await {
        Ok(Ok(metrics)) => json(StatusCode::OK, &metrics),
        Ok(Err(problem)) => failed(&problem.to_string()),
        Err(problem) => failed(&problem.to_string()),
    }
}

fn failed(problem: &str) -> Response {
    error(StatusCode::INTERNAL_SERVER_ERROR, &format!("The metrics cannot be read: {problem}"))
}

fn read(processors: &Processors) -> io::Result<Metrics> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let (cpu_count, times) = processor_times(&stat);
    let [total, free, cache] = memory(&std::fs::read_to_string("/proc/meminfo")?);
    let used = total.saturating_sub(free + cache);
    let disk = rustix::fs::statvfs("/")?;
    Ok(Metrics {
        ts: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        cpu_count,
        cpu_used_pct: processors.percent(times),
        mem_total: total,
        mem_used: used,
        mem_cache: cache,
        mem_total_mib: total / MIB,
        mem_used_mib: used / MIB,
        disk_total: disk.f_blocks.saturating_mul(disk.f_frsize),
        disk_used: disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize),
    })
}

impl Processors {
    /// The share of the time since the reading before that was used.
    fn percent(&self, times: Times) -> f64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total = times.total.saturating_sub(last.times.total);
        if total < MIN_TICKS {
            return last.percent;
        }
        let busy = times.busy.saturating_sub(last.times.busy).min(total);
        let hundredths = busy.saturating_mul(10_000) / total;
        let percent = f64::from(u16::try_from(hundredths).unwrap_or(10_000)) / 100.0;
        *last = Share { times, percent };
        percent
    }
}

/// The number of processors that run, and their times, of `/proc/stat`. What other guests of the host took (`steal`) is no
/// use of this one.
fn processor_times(stat: &str) -> (usize, Times) {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu"));
    let count = lines.clone().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())).count();
    let all = lines.clone().find(|line| line.starts_with(' ')).unwrap_or_default();
    let mut times = Times::default();
    // user, nice, system, idle, iowait, irq, softirq, steal; the guests' times after them are in the first two already.
    for (index, time) in all.split_whitespace().take(8).filter_map(|time| time.parse::<u64>().ok()).enumerate() {
        times.total += time;
        times.busy += if [3, 4, 7].contains(&index) { 0 } else { time };
    }
    (count, times)
}

/// Bytes of all memory, of what is free, and of caches, of `/proc/meminfo`.
fn memory(meminfo: &str) -> [u64; 3] {
    let of = |name: &str| -> u64 {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or_default().saturating_mul(1024)
    };
    [of("MemTotal"), of("MemFree"), of("Buffers") + of("Cached") + of("SReclaimable")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_of_all_that_run() {
        let stat = "cpu  10 1 20 100 5 2 3 50 7 7\ncpu0 5 0 10 50 2 1 1 25 0 0\ncpu1 5 1 10 50 3 1 2 25 0 0\nintr 1\n";
        assert_eq!(processor_times(stat), (2, Times { busy: 36, total: 191 }));
        assert_eq!(processor_times("nonsense"), (0, Times::default()));
    }

    #[test]
    fn the_share_is_of_the_time_between_two_readings() {
        let processors = Processors::default();
        let percent = |busy, total| processors.percent(Times { busy, total });
        assert!((percent(50, 200) - 25.0).abs() < 1e-9);
        assert!((percent(150, 300) - 100.0).abs() < 1e-9);
        assert!((percent(150, 305) - 100.0).abs() < 1e-9, "too soon to tell");
        assert!((percent(150, 633) - 0.0).abs() < 1e-9);
        assert!((percent(151, 933) - 0.33).abs() < 1e-9);
    }

    #[test]
    fn memory_is_told_in_bytes() {
        let meminfo = "MemTotal:  1000 kB\nMemFree:  200 kB\nBuffers: 10 kB\nCached: 80 kB\nSReclaimable: 10 kB\n";
        assert_eq!(memory(meminfo), [1_024_000, 204_800, 102_400]);
    }
}
