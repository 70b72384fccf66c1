//! `sandpiper checkpoint`

use std::process::ExitCode;

use anyhow::{Context, bail};
use sandpiper::client::{Checkpoint, Client, NewCheckpoint};
use serde_json::json;

use super::start::{Origin, StartArguments};
use crate::output::Output;

/// Keep sandboxes as they are at one moment, and start new ones from there
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  sandpiper checkpoint create sbx… --name after-setup
  sandpiper checkpoint ls
  sandpiper checkpoint restore after-setup
  sandpiper run --snapshot after-setup -- make test
  sandpiper checkpoint rm after-setup")]
pub(crate) enum Command {
    /// Take a checkpoint of a sandbox, which goes on; print its id
    Create(CreateArguments),
    /// List checkpoints, newest first
    Ls(LsArguments),
    /// Delete checkpoints; sandboxes made from them go on
    Rm(RmArguments),
    /// Start a new sandbox from a checkpoint; print the sandbox's id
    Restore(RestoreArguments),
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper checkpoint create sbx… --name after-setup
  sandpiper checkpoint create sbx… --memory             its processes go on in every sandbox made from it")]
pub(crate) struct CreateArguments {
    /// The sandbox's id
    id: String,

    /// A name that no other checkpoint of the team has
    #[arg(long)]
    name: Option<String>,

    /// Keep the memory with the processes, too; without it, what starts from the checkpoint boots with its disk
    #[arg(long)]
    memory: bool,
}

#[derive(clap::Args)]
pub(crate) struct LsArguments {
    /// Only those of this sandbox
    id: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct RmArguments {
    /// The checkpoints' ids or names
    #[arg(required = true, value_name = "CHECKPOINT")]
    checkpoints: Vec<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper checkpoint restore after-setup
  sandpiper checkpoint restore ckp… --timeout 3600 --on-timeout pause --expose 8000")]
pub(crate) struct RestoreArguments {
    /// The checkpoint's id or name
    checkpoint: String,

    #[command(flatten)]
    start: StartArguments,
}

pub(crate) async fn run(command: Command, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(arguments) => create(arguments, &client, output).await?,
        Command::Ls(arguments) => list(&client.checkpoints(arguments.id.as_deref()).await?, output),
        Command::Rm(arguments) => {
            for reference in arguments.checkpoints {
                remove(&reference, &client, output).await?;
            }
        }
        Command::Restore(arguments) => {
            let origin = Origin::Snapshot(find(&client, &arguments.checkpoint).await?);
            let (sandbox, _) = arguments.start.start(origin, &client, output).await?;
            if output.is_json() {
                output.value(&sandbox.raw);
            }
            output.line(&sandbox.id);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The id of a checkpoint named by its id or its name.
pub(crate) async fn find(client: &Client, reference: &str) -> anyhow::Result<String> {
    match client.checkpoint_id(reference).await? {
        Some(id) => Ok(id),
        None => bail!("There is no checkpoint {reference:?}; `sandpiper checkpoint ls` lists them"),
    }
}

async fn create(arguments: CreateArguments, client: &Client, output: Output) -> anyhow::Result<()> {
    let progress = output.progress(&format!("taking a checkpoint of {}", arguments.id));
    let new = NewCheckpoint { name: arguments.name, memory: arguments.memory };
    let checkpoint = client.checkpoint(&arguments.id, &new).await?;
    drop(progress);
    if output.is_json() {
        output.value(&checkpoint.raw);
    }
    output.line(&checkpoint.id);
    Ok(())
}

async fn remove(reference: &str, client: &Client, output: Output) -> anyhow::Result<()> {
    let id = find(client, reference).await?;
    let progress = output.progress(&format!("deleting {id}"));
    client.delete_checkpoint(&id).await.with_context(|| format!("Cannot delete {id}"))?;
    drop(progress);
    if output.is_json() {
        output.value(&json!({"id": id, "deleted": true}));
    }
    output.line(&id);
    Ok(())
}

fn list(checkpoints: &[Checkpoint], output: Output) {
    if output.is_json() {
        for checkpoint in checkpoints {
            output.value(&checkpoint.raw);
        }
        return;
    }
    if checkpoints.is_empty() {
        output.line("No checkpoints. Take one with: sandpiper checkpoint create sbx…");
        return;
    }
    let rows = checkpoints.iter().map(|checkpoint| {
        // A checkpoint without a name of its own is named by its id.
        let name = if checkpoint.name == checkpoint.id { "-" } else { checkpoint.name.as_str() };
        vec![
            checkpoint.id.clone(),
            name.to_owned(),
            checkpoint.sandbox.clone(),
            if checkpoint.memory { "disk, memory" } else { "disk" }.to_owned(),
            checkpoint.state.clone(),
            size(checkpoint.size),
            checkpoint.created_at.clone(),
        ]
    });
    output.table(&["CHECKPOINT", "NAME", "SANDBOX", "KEEPS", "STATE", "SIZE", "CREATED"], rows);
}

/// Bytes as a person reads them: whole MiB, rounded up, or KiB below one.
fn size(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{} KiB", bytes.div_ceil(1 << 10))
    } else {
        format!("{} MiB", bytes.div_ceil(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(size(0), "0 KiB");
        assert_eq!(size(1), "1 KiB");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size((5 << 20) + 1), "6 MiB");
    }
}
