//! `sandpiper exec`

use std::process::ExitCode;

use sandpiper::client::Client;

use super::connect;
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
    let data_plane = connect::data_plane(&client, &arguments.id, output).await?;
    session::run(&data_plane, arguments.process, output).await
}
