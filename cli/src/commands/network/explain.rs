//! `sandpiper network explain`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use ipnet::IpNet;
use sandpiper_policy::{Destination, Entry, PACKAGE_REGISTRIES, Platform, Policy, PolicyError, Profiles, Target};
use sandpiper_protocol::agent::NetworkPolicy;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{bad_input, policy_file};
use crate::output::Output;

const GIVE_PROFILES: &str = "give the host's file of profiles with --profiles";

/// Say what a policy allows and denies, and by which of its rules, without any host
#[derive(clap::Args)]
#[command(after_help = "\
A DEST is tcp:HOST:PORT, udp:HOST:PORT or icmp:HOST, where HOST is a name or an address; IPv6 with
a port has brackets. About a name, the answer is that of a host's resolver, firewall and proxy
together, as far as it does not depend on the addresses that the name has. `sandpiper network
--help` says what the rules are.

What no file says is not regarded: a policy that names profiles, or allows package registries, needs
the host's file of them (--profiles), and ranges of the operator's are given by --allow-range and
--deny-range.

Exit status: 0 when every DEST was decided, 2 when something given is wrong.

Examples:
  sandpiper network explain --policy policy.json tcp:api.example.com:443 icmp:198.51.100.7
  sandpiper network explain --policy policy.toml --profiles profiles.json 'tcp:[2001:db8::7]:22'
  sandpiper --json network show sbx… | sandpiper network explain --policy - udp:198.51.100.53:53")]
pub(crate) struct Arguments {
    /// The policy, with the fields that the API takes, in JSON or TOML; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,

    /// The operator's profiles, JSON or TOML; without them there are none
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,

    /// A protected range that the operator opens (allow_ranges): policy and default decide about it
    #[arg(long, value_name = "CIDR", value_parser = range)]
    allow_range: Vec<IpNet>,

    /// A range that the operator protects in addition (deny_ranges)
    #[arg(long, value_name = "CIDR", value_parser = range)]
    deny_range: Vec<IpNet>,

    /// What to decide about
    #[arg(required = true, value_name = "DEST")]
    destinations: Vec<String>,
}

/// A policy as the API takes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    allow_internet_access: Option<bool>,
    allow_package_registry_access: Option<bool>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    egress_profile: Option<String>,
    egress_profiles: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Answer<'a> {
    /// As it was given.
    destination: &'a str,
    verdict: String,
    rule: String,
}

struct Explanation<'a> {
    answers: Vec<Answer<'a>>,
    /// Something that the policy seems to say and does not.
    hint: Option<String>,
}

pub(super) fn run(arguments: &Arguments, output: Output) -> ExitCode {
    let Explanation { answers, hint } = match explain(arguments) {
        Ok(explanation) => explanation,
        Err(error) => return bad_input(&error, output),
    };
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    if output.is_json() {
        output.value(&json!(answers));
    }
    for Answer { destination, verdict, rule } in answers {
        output.line(&format!("{verdict:5}  {destination}  {rule}"));
    }
    ExitCode::SUCCESS
}

fn explain(arguments: &Arguments) -> anyhow::Result<Explanation<'_>> {
    let body = Value::Object(policy_file::read(&arguments.policy)?);
    let body: Body = serde_path_to_error::deserialize(body)
        .with_context(|| format!("{} is not a policy", arguments.policy.display()))?;
    let given = NetworkPolicy::from(body);
    let profiles = arguments.profiles.as_deref().map(Profiles::read).transpose()?.unwrap_or_default();
    let platform = Platform { allow: arguments.allow_range.clone(), deny: arguments.deny_range.clone() };
    let policy = match Policy::compile(&given, &profiles, &platform) {
        Ok(policy) => policy,
        Err(error @ PolicyError::UnknownProfile { .. }) if arguments.profiles.is_none() => {
            return Err(anyhow::Error::from(error).context(GIVE_PROFILES));
        }
        Err(error) => return Err(error.into()),
    };
    let decide = |text| {
        let decision = policy.decide(&str::parse::<Destination>(text)?);
        Ok(Answer { destination: text, verdict: decision.verdict.to_string(), rule: decision.rule.to_string() })
    };
    let answers = arguments.destinations.iter().map(String::as_str).map(decide).collect::<anyhow::Result<_>>()?;
    let opens_nothing = given.allow_package_registry_access && profiles.get(PACKAGE_REGISTRIES).is_none();
    let hint = opens_nothing.then(|| {
        let advice = match &arguments.profiles {
            Some(path) => format!("{} has no profile {PACKAGE_REGISTRIES}", path.display()),
            None => GIVE_PROFILES.to_owned(),
        };
        format!("allow_package_registry_access opens nothing here: {advice}")
    });
    Ok(Explanation { answers, hint })
}

impl From<Body> for NetworkPolicy {
    fn from(body: Body) -> Self {
        let default = Self::default();
        let profiles = body.egress_profiles.unwrap_or_default();
        Self {
            allow_internet_access: body.allow_internet_access.unwrap_or(default.allow_internet_access),
            allow_package_registry_access: body
                .allow_package_registry_access
                .unwrap_or(default.allow_package_registry_access),
            allow_out: body.allow_out.unwrap_or_default(),
            deny_out: body.deny_out.unwrap_or_default(),
            egress_profiles: body.egress_profile.into_iter().chain(profiles).collect(),
        }
    }
}

fn range(text: &str) -> anyhow::Result<IpNet> {
    match text.parse()? {
        Entry { target: Target::Net(net), port: None } => Ok(net),
        _ => anyhow::bail!("write an address or a range without a port, as 10.1.0.0/16"),
    }
}
