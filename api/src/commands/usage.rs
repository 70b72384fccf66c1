//! `sandpiper-api usage`

use std::io::{self, BufWriter, Write};

use anyhow::{Context, bail, ensure};
use futures_util::TryStreamExt;
use jiff::Timestamp;
use sandpiper_db::to_ms;

use crate::store::Store;
use crate::usage_export::{self, Format, Kind};

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

/// Prints what teams used, line by line.
pub async fn export(store: &Store, wanted: Wanted) -> anyhow::Result<()> {
    let Wanted { from, to, kind, format, team } = wanted;
    ensure!(from < to, "--from must be before --to");
    let teams = store.teams.all().await?;
    let team = match team {
        None => None,
        Some(slug) => match teams.iter().find(|team| team.slug == *slug) {
            Some(team) => Some(team.id.clone()),
            None => bail!("There is no team {slug}; `sandpiper-api team ls` lists them"),
        },
    };
    let wanted = usage_export::Wanted { time: to_ms(from)..to_ms(to), kind, format, team };
    let mut lines = usage_export::lines(store, &wanted, teams);
    let mut out = BufWriter::new(io::stdout());
    while let Some(line) = lines.try_next().await.context("Cannot export")? {
        if is_over(out.write_all(line.as_bytes()))? {
            return Ok(());
        }
    }
    is_over(out.flush()).map(drop)
}

/// Whether the reader went away (`| head`), which is no error of ours.
fn is_over(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(error).context("Cannot export"),
    }
}
