//! `sandpiper rm`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::Client;
use serde_json::json;

use crate::output::Output;

/// Destroy sandboxes
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The sandboxes' ids
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    for id in arguments.ids {
        let progress = output.progress(&format!("destroying {id}"));
        client.delete(&id).await.with_context(|| format!("Cannot destroy {id}"))?;
        drop(progress);
        if output.is_json() {
            output.value(&json!({"id": id, "deleted": true}));
        }
        output.line(&id);
    }
    Ok(ExitCode::SUCCESS)
}
