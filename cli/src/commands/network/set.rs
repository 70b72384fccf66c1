//! `sandpiper network set`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::{Client, Network};
use serde_json::{Map, Value, json};

use super::{bad_input, policy_file};
use crate::output::Output;

/// Replace the whole network policy of a sandbox: what is not said returns to its default
#[derive(clap::Args)]
#[command(after_help = "\
Without any option the policy is the default: the whole Internet, nothing of the host. With --policy the options \
change what the file says: --internet and --package-registries take the place of its values, entries are added to its \
lists. The file may be what `sandpiper --json network show` printed, about this sandbox or another; whether previews are \
public is not part of a policy, and stays as it is.

Examples:
  sandpiper network set sbx… --internet off --allow api.example.com:443 --allow '*.example.org'
  sandpiper network set sbx… --deny 198.51.100.0/24
  sandpiper network set sbx… --policy policy.json
  sandpiper --json network show sbx… | sandpiper network set sbx… --policy -
  sandpiper network set sbx…                    everything allowed again")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,

    /// The policy, with the fields that the API takes, in JSON or TOML; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Whether what nothing else decides may be reached
    #[arg(long, value_name = "ON|OFF")]
    internet: Option<Switch>,

    /// Whether package registries may be reached, as the operator listed them
    #[arg(long, value_name = "ON|OFF")]
    package_registries: Option<Switch>,

    /// May be reached, whatever else is said
    #[arg(long, value_name = "ENTRY")]
    allow: Vec<String>,

    /// May not be reached, unless it is allowed by name, address or range
    #[arg(long, value_name = "ENTRY")]
    deny: Vec<String>,

    /// May be reached: one of the operator's lists
    #[arg(long, value_name = "PROFILE")]
    profile: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

pub(super) async fn run(arguments: &Arguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let policy = match arguments.wanted() {
        Ok(policy) => policy,
        Err(error) => return Ok(bad_input(&error, output)),
    };
    report(&arguments.id, &client.replace_network(&arguments.id, &policy).await?, output);
    Ok(ExitCode::SUCCESS)
}

/// What follows a change of a policy.
pub(super) fn report(id: &str, network: &Network, output: Output) {
    if output.is_json() {
        output.value(&network.raw);
    }
    output.line(&format!("{id}: {}", network.apply_status));
    if network.apply_status == "pending" && !output.is_json() {
        let why = network.apply_error.as_deref().unwrap_or("the host takes long to respond");
        eprintln!("recorded, and applied as soon as the host has it: {why}");
    }
}

impl Arguments {
    /// What is to be sent: the file, if there is one, with what the options say.
    fn wanted(&self) -> anyhow::Result<Map<String, Value>> {
        self.policy(self.policy.as_deref().map(policy_file::read).transpose()?.unwrap_or_default())
    }

    /// `policy` with what the options say.
    fn policy(&self, mut policy: Map<String, Value>) -> anyhow::Result<Map<String, Value>> {
        let switches =
            [("allow_internet_access", self.internet), ("allow_package_registry_access", self.package_registries)];
        for (field, switch) in switches {
            if let Some(switch) = switch {
                policy.insert(field.to_owned(), json!(switch == Switch::On));
            }
        }
        for (field, entries) in
            [("allow_out", &self.allow), ("deny_out", &self.deny), ("egress_profiles", &self.profile)]
        {
            if entries.is_empty() {
                continue;
            }
            let list = policy.entry(field).or_insert_with(|| json!([]));
            let list = list.as_array_mut().with_context(|| format!("{field} of the policy file is not a list"))?;
            list.extend(entries.iter().map(|entry| json!(entry)));
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn policy(line: &[&str], file: Value) -> Value {
        let line = Line::parse_from(["x", "sbx1"].iter().chain(line));
        Value::Object(line.arguments.policy(file.as_object().unwrap().clone()).unwrap())
    }

    #[test]
    fn what_is_not_said_is_left_to_the_api() {
        assert_eq!(policy(&[], json!({})), json!({}));
    }

    #[test]
    fn options_become_fields() {
        let line = ["--internet", "off", "--allow", "a.test", "--allow", "b.test:443", "--profile", "weather"];
        assert_eq!(
            policy(&line, json!({})),
            json!({
                "allow_internet_access": false, "allow_out": ["a.test", "b.test:443"],
                "egress_profiles": ["weather"],
            })
        );
    }

    #[test]
    fn options_change_what_a_file_says() {
        let file = json!({"allow_internet_access": false, "deny_out": ["a.test"], "egress_profile": "weather"});
        assert_eq!(
            policy(&["--internet", "on", "--deny", "b.test"], file),
            json!({"allow_internet_access": true, "deny_out": ["a.test", "b.test"], "egress_profile": "weather"})
        );
    }
}
