//! What the API bills: its intervals line by line, and its sums.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::caller::{Caller, PAUSE};
use crate::comparison::{Interval, compare, seconds};
use crate::observer::Observer;

/// The API fetches what ran every five seconds, and must have done so by then.
const FETCHED: Duration = Duration::from_secs(30);

/// Of one drill. Times are seconds, to the millisecond.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    /// That the observer saw, and intervals that are billed.
    runs: usize,
    intervals: usize,
    /// The runs together, by what the observer saw.
    at_least_seconds: String,
    at_most_seconds: String,
    billed_seconds: String,
    /// Runs that were seen for certain and are billed once: together as they were seen, as they are billed, and how much one
    /// of them differs at most.
    seen_seconds: String,
    billed_once_seconds: String,
    largest_difference_seconds: String,
    looks: usize,
    longest_pause_seconds: String,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |what: &str, value: &str| writeln!(f, "  {what:<30}{value:>14}");
        line("usage", "")?;
        line("runs that were seen", &self.runs.to_string())?;
        line("intervals billed", &self.intervals.to_string())?;
        line("seconds seen, least", &self.at_least_seconds)?;
        line("seconds billed", &self.billed_seconds)?;
        line("seconds seen, most", &self.at_most_seconds)?;
        line("seconds seen of certain runs", &self.seen_seconds)?;
        line("seconds billed of these", &self.billed_once_seconds)?;
        line("largest difference of one", &self.largest_difference_seconds)?;
        line("looks", &self.looks.to_string())?;
        line("longest pause between", &self.longest_pause_seconds)
    }
}

/// Finds what is billed otherwise than it ran since `begin_ms`, of sandboxes that are all gone.
pub(crate) async fn audit(caller: &Caller, operator: &Caller, begin_ms: i64, observer: Observer) -> anyhow::Result<()> {
    let ledger = &caller.ledger;
    let seen = spawn_blocking(|| observer.end()).await??;
    let (runs, windows) = (seen.runs(&ledger.killed_monitors()), ledger.windows());
    let range = range(begin_ms)?;
    let begin = Instant::now();
    let (intervals, compared) = loop {
        let intervals = intervals(operator, &range).await?;
        let compared = compare(&runs, &windows, &intervals);
        if compared.findings.is_empty() || begin.elapsed() >= FETCHED {
            break (intervals, compared);
        }
        tokio::time::sleep(PAUSE).await;
    };
    compared.findings.into_iter().for_each(|finding| ledger.find(format!("usage of {finding}")));
    sums(caller, &range, &intervals).await?;
    ledger.used(Figures {
        runs: compared.runs,
        intervals: compared.intervals,
        at_least_seconds: seconds(compared.least_ms),
        at_most_seconds: seconds(compared.most_ms),
        billed_seconds: seconds(compared.billed_ms),
        seen_seconds: seconds(compared.seen_ms),
        billed_once_seconds: seconds(compared.billed_once_ms),
        largest_difference_seconds: seconds(compared.largest_difference_ms),
        looks: seen.looks,
        longest_pause_seconds: seconds(seen.longest_pause_ms),
    });
    Ok(())
}

/// The parameters of a question about the time since `begin_ms`, until the next hour: it must not be over before the last run.
fn range(begin_ms: i64) -> anyhow::Result<String> {
    let from = Timestamp::from_millisecond(begin_ms)?;
    let to = Timestamp::now() + Duration::from_secs(3600);
    Ok(format!("from={from}&to={to}"))
}

/// All that is billed.
async fn intervals(operator: &Caller, range: &str) -> anyhow::Result<Vec<Interval>> {
    let path = format!("/operator/v1/usage?{range}&kind=intervals");
    let lines = operator.ask("usage, line by line", Method::GET, &path, &Value::Null).await?;
    let lines = lines.as_array().with_context(|| format!("an export without lines: {lines}"))?;
    lines.iter().map(|line| interval(line).with_context(|| format!("a line of usage: {line}"))).collect()
}

