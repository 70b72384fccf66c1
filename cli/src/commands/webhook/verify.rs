//! `sandpiper webhook verify`

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use sandpiper_webhook::{DEFAULT_WINDOW, Reason, SecretError, SigningKey, verify};
use serde_json::json;

use super::secret::SecretArguments;
use super::{misuse, now, read_body};
use crate::output::Output;

/// Exit status for a webhook that is refused.
const REFUSED: u8 = 1;

/// Say whether a webhook is genuine
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: 0 when it is genuine, 1 when it is refused, for the reason on standard error, 2 when \
something given is wrong. Without a secret that can be used, everything is refused.

Examples:
  sandpiper webhook verify --secret-file sk --body payment.json --now 1700000000 \\
    --header 'v=1, t=1700000000, alg=hmac-sha256, s=3f7f18bb…'
  sandpiper webhook verify --secret-file sk --header \"$SIGNATURE\" --body - < payment.json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    secret: SecretArguments,

    /// The value of the X-Webhook-Signature header; once for each time that the request has it
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    header: Vec<OsString>,

    /// The body as it came, before anything read it; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    body: PathBuf,

    /// The time of the receiver, in seconds since 1970; now unless given
    #[arg(long, value_name = "UNIX", value_parser = clap::value_parser!(i64).range(0..))]
    now: Option<i64>,

    /// How far the signature's time may be from the receiver's, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_WINDOW)]
    window: u64,
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Refusal {
    Secret(#[from] SecretError),
    Webhook(#[from] Reason),
}

pub(super) fn run(arguments: &Arguments, output: Output) -> ExitCode {
    let (secret, body) = match read(arguments) {
        Ok(read) => read,
        Err(error) => return misuse(&error, output),
    };
    match judge(arguments, &secret, &body) {
        Ok(()) => {
            if output.is_json() {
                output.value(&json!({"valid": true}));
            }
            output.line("valid");
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            if output.is_json() {
                output.value(&json!({"valid": false, "reason": refusal.to_string()}));
            }
            eprintln!("refused: {refusal}");
            ExitCode::from(REFUSED)
        }
    }
}

/// The secret and the body.
fn read(arguments: &Arguments) -> anyhow::Result<(String, Vec<u8>)> {
    Ok((arguments.secret.read()?, read_body(&arguments.body)?))
}

fn judge(arguments: &Arguments, secret: &str, body: &[u8]) -> Result<(), Refusal> {
    let key = SigningKey::from_secret(secret)?;
    let headers = arguments.header.iter().map(|header| header.as_bytes());
    Ok(verify(&key, headers, body, arguments.now.unwrap_or_else(now), arguments.window)?)
}
