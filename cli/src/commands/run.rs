//! `sandpiper run`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::{Client, CreateSandbox, ExposedPort};
use serde_json::json;

use super::session::{self, ProcessArguments};
use crate::output::Output;

/// Run a command in a new sandbox and destroy it afterwards
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper run -- python3 -c 'print(2**100)'
  echo hello | sandpiper run -i -- cat
  sandpiper run -t -- bash
  sandpiper run --keep --expose 8000 -- python3 -m http.server 8000")]
pub(crate) struct Arguments {
    /// Template to start from
    #[arg(long, default_value = "base")]
    template: String,

    /// Seconds after which the sandbox is destroyed whatever it does
    #[arg(long)]
    timeout: Option<u64>,

    /// Virtual CPUs
    #[arg(long)]
    cpu: Option<u32>,

    /// Memory in MiB
    #[arg(long)]
    memory: Option<u32>,

    /// Give a port of the sandbox a public preview URL
    #[arg(long, value_name = "PORT")]
    expose: Vec<u16>,

    /// Leave the sandbox running when the command has ended
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    process: ProcessArguments,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let request = CreateSandbox {
        template: arguments.template,
        timeout: arguments.timeout,
        cpu: arguments.cpu,
        memory_mb: arguments.memory,
        exposed_ports: arguments.expose.iter().copied().map(ExposedPort::public).collect(),
        ..CreateSandbox::default()
    };
    let progress = output.progress("starting a sandbox");
    let (sandbox, session) = client.create(&request).await?;
    drop(progress);
    if output.is_json() {
        output.value(&json!({"event": "created", "sandbox": sandbox.raw}));
    }
    for port in arguments.expose {
        let url = client.port(&sandbox.id, port).await?.url;
        if !output.is_json() {
            eprintln!("port {port}: {url}");
        }
    }
    let ended = session::run(&client.data_plane(&session), arguments.process, output).await;
    if arguments.keep {
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
