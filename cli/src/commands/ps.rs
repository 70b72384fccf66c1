//! `sandpiper ps`

use std::process::ExitCode;

use sandpiper::client::{Client, Sandbox};

use crate::output::Output;

/// List sandboxes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper ps
  sandpiper ps -a                               those that are paused or failed, too
  sandpiper --json ps | jq -r .id               one JSON document a line")]
pub(crate) struct Arguments {
    /// Also those that are stopped (paused) or failed
    #[arg(long, short)]
    all: bool,
}

/// States in which a sandbox does not run; `ps` shows these only when asked.
const RESTING: [&str; 2] = ["stopped", "failed"];

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let all = client.list("").await?;
    let count = all.len();
    let mut sandboxes = all;
    sandboxes.retain(|sandbox| arguments.all || !RESTING.contains(&sandbox.state.as_str()));
    if output.is_json() {
        for sandbox in &sandboxes {
            output.value(&sandbox.raw);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let hidden = count - sandboxes.len();
    if sandboxes.is_empty() {
        output.line("No sandboxes run. Start one with: sandpiper run -- uname -a");
    } else {
        table(sandboxes, output);
    }
    if hidden > 0 {
        eprintln!("{hidden} more stopped or failed; show them with: sandpiper ps -a");
    }
    Ok(ExitCode::SUCCESS)
}

fn table(sandboxes: Vec<Sandbox>, output: Output) {
    let rows = sandboxes.into_iter().map(|sandbox| {
        let state = match &sandbox.error {
            Some(error) => format!("{} ({})", sandbox.state, error.code),
            None => sandbox.state,
        };
        let size = format!("{} vCPU, {} MiB", sandbox.cpu, sandbox.memory_mb);
        vec![
            sandbox.id,
            sandbox.template,
            state,
            size,
            sandbox.created_at,
            sandbox.deadline.unwrap_or_else(|| "-".to_owned()),
        ]
    });
    output.table(&["SANDBOX", "TEMPLATE", "STATE", "SIZE", "CREATED", "DEADLINE"], rows);
}
