//! A new sandbox: what `run` and `checkpoint restore` share.

use anyhow::Context;
use sandpiper::client::{Client, CreateSandbox, ExposedPort, Lifecycle, NetworkPolicy, OnTimeout, Sandbox, Session};

use crate::output::Output;

/// What the new sandbox should be like.
#[derive(clap::Args)]
pub(crate) struct StartArguments {
    /// Seconds until the sandbox is destroyed, or paused with `--on-timeout`, whatever it does
    #[arg(long)]
    timeout: Option<u64>,

    /// What happens then
    #[arg(long, value_name = "ACTION")]
    on_timeout: Option<AtDeadline>,

    /// Have the paused sandbox resumed by a request to it, such as `exec` or one to its preview
    #[arg(long, requires = "on_timeout")]
    auto_resume: bool,

    /// Virtual CPUs
    #[arg(long)]
    cpu: Option<u32>,

    /// Memory in MiB
    #[arg(long)]
    memory: Option<u32>,

    /// Give a port of the sandbox a public preview URL
    #[arg(long, value_name = "PORT")]
    expose: Vec<u16>,

    /// Mount a volume at a path of the sandbox; none that another sandbox has
    #[arg(long, value_name = "NAME:/PATH", value_parser = parse_mount)]
    volume: Vec<(String, String)>,

    /// Keep what its processes write in its log too: `sandpiper logs`
    #[arg(long)]
    capture_output: bool,

    #[command(flatten)]
    network: NetworkArguments,
}

/// The name of a volume, and where it is to be mounted.
pub(crate) fn parse_mount(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => Ok((name.to_owned(), path.to_owned())),
        _ => Err("write it as NAME:/PATH".to_owned()),
    }
}

/// What it may reach: the Internet, unless these say otherwise.
#[derive(clap::Args)]
pub(crate) struct NetworkArguments {
    /// Let it reach nothing but what is allowed by other options
    #[arg(long)]
    no_internet: bool,

    /// Let it reach this: host, *.host, address or CIDR, with an optional :port
    #[arg(long, value_name = "ENTRY")]
    allow_out: Vec<String>,

    /// Keep it from reaching this, unless it is allowed by --allow-out
    #[arg(long, value_name = "ENTRY")]
    deny_out: Vec<String>,

    /// Let it reach what one of the operator's lists names
    #[arg(long, value_name = "PROFILE")]
    egress_profile: Vec<String>,

    /// Let it reach package registries, as the operator listed them
    #[arg(long)]
    package_registries: bool,
}

