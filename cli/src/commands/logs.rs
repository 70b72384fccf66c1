//! `sandpiper logs`

use std::process::ExitCode;

use sandpiper::client::{Client, LogEntry};
use serde_json::json;

use crate::output::Output;
use crate::text::printable;

/// Show what happened to a sandbox: start, end and why, messages of its init, what its processes wrote where that is captured, and
/// its console where that is on
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper logs sbx…                  all that is kept
  sandpiper logs -n 20 -f sbx…         the last 20 entries, and what comes, until the sandbox ends
  sandpiper logs --source process -f sbx…     what its processes write, of a sandbox with --capture-output
  sandpiper --json logs sbx… | jq -r .message")]
pub(crate) struct Arguments {
    id: String,
    /// Go on with what comes, until the sandbox ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// Only the last entries, so many
    #[arg(long, short = 'n', value_name = "COUNT")]
    last: Option<usize>,
    /// Only what comes from there
    #[arg(long)]
    source: Option<Source>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Source {
    /// The host: created, started, ended and why
    Host,
    /// The first process of the guest
    Guest,
    /// The serial port, where the operator turned it on
    Console,
    /// What processes wrote, of a sandbox with --capture-output
    Process,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Guest => "guest",
            Self::Console => "console",
            Self::Process => "process",
        }
    }
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let Arguments { id, follow, last, source } = arguments;
    let source = source.map(Source::name);
    let entries = match last {
        Some(count) => client.last_logs(&id, source, count).await?,
        None => client.logs(&id, source).await?,
    };
    for entry in &entries {
        print(entry, output);
    }
    if follow {
        let mut log = client.follow_logs(&id, source, entries.last().map_or(0, |entry| entry.sequence));
        while let Some(entry) = log.next().await? {
            print(&entry, output);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(entry: &LogEntry, output: Output) {
    if output.is_json() {
        output.value(&json!(entry));
    }
    output.line(&printable(&line(entry)));
}

/// An entry for a person. What a process wrote stands behind its stream and its name, so that it can be taken for nothing else.
fn line(entry: &LogEntry) -> String {
    let LogEntry { time, source, message, process, .. } = entry;
    match process {
        None => format!("{time} {source:7} {message}"),
        Some(process) => {
            let name = process.tag.as_ref().unwrap_or(&process.command);
            let more = if process.cut { " …" } else { "" };
            format!("{time} {:7} {name}[{}]: {message}{more}", process.stream, process.pid)
        }
    }
}

#[cfg(test)]
mod tests {
    use sandpiper::client::LogProcess;

    use super::*;

    #[test]
    fn what_a_process_wrote_stands_behind_its_stream_and_name() {
        let process = |tag: Option<&str>, cut| LogProcess {
            pid: 7,
            command: "node".into(),
            tag: tag.map(Into::into),
            stream: "stderr".into(),
            cut,
        };
        let entry = |source: &str, process| LogEntry {
            sequence: 1,
            time: "12:00".into(),
            source: source.into(),
            message: "12:00 host    deleted".into(),
            process,
        };
        assert_eq!(line(&entry("host", None)), "12:00 host    12:00 host    deleted");
        assert_eq!(line(&entry("process", Some(process(None, false)))), "12:00 stderr  node[7]: 12:00 host    deleted");
        assert_eq!(
            line(&entry("process", Some(process(Some("start"), true)))),
            "12:00 stderr  start[7]: 12:00 host    deleted …"
        );
    }
}
