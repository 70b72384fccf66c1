//! `sandpiper logs`

use std::process::ExitCode;

use sandpiper::client::Client;
use serde_json::json;

use crate::output::Output;

/// Show what happened to a sandbox: start, end and why, messages of its init, and its console where that is on
#[derive(clap::Args)]
pub(crate) struct Arguments {
    id: String,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    for entry in client.logs(&arguments.id).await? {
        if output.is_json() {
            output.value(&json!({"time": entry.time, "source": entry.source, "message": entry.message}));
        }
        output.line(&format!("{} {:7} {}", entry.time, entry.source, entry.message));
    }
    Ok(ExitCode::SUCCESS)
}
