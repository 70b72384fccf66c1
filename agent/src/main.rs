//! `sandpiper-agent`: runs the sandboxes of one host.
//!
//! ```text
//!              agent API (Unix socket)             data planes and previews (HTTP)
//!                       │                                        │
//!                   [server]                             sandpiper-ingress
//!                       │                                        │
//!                       └────────────▶ [service] ◀── directory ──┘
//!                                          │   ▲
//!                                          │   └── [upkeep]
//!                            [sandbox], one supervisor for each
//!                                          │
//!                         [launch], within [capacity] ◀── [helpers]
//!                                          │
//!             sandpiper-images    sandpiper-machine    sandpiper-network
//!              files on the disk   monitor, jail, link   slot
//! ```
//!
//! The agent is the source of truth of what runs here. It may be killed at any moment: sandboxes go on, and the next
//! agent takes them over by their records ([`sandbox`]).

mod bare;
mod builds;
mod capacity;
mod config;
mod data_plane;
mod helpers;
mod host;
mod intervals;
mod launch;
mod logs;
mod metrics;
mod parking;
mod paths;
mod revision;
mod samples;
mod sandbox;
mod server;
mod service;
mod turns;
mod upkeep;
mod uploads;
mod volumes;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prometheus_client::registry::Registry;
use sandpiper_durable as durable;
use sandpiper_images::layers::digest::Visits;
use sandpiper_images::layers::usage::Usage;
use sandpiper_images::snapshots::{Checkpoints, Platform, Warm};
use sandpiper_images::templates::Store;
use sandpiper_ingress::Ingress;
use sandpiper_ingress::session::Sessions;
use sandpiper_machine::pool::{self, MonitorPool};
use sandpiper_machine::{Cgroups, process};
use sandpiper_trace::Traces;
use sha2::{Digest, Sha256};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::builds::Builds;
use crate::capacity::{Allowances, Capacity};
use crate::config::{Config, LogFormat};
use crate::helpers::{Helpers, Surroundings};
use crate::intervals::Intervals;
use crate::launch::Launcher;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::parking::Parking;
use crate::paths::Paths;
use crate::revision::Revision;
use crate::samples::Samples;
use crate::sandbox::{Context, Sealer};
use crate::server::App;
use crate::service::Sandboxes;
use crate::turns::Turns;
use crate::uploads::Uploads;
use crate::volumes::Volumes;

/// A request through the ingress makes and frees many small things, at which it is faster than the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time for the rest of the agent to end after the sandboxes were seen to.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// For how long the lock of an agent that was killed may be held by a process that it was just starting.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Runs the sandboxes of this host.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// Configuration (TOML); every key has a default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,
    /// Delete every sandbox when asked to end; otherwise they go on running and the next agent takes them over
    #[arg(long)]
    stop_sandboxes_on_exit: bool,
}

const EXAMPLES: &str = "\
Examples:
  sandpiper-agent                                       run with the defaults
  sandpiper-agent --config /etc/sandpiper/agent.toml    run as configured
  sandpiper-agent --config agent.toml --check-config    say whether a configuration is valid
  curl --unix-socket /run/sandpiper/agent.sock http://agent/host
  curl --unix-socket /run/sandpiper/agent.sock http://agent/sandboxes

SIGTERM and SIGINT end the agent, a second one at once. Its sandboxes go on
unless --stop-sandboxes-on-exit is given. Logs go to standard error; RUST_LOG
chooses which (for example RUST_LOG=debug).";

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandpiper-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut config = match &arguments.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    config.stop_sandboxes_on_exit |= arguments.stop_sandboxes_on_exit;
    config.check()?;
    config.ingress.validate().context("`ingress`")?;
    config.network.check().context("`network`")?;
    if arguments.check_config {
        println!("the configuration is valid");
        return Ok(());
    }
    let traces = init_logs(config.log_format);
    raise_descriptor_limit().context("Cannot raise the limit of open files")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config, traces))
}

/// As many descriptors as the machine allows this process: connections and pidfds here, and in a monitor, which inherits
/// the limit, one for each stream of its guest. A shell's default of 1,024 is soon reached.
fn raise_descriptor_limit() -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
}

