//! What teams used, line by line: for invoices.
//!
//! Exports of times that follow on each other have nothing twice and nothing missing between them, once all that ran in them has
//! ended or been collected until then.

use std::collections::HashMap;
use std::ops::Range;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use jiff::Timestamp;
use sandpiper_db::{StoreError, from_ms};
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::interval::{Bytes, EndReason};
use serde::Serialize;
use serde_json::{Value, json};

use crate::store::Store;
use crate::store::intervals::Run;
use crate::store::storage::Sample;
use crate::store::teams::Team;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A JSON object for each
    Jsonl,
    /// A table, its columns named in the first line
    Csv,
}

/// What is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// When sandboxes had a machine, and what went through its network: a line for each interval, as far as it is between `from`
    /// and `to`
    Intervals,
    /// What was stored: a line for each thing and hour
    Storage,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Milliseconds since 1970.
    pub time: Range<i64>,
    pub kind: Kind,
    pub format: Format,
    /// The only team.
    pub team: Option<TeamId>,
}

/// A line of [`Kind::Intervals`].
#[derive(Debug, Serialize)]
struct IntervalLine<'a> {
    /// Id and slug of the team; null of a sandbox that no team here ever had.
    team: Option<&'a str>,
    team_slug: Option<&'a str>,
    id: &'a str,
    sandbox: &'a str,
    cpu: u32,
    memory_mb: u32,
    /// The part between the bounds.
    from: Timestamp,
    to: Timestamp,
    milliseconds: i64,
    /// What went through its network in the hours that begin between them.
    egress_bytes: u64,
    ingress_bytes: u64,
    /// Why it ended; null: it goes on, or did so when it was seen last.
    end_reason: Option<&'a str>,
}

/// Its fields.
const OF_INTERVALS: [&str; 12] = [
    "team",
    "team_slug",
    "id",
    "sandbox",
    "cpu",
    "memory_mb",
    "from",
    "to",
    "milliseconds",
    "egress_bytes",
    "ingress_bytes",
    "end_reason",
];

/// A line of [`Kind::Storage`].
#[derive(Debug, Serialize)]
struct StorageLine<'a> {
    team: &'a str,
    team_slug: Option<&'a str>,
    kind: &'a str,
    object: &'a str,
    hour: Timestamp,
    bytes: u64,
}

/// Its fields.
const OF_STORAGE: [&str; 6] = ["team", "team_slug", "kind", "object", "hour", "bytes"];

/// The lines, each with its end, as they are read; `teams`: all of them, for their slugs.
pub fn lines<'a>(store: &'a Store, wanted: &'a Wanted, teams: Vec<Team>) -> BoxStream<'a, Result<String, StoreError>> {
    let Wanted { time, kind, format, team } = wanted;
    let writer = Writer {
        format: *format,
        range: time.clone(),
        slugs: teams.into_iter().map(|team| (team.id, team.slug)).collect(),
    };
    let header = stream::iter(writer.header(*kind).map(Ok));
    match kind {
        Kind::Intervals => {
            let runs = store.intervals.with_traffic_within(time, team.as_ref());
            let lines = runs.map(move |run| run.and_then(|(run, traffic)| writer.interval(&run, traffic)));
            header.chain(lines).boxed()
        }
        Kind::Storage => {
            let samples = store.storage.within(time, team.as_ref());
            header.chain(samples.map(move |sample| writer.sample(&sample?))).boxed()
        }
    }
}

/// Writes lines.
struct Writer {
    format: Format,
    range: Range<i64>,
    slugs: HashMap<TeamId, String>,
}

impl Writer {
    fn header(&self, kind: Kind) -> Option<String> {
        let columns = match kind {
            Kind::Intervals => &OF_INTERVALS[..],
            Kind::Storage => &OF_STORAGE,
        };
        (self.format == Format::Csv).then(|| columns.join(",") + "\n")
    }

    fn interval(&self, run: &Run, traffic: Bytes) -> Result<String, StoreError> {
        let time = run.time.start.max(self.range.start)..run.time.end.min(self.range.end);
        let line = json!(IntervalLine {
            team: run.team_id.as_deref(),
            team_slug: run.team_id.as_ref().and_then(|team| self.slugs.get(team)).map(String::as_str),
            id: &run.id,
            sandbox: &run.sandbox_id,
            cpu: run.cpu,
            memory_mb: run.memory_mb,
            from: from_ms(time.start)?,
            to: from_ms(time.end)?,
            milliseconds: time.end - time.start,
            egress_bytes: traffic.egress,
            ingress_bytes: traffic.ingress,
            end_reason: run.end_reason.map(EndReason::as_str),
        });
        Ok(self.line(&line, &OF_INTERVALS))
    }

    fn sample(&self, sample: &Sample) -> Result<String, StoreError> {
        let line = json!(StorageLine {
            team: &sample.team_id,
            team_slug: self.slugs.get(&sample.team_id).map(String::as_str),
            kind: &sample.kind,
            object: &sample.object_id,
            hour: from_ms(sample.hour_ms)?,
            bytes: sample.bytes,
        });
        Ok(self.line(&line, &OF_STORAGE))
    }

    /// No value has a comma, a quote or the end of a line in it: they are ids, slugs, words, times and numbers.
    fn line(&self, line: &Value, columns: &[&str]) -> String {
        match self.format {
            Format::Jsonl => format!("{line}\n"),
            Format::Csv => {
                let cell = |column: &&str| match &line[*column] {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                columns.iter().map(cell).collect::<Vec<_>>().join(",") + "\n"
            }
        }
    }
}
