//! `sandpiper exec`

use std::process::ExitCode;

use sandpiper::client::Client;

use super::session::{self, ProcessArguments};
use crate::output::Output;

/// Run a command in a sandbox that is there
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper exec sbx… -- ls -la /
  sandpiper exec -t sbx… -- bash
  tar c . | sandpiper exec -i sbx… -- tar x")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,

    #[command(flatten)]
    process: ProcessArguments,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let session = client.connect(&arguments.id).await?;
    session::run(&client.data_plane(&session), arguments.process, output).await
}
