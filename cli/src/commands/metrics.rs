//! `sandpiper metrics`

use std::process::ExitCode;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use sandpiper::client::{Client, Metrics, Point};
use serde_json::json;

use super::connect;
use crate::output::Output;
use crate::text::bytes;

/// Show what a sandbox's machine uses: CPU, memory, disk
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper metrics sbx…                            now, as the sandbox says itself
  sandpiper metrics sbx… --since 1h                 over time, as its host measured it
  sandpiper --json metrics sbx… | jq .mem_used      sizes in bytes")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,
    /// Show what its host measured since then (`90s`, `15m`, `1h 30m`), also of a stopped one; a day is kept
    #[arg(long, value_name = "AGO")]
    since: Option<SignedDuration>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    if let Some(ago) = arguments.since {
        return history(&arguments.id, ago, &client, output).await;
    }
    let metrics = connect::data_plane(&client, &arguments.id, output).await?.metrics().await?;
    if output.is_json() {
        output.value(&json!(metrics));
    }
    output.table(&["RESOURCE", "USED", "OF"], rows(&metrics));
    Ok(ExitCode::SUCCESS)
}

async fn history(id: &str, ago: SignedDuration, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let since = Timestamp::now().checked_sub(ago.abs()).context("That is longer ago than there were times")?;
    let history = client.history(id, since).await?;
    if output.is_json() {
        output.value(&history.raw);
    }
    let header = ["TIME", "CPU", "MEMORY", "DISK", "RECEIVED", "SENT"];
    output.table(&header, history.points.iter().map(point_row));
    Ok(ExitCode::SUCCESS)
}

fn point_row(point: &Point) -> Vec<String> {
    vec![
        point.time.to_string(),
        format!("{:.1} %", point.cpu_used_pct),
        bytes(point.memory_bytes),
        bytes(point.disk_bytes),
        format!("{}/s", bytes(point.received_bytes_per_second)),
        format!("{}/s", bytes(point.sent_bytes_per_second)),
    ]
}

fn rows(metrics: &Metrics) -> [Vec<String>; 3] {
    let row = |name: &str, used: String, of: String| vec![name.to_owned(), used, of];
    [
        row("cpu", format!("{:.1} %", metrics.cpu_used_pct), format!("{} vCPU", metrics.cpu_count)),
        row(
            "memory",
            format!("{} (and {} of files)", bytes(metrics.mem_used), bytes(metrics.mem_cache)),
            bytes(metrics.mem_total),
        ),
        row("disk", bytes(metrics.disk_used), bytes(metrics.disk_total)),
    ]
}