/// Begins to write logs, and to keep traces.
fn init_logs(format: LogFormat) -> Traces {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let logs = match format {
        LogFormat::Text => logs.boxed(),
        LogFormat::Json => logs.json().boxed(),
    };
    let traces = Traces::default();
    tracing_subscriber::registry()
        .with(logs.with_filter(filter.and(filter_fn(sandpiper_trace::is_no_part))))
        .with(sandpiper_trace::layer(&traces, "agent"))
        .init();
    traces
}

async fn serve(config: Config, traces: Traces) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let config = Arc::new(config);
    let for_state = Arc::clone(&config);
    let (paths, _lock) = tokio::task::spawn_blocking(move || open_state(&for_state)).await??;

    let sessions = Sessions::open(&paths.session_key(), Duration::from_secs(config.session_ttl_seconds))?;
    let sessions = Arc::new(sessions);
    let metrics = Metrics::new();
    let mut registry = Registry::with_prefix("sandpiper_agent");
    metrics.register(&mut registry);
    let (sandboxes, ordered) = Sandboxes::new(open_context(Arc::clone(&config), paths.clone(), metrics)?);
    sandboxes.reconcile().await?;
    let uploads = open_uploads(&config, &paths)?;
    sandboxes.spawn(uploads.clone().sweep(sandboxes.context().leave.clone()));
    let builds = open_builds(&sandboxes, &uploads).await?;
    upkeep::begin(&sandboxes, ordered);

    let directory = Arc::new(sandboxes.clone());
    let ingress = Ingress::bind(&config.ingress, paths.state(), directory, Arc::clone(&sessions)).await?;
    ingress.stats().register(&mut registry);
    let urls = ingress.urls();
    let socket = paths.api_socket();
    let listener = server::listen(&socket, &config.api_socket)
        .with_context(|| format!("Cannot listen on {}", socket.display()))?;
    tracing::info!(socket = %socket.display(), ingress = %ingress.address(), "the agent is ready");

    let shutdown = CancellationToken::new();
    let ingress = tokio::spawn(ingress.serve(shutdown.clone()));
    let app = App {
        config: Arc::clone(&config),
        sandboxes: sandboxes.clone(),
        builds,
        uploads,
        urls,
        sessions,
        registry,
        traces,
    };
    let api = tokio::spawn(server::serve(listener, app, shutdown.clone()));

    signals.next().await;
    tracing::info!(stop_sandboxes = config.stop_sandboxes_on_exit, "shutting down");
    let timeout = config.stop_timeout() + END_TIMEOUT;
    let orderly = async {
        sandboxes.close(config.stop_sandboxes_on_exit, timeout).await;
        if let Some(network) = sandboxes.context().network() {
            network.close().await;
        }
        shutdown.cancel();
        let _ = tokio::time::timeout(END_TIMEOUT, async { tokio::join!(ingress, api) }).await;
    };
    tokio::select! {
        () = orderly => {}
        () = signals.next() => tracing::warn!("a second signal; exiting at once"),
    }
    if let Err(error) = durable::remove_file(&socket) {
        tracing::warn!(%error, "cannot remove the agent's socket");
    }
    Ok(())
}

/// What was sent for builds.
fn open_uploads(config: &Config, paths: &Paths) -> anyhow::Result<Uploads> {
    let limits = uploads::Limits {
        most_bytes: config.builds.max_upload_mb << 20,
        headroom_mb: config.limits.disk_headroom_mb,
        keep: Duration::from_secs(config.builds.upload_keep_seconds),
    };
    Ok(Uploads::open(paths, limits)?)
}

/// Takes over the builds of an earlier agent.
async fn open_builds(sandboxes: &Sandboxes, uploads: &Uploads) -> anyhow::Result<Builds> {
    let (sandboxes, uploads) = (sandboxes.clone(), uploads.clone());
    Ok(tokio::task::spawn_blocking(move || Builds::open(&sandboxes, uploads)).await??)
}

