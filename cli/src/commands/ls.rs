//! `sandpiper ls`

use std::process::ExitCode;

use sandpiper::client::Client;
use sandpiper_protocol::filesystem::{EntryInfo, FileType};
use serde_json::json;

use super::connect;
use crate::output::Output;
use crate::text::printable;

/// List a folder of a sandbox
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper ls sbx…                             the home of the default user
  sandpiper ls sbx…:/etc
  sandpiper ls --depth 3 sbx…:src
  sandpiper --json ls sbx…:/var/log | jq -r .path   one JSON document a line")]
pub(crate) struct Arguments {
    /// The sandbox's id and a path in it; relative ones count from the user's home
    #[arg(value_name = "SANDBOX[:PATH]")]
    place: String,

    /// Levels to list
    #[arg(long, short = 'd', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,

    /// Linux user to act as: user or root
    #[arg(long, short = 'u')]
    user: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let (id, path) = arguments.place.split_once(':').unwrap_or((&arguments.place, ""));
    let path = if path.is_empty() { "~" } else { path };
    let user = arguments.user.as_deref();
    let data_plane = connect::data_plane(&client, id, output).await?;
    let named = data_plane.stat(path, user).await?;
    let entries = match named.kind {
        FileType::Directory => data_plane.list_dir(path, arguments.depth, user).await?,
        _ => vec![named],
    };
    if output.is_json() {
        for entry in &entries {
            output.value(&json!(entry));
        }
        return Ok(ExitCode::SUCCESS);
    }
    output.table(
        &["PERMISSIONS", "OWNER", "GROUP", "SIZE", "MODIFIED", "NAME"],
        entries.iter().map(|entry| row(entry, arguments.depth)),
    );
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &EntryInfo, depth: u32) -> Vec<String> {
    let name = if depth > 1 { &entry.path } else { &entry.name };
    let name = match &entry.symlink_target {
        Some(target) => format!("{} -> {}", printable(name), printable(target)),
        None => printable(name).into_owned(),
    };
    // To the second: the fraction says nothing to a person.
    let modified = entry.modified_time.split('.').next().unwrap_or_default();
    vec![
        printable(&entry.permissions).into_owned(),
        printable(&entry.owner).into_owned(),
        printable(&entry.group).into_owned(),
        entry.size.to_string(),
        printable(modified).replace('T', " "),
        name,
    ]
}
