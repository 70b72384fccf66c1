//! `sandpiper metrics`

use std::process::ExitCode;

use sandpiper::client::{Client, Metrics};
use serde_json::json;

use super::connect;
use crate::output::Output;
use crate::text::bytes;

/// Show what a sandbox's machine uses: CPU, memory, disk
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper metrics sbx…
  sandpiper --json metrics sbx… | jq .mem_used      sizes in bytes")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let metrics = connect::data_plane(&client, &arguments.id, output).await?.metrics().await?;
    if output.is_json() {
        output.value(&json!(metrics));
    }
    output.table(&["RESOURCE", "USED", "OF"], rows(&metrics));
    Ok(ExitCode::SUCCESS)
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
