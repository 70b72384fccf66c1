//! `sandpiper webhook sign`

use std::path::PathBuf;
use std::process::ExitCode;

use sandpiper_webhook::{SigningKey, sign};
use serde_json::json;

use super::secret::SecretArguments;
use super::{misuse, now, read_body};
use crate::output::Output;

/// Print the X-Webhook-Signature header that a webhook with this body has
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: 0 when the header was printed, 2 when something given is wrong.

Examples:
  sandpiper webhook sign --secret-file sk --body payment.json
  curl http://127.0.0.1:9000/ -H 'Content-Type: application/json' -H 'Idempotency-Key: test-1' \\
    -H \"X-Webhook-Signature: $(sandpiper webhook sign --secret-file sk --body payment.json)\" \\
    --data-binary @payment.json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    secret: SecretArguments,

    /// The body, signed byte for byte; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    body: PathBuf,

    /// The time of the signature, in seconds since 1970; now unless given
    #[arg(long, value_name = "UNIX", value_parser = clap::value_parser!(i64).range(0..))]
    time: Option<i64>,
}

pub(super) fn run(arguments: &Arguments, output: Output) -> ExitCode {
    match header(arguments) {
        Ok(value) => {
            if output.is_json() {
                output.value(&json!({"header": "X-Webhook-Signature", "value": value}));
            }
            output.line(&value);
            ExitCode::SUCCESS
        }
        Err(error) => misuse(&error, output),
    }
}

fn header(arguments: &Arguments) -> anyhow::Result<String> {
    let key = SigningKey::from_secret(&arguments.secret.read()?)?;
    Ok(sign(&key, arguments.time.unwrap_or_else(now), &read_body(&arguments.body)?))
}
