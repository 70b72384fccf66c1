//! The `sandpiper` command: a host in one command (`up`, `doctor`), and sandboxes from the terminal.

mod agent_socket;
mod commands;
mod context;
mod credentials;
mod doctor;
mod output;
mod registries;
mod text;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::credentials::Given;
use crate::output::Output;

/// Linux machines for agents and automation: real microVMs that start in a moment.
#[derive(Parser)]
#[command(
    name = "sandpiper",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  sandpiper doctor                          can this machine run sandboxes?
  sandpiper up                              start a host here and print its URL and first key
  sandpiper run -- python3 -c 'print(1)'    a fresh machine, one command, gone again
  sandpiper ps                              what is running
  sandpiper cp -r src sbx…:app              files there, and back
  sandpiper pause sbx…                      stop it and keep everything, to resume it
  sandpiper checkpoint create sbx…          keep it as it is, to start others from
  sandpiper volume create models            files that outlive sandboxes
  sandpiper template build . -t app         a template of your own, from a Dockerfile
  sandpiper network set sbx… --internet off nothing outside can be reached any more
  sandpiper events --follow                 what happens in the team, as it happens
  sandpiper login ada@example.com           sign in; `team`, `key` and `audit` are for users
  sandpiper webhook create https://…        send the team's events there, signed
  sandpiper webhook listen --port 9000      receive webhooks, verified and kept"
)]
struct Arguments {
    /// Address of the API
    #[arg(long, global = true, env = "SANDPIPER_URL")]
    url: Option<String>,

    /// API key; without it, the session that `login` left, or the key that `up` did
    #[arg(long, global = true, env = "SANDPIPER_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Slug or id of the team that a user who is signed in acts for; without it, the personal one
    #[arg(long, global = true, env = "SANDPIPER_TEAM", value_name = "TEAM")]
    team: Option<String>,

    /// PEM file of a certificate authority to trust, for a host with its own
    #[arg(long, global = true, env = "SANDPIPER_CA")]
    ca: Option<std::path::PathBuf>,

    /// Print JSON, for scripts
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Doctor(commands::doctor::Arguments),
    Up(commands::up::Arguments),
    #[command(subcommand)]
    Host(commands::host::Command),
    Run(commands::run::Arguments),
    Exec(commands::exec::Arguments),
    Cp(commands::cp::Arguments),
    Ls(commands::ls::Arguments),
    Pause(commands::pause::PauseArguments),
    Resume(commands::pause::ResumeArguments),
    #[command(subcommand)]
    Checkpoint(commands::checkpoint::Command),
    Fork(commands::fork::Arguments),
    #[command(subcommand)]
    Network(commands::network::NetworkCommand),
    NetLog(commands::net_log::Arguments),
    Ports(commands::ports::Arguments),
    Ps(commands::ps::Arguments),
    Rm(commands::rm::Arguments),
    Logs(commands::logs::Arguments),
    Metrics(commands::metrics::Arguments),
    Limits(commands::limits::Arguments),
    Usage(commands::usage::Arguments),
    Login(commands::login::LoginArguments),
    Logout(commands::login::LogoutArguments),
    Whoami(commands::login::WhoamiArguments),
    #[command(subcommand)]
    Team(commands::team::Command),
    #[command(subcommand)]
    Key(commands::key::Command),
    Audit(commands::audit::Arguments),
    Events(commands::events::Arguments),
    Trace(commands::trace::Arguments),
    Mcp(commands::mcp::Arguments),
    #[command(subcommand)]
    Template(commands::template::Command),
    #[command(subcommand)]
    Volume(commands::volume::Command),
    #[command(subcommand)]
    Webhook(commands::webhook::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let output = Output::new(arguments.json);
    // One provider for every TLS connection of the process; a second installation is the only way this fails.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output.fail(&anyhow::Error::new(error).context("Cannot start")),
    };
    let ended = runtime.block_on(dispatch(arguments, output));
    // A blocked read of a terminal must not hold the process back.
    runtime.shutdown_background();
    ended.unwrap_or_else(|error| output.fail(&error))
}

async fn dispatch(arguments: Arguments, output: Output) -> anyhow::Result<ExitCode> {
    let given = Given {
        url: arguments.url.as_deref(),
        api_key: arguments.api_key.as_deref(),
        team: arguments.team.as_deref(),
        ca: arguments.ca.as_deref(),
    };
    let client = || given.client();
    match arguments.command {
        Command::Doctor(arguments) => commands::doctor::run(&arguments, output),
        Command::Up(arguments) => commands::up::run(arguments, output).await,
        Command::Host(command) => commands::host::run(command, output).await,
        Command::Template(command) => commands::template::run(command, client, output).await,
        Command::Webhook(command) => commands::webhook::run(command, client, output).await,
        Command::Run(arguments) => commands::run::run(arguments, client()?, output).await,
        Command::Exec(arguments) => commands::exec::run(arguments, client()?, output).await,
        Command::Cp(arguments) => commands::cp::run(arguments, client()?, output).await,
        Command::Ls(arguments) => commands::ls::run(arguments, client()?, output).await,
        Command::Pause(arguments) => commands::pause::pause(arguments, client()?, output).await,
        Command::Resume(arguments) => commands::pause::resume(arguments, client()?, output).await,
        Command::Checkpoint(command) => commands::checkpoint::run(command, client()?, output).await,
        Command::Volume(command) => commands::volume::run(command, client()?, output).await,
        Command::Fork(arguments) => commands::fork::run(arguments, client()?, output).await,
        Command::Network(command) => commands::network::run(command, client, output).await,
        Command::NetLog(arguments) => commands::net_log::run(arguments, client()?, output).await,
        Command::Ports(arguments) => commands::ports::run(arguments, client()?, output).await,
        Command::Ps(arguments) => commands::ps::run(arguments, client()?, output).await,
        Command::Rm(arguments) => commands::rm::run(arguments, client()?, output).await,
        Command::Logs(arguments) => commands::logs::run(arguments, client()?, output).await,
        Command::Metrics(arguments) => commands::metrics::run(arguments, client()?, output).await,
        Command::Mcp(arguments) => commands::mcp::run(arguments, client()?).await,
        Command::Trace(arguments) => commands::trace::run(arguments, output).await,
        Command::Limits(arguments) => commands::limits::run(arguments, client()?, output).await,
        Command::Usage(arguments) => commands::usage::run(arguments, client()?, output).await,
        Command::Login(arguments) => commands::login::login(arguments, given, output).await,
        Command::Logout(arguments) => commands::login::logout(arguments, given, output).await,
        Command::Whoami(arguments) => commands::login::whoami(arguments, client()?, output).await,
        Command::Team(command) => commands::team::run(command, client()?, output).await,
        Command::Key(command) => commands::key::run(command, client()?, output).await,
        Command::Audit(arguments) => commands::audit::run(arguments, client()?, output).await,
        Command::Events(arguments) => commands::events::run(arguments, client()?, output).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_run_starts_from_a_template_or_a_snapshot_not_both() {
        let parse = |line: &[&str]| Arguments::try_parse_from(line.iter().copied()).is_ok();
        assert!(parse(&["sandpiper", "run", "--snapshot", "x", "--", "true"]));
        assert!(parse(&["sandpiper", "run", "--template", "x", "--", "true"]));
        assert!(!parse(&["sandpiper", "run", "--template", "x", "--snapshot", "y", "--", "true"]));
    }
}
