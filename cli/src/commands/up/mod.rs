//! `sandpiper up`: a whole host in the foreground.
//!
//! ```text
//!   check ─▶ write configurations ─▶ agent ─▶ templates ─▶ API ─▶ first keys ─▶ "ready" ─▶ (until interrupted)
//! ```
//!
//! Both processes are started again when they end by themselves; the agent finds its sandboxes again, so none is lost.
//! When this process is interrupted both are asked to end, and when it is killed the kernel asks them.

mod configuration;
pub(crate) mod egress_profiles;
mod nested;
pub(crate) mod pause;
mod service;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use sandpiper_protocol::agent::{ImportTemplate, RuntimeBaseline, TemplateVersion};
use sandpiper_protocol::template::BUILDER_TEMPLATE;
use sandpiper_protocol::volume::HELPER_TEMPLATE;
use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use self::service::{Rank, Service};
use crate::agent_socket::AgentSocket;
use crate::credentials::Credentials;
use crate::doctor::{Rung, sibling};
use crate::output::Output;

pub(crate) const STATE_DIR: &str = "/var/lib/sandpiper";

/// How long each process may take to respond; generous, as software emulation is slow.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Start a host here: agent, API, templates; print its URL, and its first keys once
#[derive(clap::Args, Clone)]
#[command(after_help = "\
Examples:
  sandpiper up                     as root, on a machine with KVM
  sandpiper up --nested            in a virtual machine in software, where KVM cannot run Linux
  sandpiper up --tls               previews and data planes over HTTPS with a CA of this host's own

Stop it with Ctrl-C. Sandboxes keep running and are found again by the next `up`; with --nested, where they
cannot, they are paused first. With --stop-sandboxes-on-exit they are destroyed.")]
pub(crate) struct Arguments {
    /// Where the host keeps its data
    #[arg(long, default_value = STATE_DIR)]
    pub(crate) state_dir: PathBuf,

    /// Where its sockets are
    #[arg(long, default_value = "/run/sandpiper")]
    pub(crate) runtime_dir: PathBuf,

    /// Address of the API
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub(crate) listen: SocketAddr,

    /// Address of data planes and previews
    #[arg(long, default_value = "127.0.0.1:7080")]
    pub(crate) data_plane_listen: SocketAddr,

    /// Host name below which each sandbox has its own
    #[arg(long, default_value = "sandbox.localhost")]
    pub(crate) data_plane_host: String,

    /// HTTPS for data planes and previews, with a local CA
    #[arg(long)]
    pub(crate) tls: bool,

    /// The guest kernel's vmlinux; the one that kernel-config/build made last otherwise
    #[arg(long)]
    pub(crate) kernel: Option<PathBuf>,

    /// The base template's image; the one that scripts/base-template made last otherwise
    #[arg(long)]
    pub(crate) template: Option<PathBuf>,

    /// The image of the guests that read and write volumes; the one that scripts/volume-helper made last otherwise
    #[arg(long)]
    pub(crate) volume_helper: Option<PathBuf>,

    /// The image of the guests that build templates; the one that scripts/builder-template made last otherwise
    #[arg(long)]
    pub(crate) builder: Option<PathBuf>,

    /// Give guests a serial console and keep what they print in their logs: slower starts
    #[arg(long)]
    pub(crate) console: bool,

    /// Settings of the agent, TOML, merged over what this command writes
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_settings: Option<PathBuf>,

    /// Settings of the API, TOML, merged over what this command writes
    #[arg(long, value_name = "FILE")]
    pub(crate) api_settings: Option<PathBuf>,

    /// Destroy all sandboxes at the end
    #[arg(long)]
    pub(crate) stop_sandboxes_on_exit: bool,

    /// Pause all sandboxes at the end, where they would not outlive it; --nested does
    #[arg(long, conflicts_with = "stop_sandboxes_on_exit")]
    pub(crate) pause_sandboxes_on_exit: bool,

    /// Run all of this in the nested host
    #[arg(long)]
    nested: bool,

    /// Do not check KVM first
    #[arg(long, hide = true)]
    skip_checks: bool,
}