/// Opens everything that sandboxes need.
fn open_context(config: Arc<Config>, paths: Paths, metrics: Metrics) -> anyhow::Result<Context> {
    let boot_id = process::boot_id().context("Cannot read the kernel's boot id")?;
    let memory = host::memory().context("Cannot read the host's memory")?;
    let templates = Store::open(&paths.templates())?;
    let keeps_warm = config.warm.enabled || config.warm.bare;
    let most_warm = if keeps_warm { config.warm.max as usize } else { 0 };
    let warm = Warm::open(&paths.warm(), platform(&config), most_warm, |version| templates.find_any(version))?;
    let cgroups = Cgroups::open(&agent_name(&paths)).context("Cannot look for cgroups")?;
    let allowances = Allowances::open(&paths.allowances()).context("Cannot read allowances.json")?;
    let pool = pool::Config {
        program: config.vmm.clone(),
        per_shape: config.monitor_pool.per_shape as usize,
        is_jailed: config.jail.enabled,
        uid_base: config.jail.uid_base,
        state: paths.monitors(),
        runtime: paths.runtime_monitors(),
    };
    let monitors = MonitorPool::new(pool, boot_id.clone(), cgroups);
    let launcher = Arc::new(Launcher::new(Arc::clone(&config), monitors, metrics.disk().clone()));
    let capacity = Capacity::new(config.limits, memory.total_mb, allowances.clone());
    let volumes = Volumes::new(sandpiper_images::volumes::Volumes::open(&paths.volumes())?);
    let parking = Parking::new(config.parking, capacity.clone());
    let leave = CancellationToken::new();
    let helpers = Helpers::new(Surroundings {
        config: Arc::clone(&config),
        paths: paths.clone(),
        launcher: Arc::clone(&launcher),
        capacity: capacity.clone(),
        templates: templates.clone(),
        volumes: volumes.clone(),
        leave: leave.clone(),
    });
    Ok(Context {
        templates,
        warm,
        parking,
        turns: Turns::of_this_host(),
        launcher,
        volumes,
        helpers,
        checkpoints: Checkpoints::open(&paths.checkpoints())?,
        capacity,
        allowances,
        usage: Usage::default(),
        logs: Logs::new(config.logs.bounds()).context("Cannot start the thread that writes logs")?,
        samples: Samples::default(),
        intervals: Intervals::open(paths.intervals()).context("Cannot open the journal of intervals")?,
        metrics,
        sealer: Sealer::open(&paths.record_key()).context("Cannot read record.key")?,
        boot_id,
        visits: Visits::default(),
        changed: watch::Sender::default(),
        revision: Revision::default(),
        root_disks: watch::Sender::default(),
        leave,
        config,
        paths,
    })
}

/// What machines are made with, as far as it decides which warm snapshot fits.
fn platform(config: &Config) -> Platform {
    Platform {
        kernel: config.kernel.clone(),
        kernel_args: config.kernel_args.clone(),
        monitor: config.vmm.clone(),
        console: config.console,
        network: config.network.enabled,
    }
}

/// Tells the cgroups of several agents of one host apart: each has a state folder of its own.
fn agent_name(paths: &Paths) -> String {
    let hash = Sha256::digest(paths.state().as_os_str().as_bytes());
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the folders and locks them for this one agent. Blocks.
fn open_state(config: &Config) -> anyhow::Result<(Paths, Flock<std::fs::File>)> {
    let paths = Paths::new(&config.state_dir, &config.runtime_dir);
    let create = || format!("Cannot create {} and {}", config.state_dir.display(), config.runtime_dir.display());
    paths.create().with_context(create)?;
    // Monitors are recognized by the path of their sandbox's folder, so it must be the same however it is spelt.
    let canonical = |path: &Path| path.canonicalize().with_context(|| format!("Cannot resolve {}", path.display()));
    let paths = Paths::new(&canonical(&config.state_dir)?, &config.runtime_dir);
    let lock = paths.lock();
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
    let mut file = opened.with_context(|| format!("Cannot open {}", lock.display()))?;
    let give_up_at = Instant::now() + LOCK_PATIENCE;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok((paths, lock)),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < give_up_at => file,
            Err((_, Errno::EWOULDBLOCK)) => anyhow::bail!(
                "another agent runs on {}; end it first, or choose another state_dir and runtime_dir",
                config.state_dir.display()
            ),
            Err((_, errno)) => return Err(errno).with_context(|| format!("Cannot lock {}", lock.display())),
        };
        thread::sleep(LOCK_PAUSE);
    }
}

/// The signals that end the agent.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
