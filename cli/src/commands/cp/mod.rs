//! `sandpiper cp`
//!
//! The other side is a sandbox, and what it says is a stranger's word. A download writes below the destination and nowhere
//! else (`local`), and takes no more than was announced and there is room for (`down`).

mod down;
mod local;
mod place;
mod report;
mod up;

use std::process::ExitCode;

use anyhow::bail;
use sandpiper::client::Client;
use tokio::signal::unix::{SignalKind, signal};

use self::place::Place;
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
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut report = Report::new(output);
    // What is dropped half way removes its temporary file.
    tokio::select! {
        copied = copy(&arguments, &client, output, &mut report) => copied?,
        _ = terminate.recv() => return Ok(ExitCode::from(INTERRUPTED)),
        _ = interrupt.recv() => return Ok(ExitCode::from(INTERRUPTED)),
    }
    Ok(report.finish(matches!(arguments.to, Place::Stdio)))
}

async fn copy(arguments: &Arguments, client: &Client, output: Output, report: &mut Report) -> anyhow::Result<()> {
    let user = arguments.user.as_deref();
    let recursive = arguments.recursive;
    match (&arguments.from, &arguments.to) {
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            bail!("Copying between sandboxes goes by way of this machine: `sandpiper cp A:x - | sandpiper cp - B:x`")
        }
        (Place::Local(_) | Place::Stdio, Place::Local(_) | Place::Stdio) => {
            bail!("Neither SOURCE nor DESTINATION is in a sandbox; write one as SANDBOX:PATH")
        }
        (Place::Sandbox { id, path }, to) => {
            let sandbox = connect::data_plane(client, id, output).await?;
            let mut down = down::Down { sandbox: &sandbox, user, report };
            match to {
                Place::Local(to) => down.save(path, to, recursive).await,
                _ => down.print(path).await,
            }
        }
        (from, Place::Sandbox { id, path }) => {
            let sandbox = connect::data_plane(client, id, output).await?;
            let mut up = up::Up::new(&sandbox, user, report);
            match from {
                Place::Local(from) => up.send(from, path, recursive).await,
                _ => up.send_stdin(path).await,
            }
        }
    }
}
