//! `sandpiper events`

use std::process::ExitCode;

use sandpiper::client::{Client, Event, EventFilter};

use crate::output::Output;
use crate::text::printable;

/// Show what happened in a team, oldest first: to its sandboxes, checkpoints, builds and volumes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper events                                  all that is kept
  sandpiper events --follow                         what happens from now on
  sandpiper events --resource sbx… --type sandbox.crashed
  sandpiper --json events --follow --after 42 | jq -r .type")]
pub(crate) struct Arguments {
    /// Go on with what happens, until it is ended; without --after, from now on
    #[arg(long, short = 'f')]
    follow: bool,
    /// Only those that follow the event with this number
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Only of this type (`sandbox.ready`); may be given several times
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Only of the resource with this id
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let Arguments { follow, after, types, resource } = arguments;
    let filter = EventFilter { types, resource };
    if follow {
        let mut events = client.follow_events(&filter, after);
        loop {
            print(&events.next().await?, output);
        }
    }
    for event in client.events(&filter, after.unwrap_or_default()).await? {
        print(&event, output);
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for a person, or the event as JSON. Lines have the same columns, however many come later.
fn print(event: &Event, output: Output) {
    if output.is_json() {
        output.value(&event.raw);
        return;
    }
    let Event { sequence, event_type, resource, created_at, .. } = event;
    let line = format!("{sequence:>8}  {created_at:<30}  {event_type:<18}  {}", resource.id);
    output.line(&printable(&format!("{line}{}", why(event))));
}

/// What the event says of its reason, if there is one.
fn why(event: &Event) -> String {
    let data = &event.raw["data"];
    match (data["error"]["message"].as_str(), data["reason"].as_str()) {
        (Some(message), _) => format!("  {message}"),
        (None, Some(reason)) => format!("  ({reason})"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reason_is_shown_where_there_is_one() {
        let event = |data| {
            let raw = json!({"sequence": 1, "type": "sandbox.deleted", "resource": {"kind": "sandbox", "id": "sbx1"},
                             "data": data, "created_at": ""});
            Event { raw: raw.clone(), ..serde_json::from_value(raw).unwrap() }
        };
        assert_eq!(why(&event(json!({"reason": "timed_out"}))), "  (timed_out)");
        assert_eq!(why(&event(json!({"error": {"code": "c", "message": "It broke"}}))), "  It broke");
        assert_eq!(why(&event(json!({}))), "");
    }
}
