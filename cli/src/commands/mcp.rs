//! `sandpiper mcp`

use std::process::ExitCode;

use anyhow::Context;
use rmcp::ServiceExt;
use sandpiper::client::{Client, NetworkPolicy};
use sandpiper_mcp::{Caller, Server, Settings};

/// Serve sandboxes to an agent as tools, over standard input and output (Model Context Protocol)
#[derive(clap::Args)]
#[command(after_help = "\
An agent starts this by itself, and gets a machine for the conversation: made on first use, paused when idle. Tell it how \
(docs/mcp.md has the files of common agents):

  {\"mcpServers\": {\"sandpiper\": {\"command\": \"sandpiper\", \"args\": [\"mcp\"]}}}

Examples:
  sandpiper mcp
  sandpiper mcp --template my-tools
  sandpiper mcp --sandbox sbx…                         go on in a sandbox that is there
  sandpiper mcp --no-internet --allow-out api.example.com:443   fixed: the agent cannot change it")]
pub(crate) struct Arguments {
    /// Template that new sandboxes start from
    #[arg(long, default_value = "base")]
    template: String,

    /// A sandbox to go on with, instead of a new one
    #[arg(long, value_name = "ID", conflicts_with_all = ["template", "no_internet", "allow_out"])]
    sandbox: Option<String>,

    /// Sandboxes reach only what --allow-out names, and the agent cannot change that
    #[arg(long)]
    no_internet: bool,

    /// What sandboxes may reach all the same
    #[arg(long, value_name = "ENTRY", requires = "no_internet")]
    allow_out: Vec<String>,
}

pub(crate) async fn run(arguments: Arguments, client: Client) -> anyhow::Result<ExitCode> {
    let network = arguments.no_internet.then(|| NetworkPolicy {
        allow_internet_access: false,
        allow_out: arguments.allow_out,
        ..NetworkPolicy::default()
    });
    let settings = Settings { template: arguments.template, sandbox: arguments.sandbox, network };
    let server = Server::new(Caller::Fixed(client), settings);
    let ending = server.ending();
    let service = server.serve(rmcp::transport::stdio()).await.context("The agent did not begin a session")?;
    let ended = service.waiting().await;
    ending.await;
    ended.context("The session ended badly")?;
    Ok(ExitCode::SUCCESS)
}
