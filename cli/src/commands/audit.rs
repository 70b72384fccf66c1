//! `sandpiper audit`

use std::process::ExitCode;

use sandpiper::client::Client;

use crate::output::Output;
use crate::text::field;

/// Show who changed what in a team, or tried to, newest first
#[derive(clap::Args)]
#[command(after_help = "\
Needs `sandpiper login` as an admin of the team.

Examples:
  sandpiper --team research audit
  sandpiper --team research audit --resource sbx…
  sandpiper --team research audit --actor usr… --from 2026-01-01T00:00:00Z
  sandpiper --team research --json audit --limit 100 | jq -r .action")]
pub(crate) struct Arguments {
    /// Only by this one: id of a user, an API key or a login session
    #[arg(long)]
    actor: Option<String>,
    /// Only this: method and route, `DELETE /v1/sandboxes/{id}`
    #[arg(long)]
    action: Option<String>,
    /// Only on this: an id
    #[arg(long)]
    resource: Option<String>,
    /// Not before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let Arguments { actor, action, resource, from, to, limit } = &arguments;
    let given = [("actor", actor), ("action", action), ("resource", resource), ("from", from), ("to", to)];
    let filters: Vec<_> = given.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    let entries = client.audit(&filters, *limit).await?;
    output.rows(&["AT", "STATUS", "ACTION", "RESOURCE", "USER", "KEY OR SESSION"], &entries, |entry| {
        ["at", "status", "action", "resource", "user", "key"].map(|name| field(entry, name)).to_vec()
    });
    Ok(ExitCode::SUCCESS)
}
