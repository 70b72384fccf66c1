//! `sandpiper logs`

use std::process::ExitCode;

use sandpiper::client::{Client, LogEntry};
use serde_json::json;

use crate::output::Output;
use crate::text::printable;

/// Show what happened to a sandbox: start, end and why, messages of its init, and its console where that is on
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper logs sbx…                  all that is kept
  sandpiper logs -n 20 -f sbx…         the last 20 entries, and what comes, until the sandbox ends
  sandpiper --json logs sbx… | jq -r .message")]
pub(crate) struct Arguments {
    id: String,
    /// Go on with what comes, until the sandbox ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// Only the last entries, so many
    #[arg(long, short = 'n', value_name = "COUNT")]
    last: Option<usize>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let Arguments { id, follow, last } = arguments;
    let entries = match last {
        Some(count) => client.last_logs(&id, count).await?,
        None => client.logs(&id).await?,
    };
    for entry in &entries {
        print(entry, output);
    }
    if follow {
        let mut log = client.follow_logs(&id, entries.last().map_or(0, |entry| entry.sequence));
        while let Some(entry) = log.next().await? {
            print(&entry, output);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for a person, or the entry as JSON.
fn print(entry: &LogEntry, output: Output) {
    let LogEntry { sequence, time, source, message } = entry;
    if output.is_json() {
        output.value(&json!({"sequence": sequence, "time": time, "source": source, "message": message}));
    }
    output.line(&printable(&format!("{time} {source:7} {message}")));
}
