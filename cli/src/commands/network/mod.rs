//! `sandpiper network`

mod change;
mod explain;
mod policy_file;
mod set;
mod show;

use std::process::ExitCode;

use sandpiper::client::Client;

use crate::output::Output;

/// Exit status where something given is wrong and so nothing was done, as for a command line that cannot be read.
const BAD_INPUT: u8 = 2;

/// Say what a sandbox may reach
#[derive(clap::Subcommand)]
#[command(after_help = "\
An ENTRY is a host (api.example.com), all names below one but not itself (*.example.com), an address or a CIDR, each \
with an optional :port, without which ICMP is meant as well.

The first that has something to say decides: protected ranges and localhost are denied, then what is allowed, what is \
denied, the profiles, and whether the Internet is on. Protected are the host itself, private and link-local addresses \
and the like, but for ranges that the operator opened: these are as the Internet. Besides:

- UDP to port 443 is never opened for a name's sake: QUIC hides the name.
- While a name is denied, ports 53 and 853 of other resolvers are, too, unless an entry allows them.
- 0.0.0.0/0, or ranges that add up to it, stands for every name as well; all of IPv6 is ::/0.

Examples:
  sandpiper network show sbx…
  sandpiper network set sbx… --internet off --allow api.example.com:443
  sandpiper network deny sbx… '*.example.org' 198.51.100.0/24
  sandpiper network explain --policy policy.json tcp:api.example.com:443
  sandpiper net-log sbx…                        what it was kept from reaching")]
pub(crate) enum NetworkCommand {
    Show(show::Arguments),
    Set(set::Arguments),
    Allow(change::AllowArguments),
    Deny(change::DenyArguments),
    Explain(explain::Arguments),
}

/// `client` is asked for by what talks to a host.
pub(crate) async fn run(
    command: NetworkCommand,
    client: impl FnOnce() -> anyhow::Result<Client>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        NetworkCommand::Show(arguments) => show::run(&arguments, &client()?, output).await?,
        NetworkCommand::Set(arguments) => return set::run(&arguments, &client()?, output).await,
        NetworkCommand::Allow(arguments) => change::allow(&arguments, &client()?, output).await?,
        NetworkCommand::Deny(arguments) => change::deny(&arguments, &client()?, output).await?,
        NetworkCommand::Explain(arguments) => return Ok(explain::run(&arguments, output)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells what is wrong with what was given.
fn bad_input(error: &anyhow::Error, output: Output) -> ExitCode {
    output.report(error);
    ExitCode::from(BAD_INPUT)
}
