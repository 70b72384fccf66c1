//! `sandpiper-api usage`

use std::collections::HashMap;
use std::io::{self, BufWriter, Stdout, Write};
use std::ops::Range;

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use sandpiper_db::{from_ms, to_ms};
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::interval::EndReason;
use serde::Serialize;
use serde_json::{Value, json};

use crate::store::Store;
use crate::store::intervals::Run;
use crate::store::storage::Sample;

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
    /// When sandboxes had a machine: a line for each interval, as far as it is between `from` and `to`
    Intervals,
    /// What was stored: a line for each thing and hour
    Storage,
}

/// What is asked for.
#[derive(Debug)]
pub struct Wanted {
    pub from: Timestamp,
    pub to: Timestamp,
    pub kind: Kind,
    pub format: Format,
    /// Slug of the only team.
    pub team: Option<String>,
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
    /// Why it ended; null: it goes on, or did so when it was seen last.
    end_reason: Option<&'a str>,
}

/// Its fields.
const OF_INTERVALS: [&str; 10] =
    ["team", "team_slug", "id", "sandbox", "cpu", "memory_mb", "from", "to", "milliseconds", "end_reason"];

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

/// Prints what teams used, line by line.
pub async fn export(store: &Store, wanted: &Wanted) -> anyhow::Result<()> {
    let Wanted { from, to, kind, format, team } = wanted;
    ensure!(from < to, "--from must be before --to");
    let range = to_ms(*from)..to_ms(*to);
    let teams = store.teams.all().await?;
    let only = match team {
        None => None,
        Some(slug) => match teams.iter().find(|team| team.slug == *slug) {
            Some(team) => Some(team.id.clone()),
            None => bail!("There is no team {slug}; `sandpiper-api team ls` lists them"),
        },
    };
    let slugs: HashMap<TeamId, String> = teams.into_iter().map(|team| (team.id, team.slug)).collect();
    let mut lines = Lines { out: BufWriter::new(io::stdout()), format: *format, slugs };
    let written = match kind {
        Kind::Intervals => {
            lines.header(&OF_INTERVALS)?;
            store.intervals.within(&range, only.as_ref(), None, |run| lines.interval(&run, &range)).await
        }
        Kind::Storage => {
            lines.header(&OF_STORAGE)?;
            store.storage.within(&range, only.as_ref(), |sample| lines.sample(&sample)).await
        }
    };
    match written.and_then(|()| Ok(lines.out.flush()?)) {
        // A reader that went away (`| head`) is no error of ours.
        Err(error)
            if error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        written => written.context("Cannot export"),
    }
}

/// Where lines go.
struct Lines {
    out: BufWriter<Stdout>,
    format: Format,
    slugs: HashMap<TeamId, String>,
}

impl Lines {
    fn header(&mut self, columns: &[&str]) -> io::Result<()> {
        match self.format {
            Format::Csv => writeln!(self.out, "{}", columns.join(",")),
            Format::Jsonl => Ok(()),
        }
    }

    fn interval(&mut self, run: &Run, range: &Range<i64>) -> anyhow::Result<()> {
        let time = run.time.start.max(range.start)..run.time.end.min(range.end);
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
            end_reason: run.end_reason.map(EndReason::as_str),
        });
        self.line(&line, &OF_INTERVALS)
    }

    fn sample(&mut self, sample: &Sample) -> anyhow::Result<()> {
        let line = json!(StorageLine {
            team: &sample.team_id,
            team_slug: self.slugs.get(&sample.team_id).map(String::as_str),
            kind: &sample.kind,
            object: &sample.object_id,
            hour: from_ms(sample.hour_ms)?,
            bytes: sample.bytes,
        });
        self.line(&line, &OF_STORAGE)
    }

    /// No value has a comma, a quote or the end of a line in it: they are ids, slugs, words, times and numbers.
    fn line(&mut self, line: &Value, columns: &[&str]) -> anyhow::Result<()> {
        match self.format {
            Format::Jsonl => writeln!(self.out, "{line}")?,
            Format::Csv => {
                let cell = |column: &&str| match &line[*column] {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                writeln!(self.out, "{}", columns.iter().map(cell).collect::<Vec<_>>().join(","))?;
            }
        }
        Ok(())
    }
}
