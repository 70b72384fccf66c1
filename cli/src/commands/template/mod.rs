//! `sandpiper template`

mod build;
mod follow;
mod host;
mod reference;
mod secret;
mod source;
mod versions;

use std::process::ExitCode;

use sandpiper::client::Client;

use crate::output::Output;

/// Build templates of your own, from which sandboxes start with everything in place
#[derive(clap::Subcommand)]
#[command(after_help = "\
A template has versions, and each build makes one: slug:3 is the third, slug:latest the one with that tag, slug alone the \
newest. Sandboxes are made of them with `sandpiper run --template slug`.

Examples:
  sandpiper template build . -t app --start 'node server.js' --ready 'curl -fs localhost:3000'
  sandpiper run --template app --expose 3000 --keep -- true
  sandpiper template pull python:3.12 -t python
  sandpiper template ls
  sandpiper template logs -f app
  sandpiper template rm app:1")]
pub(crate) enum Command {
    Build(Box<build::Arguments>),
    Pull(build::PullArguments),
    Ls(versions::ListArguments),
    Show(versions::ShowArguments),
    Rm(versions::RemoveArguments),
    Logs(follow::LogsArguments),
    Cancel(versions::CancelArguments),
    Tag(versions::TagArguments),
    Import(host::ImportArguments),
}

/// `client` gives a client of the API: what is asked of this machine's agent needs none.
pub(crate) async fn run(
    command: Command,
    client: impl FnOnce() -> anyhow::Result<Client>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Import(arguments) => host::import(arguments, output).await,
        Command::Ls(versions::ListArguments { agent: Some(agent) }) => host::list(&agent, output).await,
        Command::Ls(_) => versions::list(&client()?, output).await,
        Command::Build(arguments) => build::build(*arguments, &client()?, output).await,
        Command::Pull(arguments) => build::pull(arguments, &client()?, output).await,
        Command::Show(arguments) => versions::show(&arguments, &client()?, output).await,
        Command::Rm(arguments) => versions::remove(&arguments, &client()?, output).await,
        Command::Logs(arguments) => follow::logs(&arguments, &client()?, output).await,
        Command::Cancel(arguments) => versions::cancel(&arguments, &client()?, output).await,
        Command::Tag(arguments) => versions::tag(arguments, &client()?, output).await,
    }
}
