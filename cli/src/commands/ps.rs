//! `sandpiper ps`

use std::process::ExitCode;

use sandpiper::client::Client;

use crate::output::Output;

/// List sandboxes
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also those that are stopped or failed
    #[arg(long, short)]
    all: bool,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let filter = if arguments.all { "" } else { "query[state][]=running" };
    let sandboxes = client.list(filter).await?;
    if output.is_json() {
        for sandbox in &sandboxes {
            output.value(&sandbox.raw);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if sandboxes.is_empty() {
        output.line("No sandboxes. Start one with: sandpiper run -- uname -a");
        return Ok(ExitCode::SUCCESS);
    }
    let rows = sandboxes.into_iter().map(|sandbox| {
        let state = match &sandbox.error {
            Some(error) => format!("{} ({})", sandbox.state, error.code),
            None => sandbox.state,
        };
        let size = format!("{} vCPU, {} MiB", sandbox.cpu, sandbox.memory_mb);
        vec![sandbox.id, sandbox.template, state, size, sandbox.created_at, sandbox.deadline.unwrap_or_default()]
    });
    output.table(&["SANDBOX", "TEMPLATE", "STATE", "SIZE", "CREATED", "DEADLINE"], rows);
    Ok(ExitCode::SUCCESS)
}