pub(crate) async fn run(arguments: Arguments, output: Output) -> anyhow::Result<ExitCode> {
    if arguments.nested {
        return nested::run(&arguments, output).await;
    }
    if !arguments.skip_checks {
        match Rung::find() {
            Rung::Direct => {}
            rung => bail!("{rung}. Use the nested host instead: sandpiper up --nested"),
        }
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("A host needs root, for its agent. Run: sudo sandpiper up");
    }
    let files = configuration::write(&arguments)?;
    if let Some(profiles) = &files.profiles {
        egress_profiles::ensure(profiles).await?;
    }
    let mut stop = StopSignals::new()?;

    let agent_arguments = vec!["--config".into(), files.agent.clone().into_os_string()];
    let agent = Service::start("sandpiper-agent", program("sandpiper-agent")?, agent_arguments, None, Rank::Usual);
    let socket = AgentSocket::new(&files.agent_socket);
    let progress = output.progress("starting the agent");
    let ready = wait_until("the agent", || async { socket.is_up().await });
    let ended = tokio::select! { ready = ready => ready, () = stop.recv() => Ok(false) };
    drop(progress);
    if !ended? {
        agent.stop().await;
        return Ok(ExitCode::SUCCESS);
    }

    let progress = output.progress("importing the templates (once per image)");
    let image = arguments.template.clone().or_else(default_template);
    let image =
        image.context("There is no base template: build it with scripts/base-template, or name one with --template")?;
    import("base", &image, RuntimeBaseline { cpu: 1, memory_mb: 512 }, &socket).await?;
    let helper = arguments.volume_helper.clone().or_else(default_volume_helper);
    if let Some(image) = &helper {
        import(HELPER_TEMPLATE, image, RuntimeBaseline { cpu: 1, memory_mb: 256 }, &socket).await?;
    }
    let builder = arguments.builder.clone().or_else(default_builder);
    if let Some(image) = &builder {
        import(BUILDER_TEMPLATE, image, RuntimeBaseline { cpu: 1, memory_mb: 1024 }, &socket).await?;
    }
    drop(progress);
    if builder.is_none() {
        output.line("There is no image for the guests that build templates: none can be built. Make it with scripts/builder-template");
    }
    if helper.is_none() {
        output.line("There is no image for the guests that make and serve volumes: sandboxes can have none. Build it with scripts/volume-helper");
    }

    let api_arguments = vec!["serve".into(), "--config".into(), files.api.clone().into_os_string()];
    let (program, user) = (files.api_program.clone(), Some(files.api_user));
    let api = Service::start("sandpiper-api", program, api_arguments, user, Rank::First);
    let url = format!("http://{}", reachable(arguments.listen));
    let progress = output.progress("starting the API");
    // It lives as long as this function: a connection that it kept would be open for nothing.
    let probe =
        reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(Duration::from_secs(5)).build()?;
    let health = format!("{url}/healthz");
    let ready = wait_until("the API", || async {
        probe.get(&health).send().await.is_ok_and(|response| response.status().is_success())
    });
    let ended = tokio::select! { ready = ready => ready, () = stop.recv() => Ok(false) };
    drop(progress);
    if ended? {
        let ca = arguments.tls.then(|| arguments.state_dir.join(format!("ca/{}.pem", arguments.data_plane_host)));
        let keys = ensure_keys(&url, &files, ca).await?;
        announce(&arguments, &url, &keys, output);
        stop.recv().await;
    }
    output.line("stopping");
    if arguments.pause_sandboxes_on_exit {
        // First, so that nobody starts another.
        api.stop().await;
        pause::all(&socket, &mut stop).await;
        agent.stop().await;
    } else {
        tokio::join!(api.stop(), agent.stop());
    }
    Ok(ExitCode::SUCCESS)
}

/// Keys that were made by this start; those of earlier ones are in the credentials.
#[derive(Debug, Default, Deserialize)]
struct NewKeys {
    api_key: Option<String>,
    operator_key: Option<String>,
    /// For the first user: a link to the dashboard, good for one use.
    invitation: Option<String>,
}

impl NewKeys {
    /// Puts them into the credentials for this host, beside what else is there for it.
    fn store(&self, url: &str, ca: Option<PathBuf>) -> anyhow::Result<()> {
        let (api_key, operator_key) = match stored_for(url, ca.as_deref())? {
            Some(stored) => (Some(stored.api_key), stored.operator_key),
            None => (None, None),
        };
        let Some(api_key) = self.api_key.clone().or(api_key) else { return Ok(()) };
        let operator_key = self.operator_key.clone().or(operator_key);
        Credentials { url: url.to_owned(), api_key, operator_key, ca }.store()?;
        Ok(())
    }
}

fn stored_for(url: &str, ca: Option<&Path>) -> anyhow::Result<Option<Credentials>> {
    Ok(Credentials::load()?.filter(|stored| stored.url == url && stored.ca.as_deref() == ca))
}

fn announce(arguments: &Arguments, url: &str, keys: &NewKeys, output: Output) {
    let NewKeys { api_key, operator_key, invitation } = keys;
    if output.is_json() {
        let host = &arguments.data_plane_host;
        output.value(&json!({
            "event": "ready", "url": url, "api_key": api_key, "operator_key": operator_key, "invitation": invitation,
            "data_plane_host": host,
        }));
        return;
    }
    output.line(&format!("\nSandpiper is up at {url}   (API reference: {url}/docs)"));
    for (what, key) in [("API key", api_key), ("Operator key, for /operator", operator_key)] {
        match key {
            Some(key) => output.line(&format!("{what}, shown this once: {key}")),
            None => output.line(&format!("{what}: in your credentials file, from an earlier start.")),
        }
    }
    if api_key.is_some() {
        output.line("They are also in your credentials file, where this command finds the API key.");
    }
    match invitation {
        Some(link) => output.line(&format!("Dashboard, for its first user, good for one use: {link}")),
        None => output.line(&format!("Dashboard: {}", dashboard(url))),
    }
    output.line("\nTry, in another terminal:\n  sandpiper run -- python3 -c 'print(\"hello from a microVM\")'\n");
}

