//! Results, and what they were taken on.

use std::fs;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Serialize;
use support::Samples;

/// Where results go: lines of JSON as they come, or a table at the end.
pub(crate) struct Report {
    json: bool,
    origin: Origin,
    rows: Vec<[String; 6]>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    bench: &'a str,
    metric: &'a str,
    unit: &'a str,
    n: usize,
    p50: Option<f64>,
    /// Of 20 samples or more.
    p95: Option<f64>,
    #[serde(flatten)]
    origin: &'a Origin,
}

/// What results were taken on: without it they say nothing.
#[derive(Serialize)]
struct Origin {
    machine: Machine,
    /// Its release.
    kernel: String,
    /// Of the checkout that the programs were built from; none where that is no checkout.
    commit: Option<String>,
    /// Whether that checkout had changes besides.
    dirty: bool,
    /// 1: this machine's own KVM; 2 and 3: the nested host, which is emulated.
    rung: u8,
}

#[derive(Serialize)]
struct Machine {
    cpu: String,
    cores: usize,
    memory_mib: u64,
}

impl Report {
    pub(crate) fn new(json: bool) -> anyhow::Result<Self> {
        Ok(Self { json, origin: Origin::read()?, rows: Vec::new() })
    }

    /// Adds the result of these samples.
    pub(crate) fn add(&mut self, bench: &str, metric: &str, unit: &str, samples: &[f64]) {
        let samples = Samples::new(samples);
        let (n, p50, p95) = (samples.len(), samples.median(), samples.percentile(95));
        if self.json {
            let line = Line { bench, metric, unit, n, p50, p95, origin: &self.origin };
            println!("{}", serde_json::to_string(&line).expect("texts and numbers have a JSON form"));
        }
        self.rows.push([bench.into(), metric.into(), unit.into(), n.to_string(), cell(p50), cell(p95)]);
    }

    pub(crate) fn finish(self) {
        if self.json {
            return;
        }
        let Origin { machine, kernel, commit, dirty, rung } = self.origin;
        let commit = commit.as_deref().unwrap_or("unknown");
        let changes = if dirty { " with changes" } else { "" };
        println!("rung {rung}: {} x {}, {} MiB, Linux {kernel}", machine.cores, machine.cpu, machine.memory_mib);
        println!("commit {commit}{changes}");
        println!("{:<16} {:<44} {:<6} {:>5} {:>12} {:>12}", "bench", "metric", "unit", "n", "p50", "p95");
        for [bench, metric, unit, n, p50, p95] in self.rows {
            println!("{bench:<16} {metric:<44} {unit:<6} {n:>5} {p50:>12} {p95:>12}");
        }
    }
}

impl Origin {
    fn read() -> anyhow::Result<Self> {
        let rung = stated("SANDPIPER_RUNG", "the machine's rung, which scripts/host --rung prints")?;
        let rung = rung.parse().ok().filter(|rung| (1..=3).contains(rung));
        let commit = stated("SANDPIPER_COMMIT", "the commit this was built from, -dirty with changes, or unknown")?;
        let (commit, dirty) = commit.strip_suffix("-dirty").map_or((&*commit, false), |commit| (commit, true));
        Ok(Self {
            machine: Machine::read()?,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim_end().to_owned(),
            commit: (commit != "unknown").then(|| commit.to_owned()),
            dirty,
            rung: rung.context("SANDPIPER_RUNG must be 1, 2 or 3")?,
        })
    }
}

impl Machine {
    fn read() -> anyhow::Result<Self> {
        let processors = fs::read_to_string("/proc/cpuinfo")?;
        let cpu = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cpu = cpu.context("no processor has a name")?.1.to_owned();
        Ok(Self { cpu, cores: std::thread::available_parallelism()?.get(), memory_mib: meminfo("MemTotal:")? >> 10 })
    }
}

/// KiB of a line of `/proc/meminfo`.
pub(crate) fn meminfo(field: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    field_kib(&text, field).with_context(|| format!("no {field} in /proc/meminfo"))
}

/// KiB of a line such as `MemTotal:  123 kB`.
pub(crate) fn field_kib(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    value.split_whitespace().next()?.parse().ok()
}

/// What nobody but the caller knows.
fn stated(variable: &str, what: &str) -> anyhow::Result<String> {
    let value = std::env::var(variable).unwrap_or_default();
    ensure!(!value.is_empty(), "{variable} is not set: use scripts/bench, or set it to {what}");
    Ok(value)
}

/// How many times the median of `other` that of `measured` is.
///
/// # Errors
/// Where there is no sample of one of them.
pub(crate) fn ratio_of_medians(measured: &[f64], other: &[f64]) -> anyhow::Result<f64> {
    let median = |samples: &[f64]| Samples::new(samples).median().context("nothing was measured");
    Ok(median(measured)? / median(other)?)
}

/// Milliseconds since then.
pub(crate) fn elapsed(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1000.0
}

/// A number of the table, or that there is none.
fn cell(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 10.0 => format!("{value:.3}"),
        Some(value) => format!("{value:.1}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "nothing here takes 2^52 microseconds")]
pub(crate) fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "no disk has 2^52 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
