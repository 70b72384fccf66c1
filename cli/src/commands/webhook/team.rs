//! `sandpiper webhook create` and its neighbours: where a team's events go.

use std::process::ExitCode;

use sandpiper::client::Client;
use serde_json::{Value, json};

use crate::output::Output;
use crate::text::field;

/// What concerns a team's webhooks.
#[derive(clap::Subcommand)]
pub(crate) enum TeamCommand {
    /// Send a team's events to a URL from now on; prints the secret that signs them, this once
    Create {
        /// A public https URL
        #[arg(value_name = "URL")]
        to: String,
        /// What it is for
        #[arg(long, default_value = "")]
        name: String,
        /// Only events of this type (`sandbox.crashed`); may be given several times
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
    },
    /// List a team's webhooks
    Ls,
    /// Show a webhook
    Show {
        /// The webhook's id
        webhook: String,
    },
    /// Change a webhook
    Change {
        /// The webhook's id
        webhook: String,
        /// Another URL, public and https
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        /// What it is for
        #[arg(long)]
        name: Option<String>,
        /// Only events of this type; may be given several times
        #[arg(long = "type", value_name = "TYPE", conflicts_with = "all_types")]
        types: Vec<String>,
        /// Events of all types
        #[arg(long)]
        all_types: bool,
        /// Send events from now on
        #[arg(long, conflicts_with = "disable")]
        enable: bool,
        /// Send nothing, and cancel what waits to be sent
        #[arg(long)]
        disable: bool,
    },
    /// Give a webhook another secret, and print it, this once
    Rotate {
        /// The webhook's id
        webhook: String,
    },
    /// Delete webhooks
    Rm {
        /// The webhooks' ids
        #[arg(required = true, value_name = "WEBHOOK")]
        webhooks: Vec<String>,
    },
    /// Send a test to a webhook; prints the delivery's id
    Test {
        /// The webhook's id
        webhook: String,
    },
    /// List what was sent to a webhook, newest first
    Deliveries {
        /// The webhook's id
        webhook: String,
        /// Only those that are pending, in_flight, delivered, failed, exhausted or cancelled
        #[arg(long, value_parser = ["pending", "in_flight", "delivered", "failed", "exhausted", "cancelled"])]
        state: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 20)]
        limit: usize,
    },
    /// Show a delivery, with what is sent and its attempts
    Delivery {
        /// The webhook's id
        webhook: String,
        /// The delivery's id
        delivery: String,
    },
    /// Send again what was sent; prints the new delivery's id
    Redeliver {
        /// The webhook's id
        webhook: String,
        /// The delivery's id
        delivery: String,
    },
}

pub(super) async fn run(command: TeamCommand, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        TeamCommand::Create { to, name, types } => {
            let made = client.create_webhook(&json!({"url": to, "name": name, "types": types})).await?;
            output.made(&made, "secret");
        }
        TeamCommand::Ls => list(&client.webhooks().await?, output),
        TeamCommand::Show { webhook } => list(&[client.webhook(&webhook).await?], output),
        TeamCommand::Change { webhook, to, name, types, all_types, enable, disable } => {
            let mut change = json!({});
            for (field, value) in [("url", to), ("name", name)] {
                if let Some(value) = value {
                    change[field] = value.into();
                }
            }
            if all_types || !types.is_empty() {
                change["types"] = types.into();
            }
            if enable || disable {
                change["enabled"] = enable.into();
            }
            list(&[client.change_webhook(&webhook, &change).await?], output);
        }
        TeamCommand::Rotate { webhook } => output.made(&client.rotate_webhook_secret(&webhook).await?, "secret"),
        TeamCommand::Rm { webhooks } => {
            for webhook in webhooks {
                client.delete_webhook(&webhook).await?;
                output.line(&webhook);
            }
        }
        TeamCommand::Test { webhook } => output.made(&client.test_webhook(&webhook).await?, "id"),
        TeamCommand::Deliveries { webhook, state, limit } => {
            deliveries(&client.webhook_deliveries(&webhook, state.as_deref(), limit).await?, output);
        }
        TeamCommand::Delivery { webhook, delivery } => {
            show(&client.webhook_delivery(&webhook, &delivery).await?, output);
        }
        TeamCommand::Redeliver { webhook, delivery } => {
            output.made(&client.redeliver_webhook(&webhook, &delivery).await?, "id");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(webhooks: &[Value], output: Output) {
    output.rows(&["ID", "NAME", "URL", "TYPES", "ENABLED", "CREATED"], webhooks, |webhook| {
        let types = webhook["types"].as_array().map(Vec::as_slice).unwrap_or_default();
        let types = types.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        let of = |name| field(webhook, name);
        let types = if types.is_empty() { "all".to_owned() } else { types };
        vec![of("id"), of("name"), of("url"), types, of("enabled"), of("created_at")]
    });
}

const DELIVERY: [&str; 7] = ["ID", "EVENT", "TYPE", "STATE", "STATUS", "ATTEMPTS", "CREATED"];

fn deliveries(deliveries: &[Value], output: Output) {
    output.rows(&DELIVERY, deliveries, row);
}

fn row(delivery: &Value) -> Vec<String> {
    let outcome = if delivery["status"].is_null() { "error" } else { "status" };
    ["id", "event_sequence", "event_type", "state", outcome, "attempts", "created_at"]
        .map(|name| field(delivery, name))
        .to_vec()
}

fn show(delivery: &Value, output: Output) {
    if output.is_json() {
        output.value(delivery);
        return;
    }
    output.table(&DELIVERY, [row(delivery)]);
    output.line(&format!("\n{}\n", field(delivery, "body")));
    let log = delivery["log"].as_array().map(Vec::as_slice).unwrap_or_default();
    output.rows(&["ATTEMPT", "STARTED", "MS", "STATUS", "DETAIL"], log, |attempt| {
        let outcome = if attempt["status"].is_null() { "error" } else { "status" };
        ["number", "started_at", "duration_ms", outcome, "detail"].map(|name| field(attempt, name)).to_vec()
    });
}
