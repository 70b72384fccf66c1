//! `sandpiper network show`

use sandpiper::client::{Client, Network};

use crate::output::Output;

/// Show what a sandbox may reach
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper network show sbx…
  sandpiper --json network show sbx… | jq -r '.allow_out[]'")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,
}

pub(super) async fn run(arguments: &Arguments, client: &Client, output: Output) -> anyhow::Result<()> {
    let network = client.network(&arguments.id).await?;
    if output.is_json() {
        output.value(&network.raw);
    }
    output.table(&["SETTING", "VALUE"], rows(&network));
    Ok(())
}

/// What a person is shown: each setting that says something.
fn rows(network: &Network) -> Vec<Vec<String>> {
    let policy = &network.policy;
    let mut rows = Vec::new();
    let mut list = |name: &str, entries: &[String]| {
        for (index, entry) in entries.iter().enumerate() {
            rows.push(vec![if index == 0 { name.to_owned() } else { String::new() }, entry.clone()]);
        }
    };
    list("allowed", &policy.allow_out);
    list("denied", &policy.deny_out);
    list("profiles", &policy.egress_profiles);
    if policy.allow_package_registry_access {
        list("package registries", &["allowed".to_owned()]);
    }
    let otherwise = if policy.allow_internet_access { "allowed" } else { "denied" };
    list("everything else", &[otherwise.to_owned()]);
    let status = match &network.apply_error {
        Some(error) => format!("{}: {error}", network.apply_status),
        None => network.apply_status.clone(),
    };
    list("status", &[status]);
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(network: Value) -> Vec<String> {
        let network: Network = serde_json::from_value(network).unwrap();
        rows(&network).into_iter().map(|row| row.join(" = ")).collect()
    }

    #[test]
    fn only_what_says_something_is_shown() {
        let network = json!({"allow_internet_access": true, "allow_public_traffic": true, "apply_status": "applied"});
        assert_eq!(shown(network), ["everything else = allowed", "status = applied"]);
    }

    #[test]
    fn each_entry_has_a_line_and_a_pending_policy_its_reason() {
        let network = json!({
            "allow_internet_access": false, "allow_package_registry_access": true, "allow_out": ["a.test", "b.test:443"],
            "deny_out": ["192.0.2.0/24"], "egress_profiles": ["weather"], "apply_status": "pending",
            "apply_error": "no such profile",
        });
        assert_eq!(
            shown(network),
            [
                "allowed = a.test",
                " = b.test:443",
                "denied = 192.0.2.0/24",
                "profiles = weather",
                "package registries = allowed",
                "everything else = denied",
                "status = pending: no such profile",
            ]
        );
    }
}
