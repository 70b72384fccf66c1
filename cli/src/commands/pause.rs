//! `sandpiper pause` and `sandpiper resume`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::Client;

use crate::output::Output;

/// Stop sandboxes and keep their disks, memory and processes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper pause sbx…
  sandpiper ps -a                               shows it as stopped
  sandpiper resume sbx…                         goes on where it stopped")]
pub(crate) struct PauseArguments {
    /// The sandboxes' ids
    #[arg(required = true)]
    ids: Vec<String>,
}

/// Bring paused sandboxes back; move the deadline of running ones out
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper resume sbx…
  sandpiper resume --timeout 3600 sbx…")]
pub(crate) struct ResumeArguments {
    /// The sandboxes' ids
    #[arg(required = true)]
    ids: Vec<String>,

    /// Seconds until the next deadline, which never moves closer; by default as many as when the sandbox was made
    #[arg(long)]
    timeout: Option<u64>,
}

pub(crate) async fn pause(arguments: PauseArguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    for id in arguments.ids {
        let progress = output.progress(&format!("pausing {id}"));
        let sandbox = client.pause(&id).await.with_context(|| format!("Cannot pause {id}"))?;
        drop(progress);
        if output.is_json() {
            output.value(&sandbox.raw);
        }
        output.line(&sandbox.id);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn resume(arguments: ResumeArguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    for id in arguments.ids {
        let progress = output.progress(&format!("resuming {id}"));
        let resumed = client.resume(&id, arguments.timeout).await;
        let (sandbox, _) = resumed.with_context(|| format!("Cannot resume {id}"))?;
        drop(progress);
        if output.is_json() {
            output.value(&sandbox.raw);
        }
        output.line(&sandbox.id);
    }
    Ok(ExitCode::SUCCESS)
}
