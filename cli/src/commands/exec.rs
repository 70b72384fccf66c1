//! `sandpiper exec`

use std::process::ExitCode;

use anyhow::bail;
use sandpiper::client::Client;

use super::session::{self, ProcessArguments};
use crate::output::Output;

/// Run a command in a sandbox that is there
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper exec sbx… -- ls -la /
  sandpiper exec -t sbx… -- bash
  tar c . | sandpiper exec -i sbx… -- tar x

A paused sandbox is resumed first if it was made with --auto-resume, and otherwise by `sandpiper resume`.")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,

    #[command(flatten)]
    process: ProcessArguments,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let id = &arguments.id;
    let sandbox = client.show(id).await?;
    let paused = matches!(sandbox.state.as_str(), "stopping" | "stopped");
    if paused && !sandbox.lifecycle.auto_resume {
        bail!("{id} is paused; resume it first, with: sandpiper resume {id}");
    }
    let progress = output.progress(if paused { "resuming the sandbox" } else { "connecting" });
    let session = client.connect(id).await?;
    drop(progress);
    session::run(&client.data_plane(&session), arguments.process, output).await
}
