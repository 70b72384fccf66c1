//! `sandpiper login`, `sandpiper logout`, `sandpiper whoami`

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use nix::sys::termios::{self, LocalFlags, SetArg};
use sandpiper::client::Client;
use serde_json::json;

use crate::credentials::{Given, Login};
use crate::output::Output;

/// Sign in; from then on commands act for the user, until `logout`
#[derive(clap::Args)]
#[command(after_help = "\
The password is asked for, or read from standard input where that is no terminal. `--team`, or SANDPIPER_TEAM, says for which of \
the user's teams a command acts; without it, for the personal one.

Examples:
  sandpiper login ada@example.com --url https://sandpiper.example
  sandpiper login ada@example.com --invitation spi_…   become a user, and a member of a team
  sandpiper --team research ps")]
pub(crate) struct LoginArguments {
    /// The user's address
    email: String,

    /// Accept this invitation as somebody new, with a password that is chosen now
    #[arg(long, value_name = "TOKEN")]
    invitation: Option<String>,

    /// Name of somebody new
    #[arg(long, default_value = "", requires = "invitation")]
    name: String,
}

/// Sign out
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper logout")]
pub(crate) struct LogoutArguments {}

/// Show who is signed in, or which API key is used, and for which team
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper whoami
  sandpiper --json whoami | jq -r .team.slug")]
pub(crate) struct WhoamiArguments {}

pub(crate) async fn login(arguments: LoginArguments, given: Given<'_>, output: Output) -> anyhow::Result<ExitCode> {
    let LoginArguments { email, invitation, name } = arguments;
    let (client, url, ca) = given.stranger()?;
    let prompt = if invitation.is_some() { "A password of 10 bytes or more" } else { "Password" };
    let password = tokio::task::spawn_blocking(move || read_password(prompt)).await??;
    let session = match invitation {
        Some(token) => {
            let who = json!({"email": email, "name": name, "password": password});
            client.accept_invitation(&token, who).await?["session"].take()
        }
        None => client.log_in(&email, &password).await?,
    };
    let token = session["token"].as_str().context("The response has no session; is that a Sandpiper?")?;
    let path = Login { url, token: token.to_owned(), ca }.store()?;
    if output.is_json() {
        output.value(&json!({"user": session["user"], "expires_at": session["expires_at"]}));
    }
    output.line(&format!("Signed in as {email}; kept in {}.", path.display()));
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn logout(_: LogoutArguments, given: Given<'_>, output: Output) -> anyhow::Result<ExitCode> {
    let Some(Login { url, ca, .. }) = Login::load()? else { bail!("Nobody is signed in here") };
    // Of the session, whatever else was given.
    let given = Given { url: Some(&url), api_key: None, team: None, ca: given.ca.or(ca.as_deref()) };
    let ended = given.client()?.log_out().await;
    // One that is over already needs no end.
    if let Err(error) = ended
        && error.status() != Some(401)
    {
        return Err(error.into());
    }
    Login::remove()?;
    output.line("Signed out.");
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn whoami(_: WhoamiArguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let me = client.me().await?;
    if output.is_json() {
        output.value(&me);
    }
    let text = |pointer: &str| me.pointer(pointer).and_then(|value| value.as_str()).unwrap_or("-").to_owned();
    let who = if me["user"].is_null() {
        format!("API key {} ({})", text("/key/id"), text("/key/capability"))
    } else {
        format!("{}, {} of the team", text("/user/email"), text("/team/role"))
    };
    output.line(&format!("{who}; team {} (plan {})", text("/team/slug"), text("/team/plan")));
    Ok(ExitCode::SUCCESS)
}

/// A line of standard input; from a terminal, without showing it. Blocks.
fn read_password(prompt: &str) -> anyhow::Result<String> {
    let stdin = std::io::stdin();
    let before = if stdin.is_terminal() { Some(termios::tcgetattr(&stdin)?) } else { None };
    if let Some(before) = &before {
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        eprint!("{prompt}: ");
        std::io::stderr().flush()?;
        termios::tcsetattr(&stdin, SetArg::TCSANOW, &silent)?;
    }
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    if let Some(before) = &before {
        eprintln!();
        termios::tcsetattr(&stdin, SetArg::TCSANOW, before)?;
    }
    read.context("Cannot read the password")?;
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        bail!("No password was given");
    }
    Ok(password.to_owned())
}
