//! What a build says as it goes on, and `sandpiper template logs`.

use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use sandpiper::client::{Client, Version};
use sandpiper_protocol::template::{BuildLogEntry, BuildState, LogLevel};

use super::reference::Reference;
use super::versions;
use crate::output::{Output, Progress};
use crate::text::printable;

/// Between two looks at how far a build is.
const POLL: Duration = Duration::from_secs(1);

/// Print what a build said
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper template logs app           of its last build
  sandpiper template logs -f app:3      as it goes on, to its end
  sandpiper --json template logs app | jq -r 'select(.level == \"error\") | .text'")]
pub(crate) struct LogsArguments {
    /// The version; the one that was built last where none is named
    #[arg(value_name = "SLUG[:VERSION]")]
    version: Reference,

    /// Go on until the build has ended
    #[arg(long, short = 'f')]
    follow: bool,
}

pub(super) async fn logs(arguments: &LogsArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let slug = &arguments.version.slug;
    let version = versions::find(client, &arguments.version).await?;
    if arguments.follow {
        let mut log = client.follow_build(slug, &version.id, 0);
        while let Some(entry) = log.next().await? {
            print(&entry, output, |line| output.line(line));
        }
    } else {
        for entry in client.build_log(slug, &version.id).await? {
            print(&entry, output, |line| output.line(line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows what a build says until it has ended; the version as it is then.
///
/// # Errors
///
/// Fails if the API cannot be reached for long. The build goes on.
pub(super) async fn to_the_end(
    client: &Client,
    slug: &str,
    version: Version,
    output: Output,
) -> anyhow::Result<Version> {
    let progress = output.progress(&phase(&version));
    let reading = async {
        let mut log = client.follow_build(slug, &version.id, 0);
        while let Some(entry) = log.next().await? {
            print(&entry, output, |line| progress.print(line));
        }
        anyhow::Ok(())
    };
    tokio::select! {
        read = reading => read?,
        never = keep_saying(client, slug, &version.id, &progress) => match never {},
    }
    Ok(client.ended_version(slug, &version.id).await?)
}

/// Says again and again how far the build is.
async fn keep_saying(client: &Client, slug: &str, id: &str, progress: &Progress) -> Infallible {
    loop {
        tokio::time::sleep(POLL).await;
        // Whether the API can be reached is for the reader of the log to say.
        if let Ok(version) = client.version(slug, id).await {
            progress.say(&phase(&version));
        }
    }
}

fn phase(version: &Version) -> String {
    match (version.state, version.position) {
        (BuildState::Queued, Some(0) | None) => "waiting for the host".to_owned(),
        (BuildState::Queued, Some(1)) => "waiting: 1 build is before it".to_owned(),
        (BuildState::Queued, Some(position)) => format!("waiting: {position} builds are before it"),
        (BuildState::Warming, _) => "starting a first sandbox".to_owned(),
        _ => "building".to_owned(),
    }
}

/// One entry, as JSON on standard output or as a line for `show`.
fn print(entry: &BuildLogEntry, output: Output, show: impl FnOnce(&str)) {
    if output.is_json() {
        output.value(&serde_json::json!(entry));
        return;
    }
    let step = entry.step.map(|step| format!("[{step}] ")).unwrap_or_default();
    let level = match entry.level {
        LogLevel::Error => "error: ",
        LogLevel::Warn => "warning: ",
        LogLevel::Info | LogLevel::Debug => "",
    };
    show(&format!("{step}{level}{}", printable(&entry.text)));
}