/// Gives a template to the agent. The name of a built image holds its build's key: one that the agent has is not read again.
async fn import(slug: &str, image: &Path, baseline: RuntimeBaseline, agent: &AgentSocket) -> anyhow::Result<()> {
    let image = image.canonicalize().with_context(|| format!("Cannot read {}", image.display()))?;
    let key = image.file_stem().map(|name| name.to_string_lossy().into_owned());
    let request = ImportTemplate {
        slug: slug.to_owned(),
        image: image.to_string_lossy().into_owned(),
        key: key.filter(|key| key.starts_with(&format!("{slug}-"))),
        baseline,
    };
    let imported = agent.post::<TemplateVersion>("/templates", &request).await;
    imported.with_context(|| format!("Cannot import the template `{slug}`"))?;
    Ok(())
}

/// Makes the keys that the credentials do not have, or that the API does not take any more, and stores them there.
async fn ensure_keys(url: &str, files: &configuration::Files, ca: Option<PathBuf>) -> anyhow::Result<NewKeys> {
    let (mut is_known, mut is_operator_known) = (false, false);
    if let Some(stored) = stored_for(url, ca.as_deref())? {
        let client = sandpiper::client::Client::new(url, &stored.api_key, None)?;
        is_known = client.call(reqwest::Method::GET, "/sandbox_limits", None).await.is_ok();
        // They are of one database, and known or unknown together.
        is_operator_known = is_known && stored.operator_key.is_some();
    }
    let mut keys = NewKeys::default();
    if !is_known {
        keys.api_key = Some(service::create_api_key(files).await?);
        keys.invitation = Some(format!("{}/join#{}", dashboard(url), service::invite_owner(files).await?));
    }
    if !is_operator_known {
        keys.operator_key = Some(service::create_operator_key(files).await?);
    }
    keys.store(url, ca)?;
    Ok(keys)
}

/// Where the dashboard is: on this machine under the name from which every browser takes a secure cookie without TLS.
fn dashboard(url: &str) -> String {
    format!("{}/dashboard", url.replace("http://127.0.0.1:", "http://localhost:"))
}

/// The address that a client on this machine uses for a listener.
fn reachable(listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], listen.port())) } else { listen }
}

/// Asks until the answer is yes.
async fn wait_until<F: Future<Output = bool>>(what: &str, ask: impl Fn() -> F) -> anyhow::Result<bool> {
    let deadline = tokio::time::Instant::now() + START_TIMEOUT;
    while tokio::time::Instant::now() < deadline {
        if ask().await {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{what} did not respond within {} s; its messages above say why", START_TIMEOUT.as_secs())
}

fn program(name: &str) -> anyhow::Result<PathBuf> {
    sibling(name).with_context(|| format!("{name} is not beside this program; build all with scripts/build"))
}

/// Ctrl-C, `kill`, or a terminal that went away.
struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The kernel that was built last on this machine.
pub(crate) fn default_kernel() -> Option<PathBuf> {
    newest(&cache().join("kernel"), |path| path.join("vmlinux"))
}

/// The base image that was built last on this machine.
pub(crate) fn default_template() -> Option<PathBuf> {
    newest_image("base-")
}

/// The image of the volume helper that was built last on this machine.
pub(crate) fn default_volume_helper() -> Option<PathBuf> {
    newest_image("volume-helper-")
}

/// The image of the builder that was built last on this machine.
pub(crate) fn default_builder() -> Option<PathBuf> {
    newest_image("builder-")
}

fn newest_image(prefix: &str) -> Option<PathBuf> {
    newest(&cache().join("templates"), |path| {
        let is_one = path.extension().is_some_and(|end| end == "ext4")
            && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        if is_one { path.to_owned() } else { PathBuf::new() }
    })
}

/// Where the build scripts keep what they built.
fn cache() -> PathBuf {
    std::env::var_os("SANDPIPER_CACHE").map_or_else(|| PathBuf::from("/var/cache/sandpiper"), PathBuf::from)
}

/// Of the files that `pick` makes of the folder's entries, the one changed last.
fn newest(folder: &Path, pick: impl Fn(&Path) -> PathBuf) -> Option<PathBuf> {
    let changed =
        |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(pick(&entry.ok()?.path())))
        .filter(|path| path.is_file())
        .max_by_key(changed)
}
