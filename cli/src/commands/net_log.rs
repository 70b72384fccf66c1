//! `sandpiper net-log`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::{Client, Denied};

use crate::output::Output;

/// Show what a sandbox was kept from reaching, and by which rule
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper net-log sbx…
  sandpiper --json net-log sbx… | jq -r 'select(.protocol == \"dns\") | .host'")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let list = client.denied(&arguments.id).await?;
    if output.is_json() {
        for denied in &list.denied {
            output.value(&serde_json::to_value(denied).context("Cannot print an entry")?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if list.total == 0 && list.denied.is_empty() {
        output.line("Nothing was denied.");
        return Ok(ExitCode::SUCCESS);
    }
    let rows = list.denied.iter().map(|denied| {
        vec![
            denied.time.clone(),
            denied.protocol.clone(),
            destination(denied),
            denied.rule.clone(),
            denied.count.to_string(),
        ]
    });
    output.table(&["WHEN", "PROTOCOL", "DESTINATION", "RULE", "COUNT"], rows);
    eprintln!("{} packets and requests denied since the sandbox started", list.total);
    Ok(ExitCode::SUCCESS)
}

/// `host:port`; an IPv6 address with a port in brackets.
fn destination(denied: &Denied) -> String {
    match denied.port {
        None => denied.host.clone(),
        Some(port) if denied.host.contains(':') => format!("[{}]:{port}", denied.host),
        Some(port) => format!("{}:{port}", denied.host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_written_as_in_a_policy() {
        let denied = |host: &str, port| Denied {
            time: String::new(),
            protocol: "tcp".into(),
            host: host.into(),
            port,
            rule: String::new(),
            count: 1,
        };
        assert_eq!(destination(&denied("192.0.2.1", Some(25))), "192.0.2.1:25");
        assert_eq!(destination(&denied("2001:db8::1", Some(25))), "[2001:db8::1]:25");
        assert_eq!(destination(&denied("2001:db8::1", None)), "2001:db8::1");
        assert_eq!(destination(&denied("example.test", None)), "example.test");
    }
}
