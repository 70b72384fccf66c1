//! `sandpiper ports`

use std::process::ExitCode;

use sandpiper::client::{Client, Port};
use serde_json::json;

use crate::output::Output;

/// Show the ports of a sandbox that have a URL, or give one to a port
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper ports sbx…
  sandpiper ports sbx… --expose 8000            its URL; requests need the sandbox's access token
  sandpiper ports sbx… --expose 8000 --public   anybody who knows the URL may open it
  sandpiper ports sbx… --unexpose 8000
  sandpiper --json ports sbx… | jq -r .url      one JSON document a line")]
pub(crate) struct Arguments {
    /// The sandbox's id
    id: String,

    /// Give this port a URL
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    expose: Option<u16>,

    /// Let anybody who knows the URL open it
    #[arg(long, requires = "expose")]
    public: bool,

    /// Take its URL from this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "expose")]
    unexpose: Option<u16>,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let id = &arguments.id;
    if let Some(port) = arguments.unexpose {
        client.unexpose(id, port).await?;
        if output.is_json() {
            output.value(&json!({"port": port, "exposed": false}));
        }
        output.line(&format!("{port}"));
        return Ok(ExitCode::SUCCESS);
    }
    let ports = match arguments.expose {
        Some(port) => vec![client.expose(id, port, arguments.public).await?],
        None => client.ports(id).await?,
    };
    if output.is_json() {
        for port in &ports {
            output.value(&json!(port));
        }
    } else if ports.is_empty() {
        output.line(&format!("No port of {id} has a URL. Give one to a port with: sandpiper ports {id} --expose 8000"));
    } else {
        output.table(&["PORT", "STATUS", "ACCESS", "URL"], ports.iter().map(row));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(port: &Port) -> Vec<String> {
    let access = if port.public { "public" } else { "token" };
    vec![port.port.to_string(), port.status.clone(), access.to_owned(), port.url.clone()]
}
