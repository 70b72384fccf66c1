//! `sandpiper host`: what an operator does with the host on this machine, over its agent's socket or without one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Context;
use serde_json::json;

use crate::agent_socket::{self, AgentSocket};
use crate::commands::up::{egress_profiles, pause};
use crate::output::Output;

/// Look after the host on this machine: for its operator
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  sandpiper host drain                          before the machine is shut down, or the package removed
  sandpiper host profiles --write /etc/sandpiper/egress-profiles.json")]
pub(crate) enum Command {
    Drain(DrainArguments),
    Profiles(ProfilesArguments),
}

/// Pause every sandbox that runs on this host, of all teams; each goes on when it is resumed
#[derive(clap::Args)]
#[command(after_help = "Exit status: 0 when none runs any more, 1 when some could not be paused; they go on. \
                        Nobody is kept from starting others: end the API first (systemctl stop sandpiper-api).")]
pub(crate) struct DrainArguments {
    /// Socket of the agent on this machine
    #[arg(long, default_value = agent_socket::PATH)]
    agent: PathBuf,
}

/// Write a file of egress profiles, of what this host's package managers use; one that is there stays as it is
#[derive(clap::Args)]
pub(crate) struct ProfilesArguments {
    /// The file, which `[network] profiles` of the agent's settings names
    #[arg(long, value_name = "FILE")]
    write: PathBuf,
}

pub(crate) async fn run(command: Command, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        Command::Drain(arguments) => drain(&arguments, output).await,
        Command::Profiles(arguments) => {
            egress_profiles::ensure(&arguments.write).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn drain(arguments: &DrainArguments, output: Output) -> anyhow::Result<ExitCode> {
    let running = Mutex::new(BTreeSet::new());
    let paused = pause::pause(&AgentSocket::new(&arguments.agent), &running).await.context("No sandbox was paused")?;
    let running = running.into_inner().unwrap_or_default();
    if output.is_json() {
        output.value(&json!({"paused": paused, "running": running}));
    }
    output.line(&format!("{paused} sandboxes paused, {} still run", running.len()));
    Ok(if running.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