impl NetworkArguments {
    /// None where nothing is said.
    pub(crate) fn policy(&self) -> Option<NetworkPolicy> {
        let policy = NetworkPolicy {
            allow_internet_access: !self.no_internet,
            allow_package_registry_access: self.package_registries,
            allow_out: self.allow_out.clone(),
            deny_out: self.deny_out.clone(),
            egress_profiles: self.egress_profile.clone(),
        };
        (policy != NetworkPolicy::default()).then_some(policy)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AtDeadline {
    /// Destroy it with its disk
    Kill,
    /// Stop it and keep its disk, memory and processes
    Pause,
    /// Stop it and keep its disk alone, from which it boots when it goes on
    PauseDisk,
}

/// What it starts from.
pub(crate) enum Origin {
    Template(String),
    /// Id of a checkpoint.
    Snapshot(String),
}

impl StartArguments {
    /// Whether the sandbox outlives its deadline.
    pub(crate) fn pauses(&self) -> bool {
        self.on_timeout.is_some_and(|action| action != AtDeadline::Kill)
    }

    /// Starts the sandbox, and tells a person the URLs of its ports.
    pub(crate) async fn start(
        &self,
        origin: Origin,
        client: &Client,
        output: Output,
    ) -> anyhow::Result<(Sandbox, Session)> {
        let request = self.request(origin);
        let progress = output.progress("starting a sandbox");
        let (sandbox, session) = client.create(&request).await?;
        drop(progress);
        for port in &self.expose {
            let shown = client.port(&sandbox.id, *port).await;
            let url = shown.with_context(|| format!("{} runs, but port {port} has no URL", sandbox.id))?.url;
            if !output.is_json() {
                eprintln!("port {port}: {url}");
            }
        }
        Ok((sandbox, session))
    }

    fn request(&self, origin: Origin) -> CreateSandbox {
        let (template, snapshot_id) = match origin {
            Origin::Template(template) => (Some(template), None),
            Origin::Snapshot(id) => (None, Some(id)),
        };
        let lifecycle = self.on_timeout.map(|action| Lifecycle {
            on_timeout: match action {
                AtDeadline::Kill => OnTimeout::Kill,
                AtDeadline::Pause | AtDeadline::PauseDisk => OnTimeout::Pause,
            },
            auto_resume: self.auto_resume,
            pause_memory: action != AtDeadline::PauseDisk,
        });
        CreateSandbox {
            template,
            snapshot_id,
            timeout: self.timeout,
            lifecycle,
            cpu: self.cpu,
            memory_mb: self.memory,
            exposed_ports: self.expose.iter().copied().map(ExposedPort::public).collect(),
            volume_mounts: self.volume.iter().map(|(name, path)| (path.clone(), name.clone())).collect(),
            capture_output: self.capture_output,
            network: self.network.policy(),
            ..CreateSandbox::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        start: StartArguments,
    }

    fn request(line: &[&str], origin: Origin) -> Value {
        let line = Line::parse_from(std::iter::once(&"x").chain(line));
        serde_json::to_value(line.start.request(origin)).unwrap()
    }

    #[test]
    fn what_is_not_said_is_left_to_the_api() {
        assert_eq!(request(&[], Origin::Template("base".into())), json!({"template": "base"}));
        assert_eq!(request(&[], Origin::Snapshot("ckp1".into())), json!({"snapshot_id": "ckp1"}));
    }

    #[test]
    fn volumes_are_mounted_by_their_names() {
        let asked = request(&["--volume", "models:/data", "--volume", "x:/y"], Origin::Template("base".into()));
        assert_eq!(asked["volume_mounts"], json!({"/data": "models", "/y": "x"}));
        for text in ["models", "models:data", ":/data"] {
            assert!(Line::try_parse_from(["x", "--volume", text]).is_err(), "{text}");
        }
    }

    #[test]
    fn the_log_has_the_output_where_that_is_asked_for() {
        let asked = request(&["--capture-output"], Origin::Template("base".into()));
        assert_eq!(asked, json!({"template": "base", "capture_output": true}));
    }

    #[test]
    fn the_end_of_the_time_can_be_a_pause() {
        let asked = request(&["--timeout", "60", "--on-timeout", "pause"], Origin::Template("base".into()));
        let lifecycle = json!({"on_timeout": "pause", "auto_resume": false, "pause_memory": true});
        assert_eq!(asked, json!({"template": "base", "timeout": 60, "lifecycle": lifecycle}));
        let asked = request(&["--on-timeout", "pause", "--auto-resume"], Origin::Template("base".into()));
        assert_eq!(asked["lifecycle"]["auto_resume"], true);
        assert!(Line::try_parse_from(["x", "--auto-resume"]).is_err());
    }

    #[test]
    fn the_pause_can_keep_the_disk_alone() {
        let line = ["--on-timeout", "pause-disk", "--auto-resume"];
        let lifecycle = json!({"on_timeout": "pause", "auto_resume": true, "pause_memory": false});
        assert_eq!(request(&line, Origin::Template("base".into()))["lifecycle"], lifecycle);
        assert!(Line::parse_from(std::iter::once("x").chain(line)).start.pauses());
    }

    #[test]
    fn what_it_may_reach_is_said_as_a_whole_or_not_at_all() {
        let line = ["--no-internet", "--allow-out", "a.test", "--allow-out", "b.test", "--egress-profile", "weather"];
        assert_eq!(
            request(&line, Origin::Template("base".into())),
            json!({
                "template": "base", "allow_internet_access": false, "allow_package_registry_access": false,
                "allow_out": ["a.test", "b.test"], "deny_out": [], "egress_profiles": ["weather"],
            })
        );
    }
}
