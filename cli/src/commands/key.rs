//! `sandpiper key`

use std::process::ExitCode;

use sandpiper::client::Client;

use crate::output::Output;
use crate::text::field;

/// Make, list and revoke a team's API keys
#[derive(clap::Subcommand)]
#[command(after_help = "\
Needs `sandpiper login` as an admin of the team.

Examples:
  sandpiper --team research key create --name ci
  sandpiper --team research key create --name dashboard --read --expires 2027-01-01T00:00:00Z
  sandpiper --team research key ls
  sandpiper --team research key revoke key…")]
pub(crate) enum Command {
    /// Make a key and print it, this once
    Create {
        /// What it is for
        #[arg(long, default_value = "")]
        name: String,
        /// It may list and inspect, and nothing else
        #[arg(long)]
        read: bool,
        /// When it ends by itself (RFC 3339)
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List keys, newest first
    Ls,
    /// End keys
    Revoke {
        /// The keys' ids
        #[arg(required = true, value_name = "KEY_ID")]
        ids: Vec<String>,
    },
}

pub(crate) async fn run(command: Command, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create { name, read, expires } => {
            let capability = if read { "read" } else { "write" };
            output.made(&client.create_api_key(&name, capability, expires.as_deref()).await?, "key");
        }
        Command::Ls => {
            let keys = client.api_keys().await?;
            output.rows(&["ID", "NAME", "CAPABILITY", "LAST USED", "EXPIRES", "REVOKED"], &keys, |key| {
                ["id", "name", "capability", "last_used_at", "expires_at", "revoked_at"]
                    .map(|name| field(key, name))
                    .to_vec()
            });
        }
        Command::Revoke { ids } => {
            for id in ids {
                client.revoke_api_key(&id).await?;
                output.line(&id);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
