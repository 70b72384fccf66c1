//! `sandpiper limits`

use std::process::ExitCode;

use sandpiper::client::Client;
use serde_json::Value;

use crate::output::Output;
use crate::text::bytes;

/// Show what the key's team may use, and what it uses
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper limits
  sandpiper --json limits | jq .quota.usage")]
pub(crate) struct Arguments {}

pub(crate) async fn run(_: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let limits = client.limits().await?;
    if output.is_json() {
        output.value(&limits);
    }
    output.table(&["LIMIT", "USED", "OF"], rows(&limits));
    Ok(ExitCode::SUCCESS)
}

fn rows(limits: &Value) -> Vec<Vec<String>> {
    let number = |pointer: &str| match limits.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "-".to_owned(),
    };
    let optional = |pointer: &str| match limits.pointer(pointer).and_then(Value::as_u64) {
        Some(0) => "no limit".to_owned(),
        _ => number(pointer),
    };
    let stored = limits.pointer("/quota/usage/retained_bytes").and_then(Value::as_u64);
    let most_stored = limits.pointer("/quota/limits/stored_gib").and_then(Value::as_u64).filter(|gib| *gib > 0);
    let row = |name: &str, used: String, of: String| vec![name.to_owned(), used, of];
    let cpus = limits["cpu_values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cpus = cpus.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
    vec![
        row("sandboxes", number("/quota/usage/sandboxes"), number("/quota/limits/sandboxes")),
        row("vCPUs", number("/quota/usage/cpu"), number("/quota/limits/cpu")),
        row("memory, MiB", number("/quota/usage/memory_mb"), number("/quota/limits/memory_mb")),
        row("stopped sandboxes", number("/quota/usage/stopped"), optional("/quota/limits/stopped")),
        row("checkpoints", number("/quota/usage/checkpoints"), optional("/quota/limits/checkpoints")),
        row("volumes", number("/quota/usage/volumes"), number("/quota/limits/volumes")),
        row("volumes, GiB", number("/quota/usage/volume_gib"), number("/quota/limits/volume_gib")),
        row(
            "stored",
            stored.map_or_else(|| "-".to_owned(), bytes),
            most_stored.map_or_else(|| "no limit".to_owned(), |gib| bytes(gib << 30)),
        ),
        row("plan", String::new(), number("/plan")),
        row("vCPUs of a sandbox", String::new(), cpus),
        row(
            "memory of a sandbox, MiB",
            String::new(),
            format!("{} to {}", number("/memory_mb_min"), number("/memory_mb_max")),
        ),
        row("timeout, s", String::new(), number("/max_timeout")),
    ]
}
