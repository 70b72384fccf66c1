//! `sandpiper run`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::Client;
use serde_json::json;

use super::checkpoint;
use super::session::{self, ProcessArguments};
use super::start::{Origin, StartArguments};
use crate::output::Output;

/// Run a command in a new sandbox and destroy it afterwards
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper run -- python3 -c 'print(2**100)'
  echo hello | sandpiper run -i -- cat
  sandpiper run -t -- bash
  sandpiper run --keep --expose 8000 -- python3 -m http.server 8000
  sandpiper run --snapshot after-setup -- make test
  sandpiper run --volume models:/data -- ls /data
  sandpiper run --no-internet --allow-out api.example.com:443 -- ./agent
  sandpiper run --keep --on-timeout pause --auto-resume -- ./prepare
  sandpiper run --keep --timeout 600 --on-timeout pause-disk -- ./install")]
pub(crate) struct Arguments {
    /// Template to start from
    #[arg(long, default_value = "base")]
    template: String,

    /// Checkpoint to start from instead: its id or its name
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "template")]
    snapshot: Option<String>,

    #[command(flatten)]
    start: StartArguments,

    /// Leave the sandbox running when the command has ended
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    process: ProcessArguments,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let origin = match &arguments.snapshot {
        Some(snapshot) => Origin::Snapshot(checkpoint::find(&client, snapshot).await?),
        None => Origin::Template(arguments.template),
    };
    let (sandbox, session) = arguments.start.start(origin, &client, output).await?;
    if output.is_json() {
        output.value(&json!({"event": "created", "sandbox": sandbox.raw}));
    }
    let ended = session::run(&client.data_plane(&session), arguments.process, output).await;
    // A command that is cut off may have been paused with its sandbox, which was asked for so as not to lose it.
    if arguments.keep || (ended.is_err() && arguments.start.pauses()) {
        if !output.is_json() {
            eprintln!("kept: {}", sandbox.id);
        }
        return ended;
    }
    let deleted = client.delete(&sandbox.id).await;
    let status = ended?;
    deleted.with_context(|| format!("The command ended, but {} was not destroyed", sandbox.id))?;
    Ok(status)
}
