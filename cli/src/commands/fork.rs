//! `sandpiper fork`

use std::process::ExitCode;

use sandpiper::client::Client;

use crate::output::Output;

/// Make new sandboxes that go on from where one is, with its processes and files; print their ids
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper fork sbx…
  sandpiper fork -n 5 sbx… | xargs -I{} sandpiper exec {} -- ./try-something")]
pub(crate) struct Arguments {
    /// The sandbox to copy, which goes on too, or stays paused
    id: String,

    /// How many, all of them or none
    #[arg(long, short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    count: u32,
}

pub(crate) async fn run(arguments: Arguments, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    let progress = output.progress(&format!("forking {}", arguments.id));
    let forked = client.fork(&arguments.id, arguments.count).await?;
    drop(progress);
    for (sandbox, _) in forked {
        if output.is_json() {
            output.value(&sandbox.raw);
        }
        output.line(&sandbox.id);
    }
    Ok(ExitCode::SUCCESS)
}