fn interval(line: &Value) -> Option<Interval> {
    let text = |field: &str| line[field].as_str().map(str::to_owned);
    let time = |field: &str| Some(line[field].as_str()?.parse::<Timestamp>().ok()?.as_millisecond());
    let interval = Interval {
        id: text("id")?,
        sandbox: text("sandbox")?,
        shape: (line["cpu"].as_u64()?, line["memory_mb"].as_u64()?),
        from_ms: time("from")?,
        to_ms: time("to")?,
        end_reason: text("end_reason"),
    };
    (line["milliseconds"].as_i64()? == interval.length_ms()).then_some(interval)
}

/// Finds sums, of each sandbox and of all, that are not those of their intervals.
async fn sums(caller: &Caller, range: &str, intervals: &[Interval]) -> anyhow::Result<()> {
    let mut amounts: BTreeMap<Option<&str>, Amounts> = BTreeMap::new();
    for interval in intervals {
        for of in [None, Some(interval.sandbox.as_str())] {
            amounts.entry(of).or_default().add(interval);
        }
    }
    for (sandbox, exported) in amounts {
        let of = sandbox.map(|id| format!("&sandbox_id={id}")).unwrap_or_default();
        let path = format!("/v1/usage?{range}&granularity=hour{of}");
        let answer = caller.ask("usage", Method::GET, &path, &Value::Null).await?;
        let shown = Amounts::shown(&answer["totals"]).with_context(|| format!("sums that are none: {answer}"))?;
        if shown != exported {
            let whose = sandbox.unwrap_or("all sandboxes");
            caller.ledger.find(format!("usage of {whose}: the sums are {shown:?}, those of its lines {exported:?}"));
        }
    }
    Ok(())
}

/// What is billed, in the smallest units there are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Amounts {
    /// Thousandths of vCPU seconds.
    vcpu_ms: u128,
    /// MiB times milliseconds, of which a GiB second has 1,024,000: its decimal text has up to 13 digits.
    memory_mb_ms: u128,
}

impl Amounts {
    fn add(&mut self, interval: &Interval) {
        let (length, (cpu, memory)) = (interval.length_ms().unsigned_abs(), interval.shape);
        self.vcpu_ms += u128::from(length) * u128::from(cpu);
        self.memory_mb_ms += u128::from(length) * u128::from(memory);
    }

    /// Those of an answer; nothing where they are not exact.
    fn shown(totals: &Value) -> Option<Self> {
        let memory = scaled(totals["memory_gib_seconds"].as_str()?, 13)?.checked_mul(1_024_000)?;
        let unit = 10_u128.pow(13);
        let memory_mb_ms = memory.is_multiple_of(unit).then_some(memory / unit)?;
        Some(Self { vcpu_ms: scaled(totals["vcpu_seconds"].as_str()?, 3)?, memory_mb_ms })
    }
}

/// Decimal text, times ten to the power of `digits`; nothing where it has more of them.
fn scaled(text: &str, digits: usize) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    (fraction.len() <= digits).then(|| format!("{whole}{fraction:0<digits$}").parse().ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(milliseconds: i64) -> Value {
        json!({
            "team": "team_1", "team_slug": "default", "id": "ivl1", "sandbox": "sbx1", "cpu": 1, "memory_mb": 256,
            "from": "2026-01-31T12:00:00Z", "to": "2026-01-31T12:00:01.234Z", "milliseconds": milliseconds,
            "end_reason": "paused",
        })
    }

    #[test]
    fn a_line_whose_length_is_not_its_own_is_none() {
        assert_eq!(interval(&line(1234)).unwrap().length_ms(), 1234);
        assert!(interval(&line(1235)).is_none());
    }

    #[test]
    fn sums_are_compared_to_the_last_digit() {
        let mut amounts = Amounts::default();
        (0..3).for_each(|_| amounts.add(&interval(&line(1234)).unwrap()));
        let exact = json!({"vcpu_seconds": "3.702", "memory_gib_seconds": "0.9255"});
        let other = json!({"vcpu_seconds": "3.702", "memory_gib_seconds": "0.92575"});
        assert_eq!(Amounts::shown(&exact).unwrap(), amounts);
        assert_ne!(Amounts::shown(&other).unwrap(), amounts);
        assert_eq!(Amounts::shown(&json!({"vcpu_seconds": "3.7021", "memory_gib_seconds": "0.9255"})), None);
    }
}
