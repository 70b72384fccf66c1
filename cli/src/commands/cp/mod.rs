//! `sandpiper cp`
//!
//! The other side is a sandbox, and what it says is a stranger's word. A download writes below the destination and nowhere
//! else (`local`), and takes no more than was announced and there is room for (`down`).

mod down;
mod local;
mod place;
mod remote;
mod report;
mod up;

use std::process::ExitCode;

use anyhow::bail;
use sandpiper::client::Client;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::place::Place;
pub(crate) use self::remote::Remote;
use self::report::Report;
use super::connect;
use crate::output::Output;

/// Levels of folders, and entries of a tree that are copied at once.
const MAX_DEPTH: usize = 256;
const MAX_ENTRIES: usize = 1_000_000;

/// Status of a command that SIGINT ended, as shells have it.
const INTERRUPTED: u8 = 130;

/// Copy files to and from a sandbox
#[derive(clap::Args)]
#[command(after_help = "\
One of SOURCE and DESTINATION is in a sandbox: SANDBOX:PATH, where a relative path counts from the user's home. `-` is \
standard input or output. A local name with a colon is written ./a:b.

A file takes its name only when it is whole. Permissions are kept, without set-user-id and the like; owners and times are \
not. Links and devices in a folder are left out, and that is said.

Examples:
  sandpiper cp app.py sbx…:                     into the home
  sandpiper cp -r src sbx…:app
  sandpiper cp sbx…:/var/log/syslog .
  sandpiper cp -r sbx…:results ./results
  tar c . | sandpiper cp - sbx…:/tmp/all.tar
  sandpiper cp sbx…:data.csv - | wc -l")]
pub(crate) struct Arguments {
    #[arg(value_name = "SOURCE")]
    from: Place,

    #[arg(value_name = "DESTINATION")]
    to: Place,

    /// Copy a folder and all that is in it
    #[arg(long, short = 'r')]
    recursive: bool,

    /// Linux user of the sandbox to act as: user or root
    #[arg(long, short = 'u')]
    user: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let Arguments { from, to, recursive, user } = arguments;
    let open = async |id: &str| {
        let data_plane = connect::data_plane(&client, id, output).await?;
        Ok::<_, anyhow::Error>(Remote::Sandbox { data_plane, user: user.clone() })
    };
    copy(&from, &to, recursive, output, open).await
}

/// Copies from one place to the other, and says how it went. `open` gives what a place that is not local names.
pub(crate) async fn copy(
    from: &Place,
    to: &Place,
    recursive: bool,
    output: Output,
    open: impl AsyncFn(&str) -> anyhow::Result<Remote>,
) -> anyhow::Result<ExitCode> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut report = Report::new(output);
    // What is dropped half way removes its temporary file.
    tokio::select! {
        copied = transfer(from, to, recursive, &mut report, open) => copied?,
        _ = terminate.recv() => return Ok(ExitCode::from(INTERRUPTED)),
        _ = interrupt.recv() => return Ok(ExitCode::from(INTERRUPTED)),
    }
    Ok(report.finish(matches!(to, Place::Stdio)))
}

async fn transfer(
    from: &Place,
    to: &Place,
    recursive: bool,
    report: &mut Report,
    open: impl AsyncFn(&str) -> anyhow::Result<Remote>,
) -> anyhow::Result<()> {
    match (from, to) {
        (Place::Remote { .. }, Place::Remote { .. }) => {
            bail!("Copying from one to another goes by way of this machine: `… cp A:x - | … cp - B:x`")
        }
        (Place::Local(_) | Place::Stdio, Place::Local(_) | Place::Stdio) => {
            bail!("Neither SOURCE nor DESTINATION is elsewhere; write one as NAME:PATH")
        }
        (Place::Remote { id, path }, to) => {
            let remote = open(id).await?;
            let mut down = down::Down { remote: &remote, report };
            let path = remote.path(path);
            match to {
                Place::Local(to) => down.save(path, to, recursive).await,
                _ => down.print(path).await,
            }
        }
        (from, Place::Remote { id, path }) => {
            let remote = open(id).await?;
            let mut up = up::Up::new(&remote, report);
            let path = remote.path(path);
            match from {
                Place::Local(from) => up.send(from, path, recursive).await,
                _ => up.send_stdin(path).await,
            }
        }
    }
}
