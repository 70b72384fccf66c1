//! The secret that the commands sign and verify with.

use std::path::PathBuf;

use anyhow::Context;

/// The environment's variable, for where nothing is given on the command line.
const VARIABLE: &str = "SANDPIPER_WEBHOOK_SECRET";

#[derive(clap::Args)]
pub(super) struct SecretArguments {
    /// The webhook's secret, or the realm's secret API key; other users of this machine may see it here, unlike in a file or in the variable
    /// SANDPIPER_WEBHOOK_SECRET
    #[arg(long, value_name = "SK", allow_hyphen_values = true, conflicts_with = "secret_file")]
    secret: Option<String>,

    /// A file that holds the webhook's secret, or the realm's secret API key
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

impl SecretArguments {
    /// The secret that was given, which may be none: empty. An error means that it cannot be read.
    pub(super) fn read(&self) -> anyhow::Result<String> {
        if let Some(secret) = &self.secret {
            return Ok(secret.clone());
        }
        let Some(path) = &self.secret_file else {
            return Ok(std::env::var(VARIABLE).unwrap_or_default());
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("Cannot read the secret {}", path.display()))?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}
