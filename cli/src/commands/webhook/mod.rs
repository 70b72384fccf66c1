//! `sandpiper webhook`

mod listen;
mod secret;
mod sign;
mod team;
mod verify;

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use sandpiper::client::Client;

use crate::output::Output;

/// Exit status where something given is wrong, as for a command line that cannot be read.
const MISUSE: u8 = 2;

/// Send a team's events to a URL; receive webhooks: verify them, sign some for tests, take them in
#[derive(clap::Subcommand)]
#[command(after_help = "\
Making, changing and deleting a team's webhooks needs `sandpiper login` as an admin of the team; whoever \
has a key of the team, or is a member, may look at them.

listen, sign and verify ask no host. The secret is the webhook's, whsec_…, or for payments the realm's \
secret API key, sk_test_… or sk_prod_…, in a file (--secret-file), in the environment \
(SANDPIPER_WEBHOOK_SECRET) or, where nobody else can list processes, on the command line (--secret).

Examples:
  sandpiper --team research webhook create https://hooks.example.com/ --type sandbox.crashed
  sandpiper --team research webhook test whk…
  sandpiper --team research webhook deliveries whk… --state failed
  sandpiper --team research webhook redeliver whk… dlv_…
  sandpiper webhook listen --secret-file sk --port 9000
  sandpiper webhook sign --secret-file sk --body payment.json
  sandpiper webhook verify --secret-file sk --header \"$SIGNATURE\" --body payment.json")]
pub(crate) enum Command {
    Verify(verify::Arguments),
    Sign(sign::Arguments),
    Listen(listen::Arguments),
    #[command(flatten)]
    Team(team::TeamCommand),
}

pub(crate) async fn run(
    command: Command,
    client: impl FnOnce() -> anyhow::Result<Client>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Verify(arguments) => Ok(verify::run(&arguments, output)),
        Command::Sign(arguments) => Ok(sign::run(&arguments, output)),
        Command::Listen(arguments) => listen::run(arguments, output).await,
        Command::Team(command) => team::run(command, client()?, output).await,
    }
}

fn misuse(error: &anyhow::Error, output: Output) -> ExitCode {
    output.report(error);
    ExitCode::from(MISUSE)
}

/// The bytes of a body, which are signed as they are.
fn read_body(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() == OsStr::new("-") {
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body).context("Cannot read the body from standard input")?;
        return Ok(body);
    }
    std::fs::read(path).with_context(|| format!("Cannot read the body {}", path.display()))
}

/// The present time in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
