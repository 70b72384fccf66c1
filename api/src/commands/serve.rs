//! `sandpiper-api serve`

use std::io::IsTerminal;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use sandpiper_db::secrets::Vault;
use sandpiper_db::sole::Sole;
use sandpiper_db::{DatabaseLocation, chain};
use sandpiper_http::clock::Clock;
use sandpiper_http::{listener, metrics};
use sandpiper_ingress::ListenerTls;
use sandpiper_payments::delivery::Outside;
use sandpiper_payments::delivery::retention::Retention;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::state::prune_rate_limits;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing_subscriber::EnvFilter;

use super::open_database;
use crate::config::Config;
use crate::dispatch::network::PolicyWorker;
use crate::dispatch::sync::Synchronizer;
use crate::privileges;
use crate::service::Service;
use crate::state::App;
use crate::store::{Store, processes};

/// How long the end waits for starts of sandboxes that are under way. What is not finished then is settled by the
/// synchronisation after the next start.
const FINISH_STARTS: Duration = Duration::from_secs(10);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Serves until a signal.
pub fn run(config: Config) -> anyhow::Result<()> {
    let log = EnvFilter::try_from_env("SANDPIPER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).with_ansi(colours).init();

    // In this order: a low port may need root, nothing after it does, and threads come last because a process gives up its
    // rights as a whole only while it has one.
    let listener = TcpListener::bind(config.listen).with_context(|| format!("Cannot listen on {}", config.listen))?;
    let metrics = metrics::bind(config.metrics_listen, listener.local_addr()?)
        .context("Cannot listen on the address of metrics_listen")?;
    for listener in [&listener, &metrics] {
        listener.set_nonblocking(true)?;
    }
    privileges::give_up(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config, listener, metrics))
}

async fn serve(config: Config, listener: TcpListener, metrics: TcpListener) -> anyhow::Result<()> {
    let vault = || Vault::open(&config.secrets_key_file());
    let (sandboxes_vault, payments_vault) = (vault()?, vault()?);
    // Reads and writes files, before anything is served.
    let tls = ListenerTls::open(&config.tls, &config.state_dir, &config.host).context("Setting tls")?;
    let acceptor = tls.as_ref().map(ListenerTls::acceptor).transpose()?;
    let database = open_database(&config.database()).await?;
    let clock = Clock::system();
    let store = Store::new(database.clone());
    let (agent, _sole) = join(&config, &store, &clock).await?;

    let address = listener.local_addr()?;
    let metrics_address = metrics.local_addr()?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let metrics = tokio::net::TcpListener::from_std(metrics)?;
    let outside = Outside::system(&config.webhooks)?;
    let app = App::new(config.sandboxes(), store.clone(), sandboxes_vault, clock.clone());
    let payments_store = sandpiper_payments::store::Store::new(database.clone());
    let payments = sandpiper_payments::state::App::new(config.payments(), payments_store, payments_vault, clock);
    let service = Service::new(database.clone(), Some(app.clone()), Some(payments.clone()));
    let (stop, stopped) = watch::channel(false);
    let webhooks = tokio::spawn(Worker::new(payments.clone(), outside).run(stopped.clone()));
    let retention = tokio::spawn(Retention::new(payments.clone()).run(stopped.clone()));
    let pruning = tokio::spawn(prune_rate_limits(payments, stopped.clone()));
    let policies = tokio::spawn(PolicyWorker::new(app.clone()).run(stopped.clone()));
    let synchronizer = tokio::spawn(Synchronizer::new(app.clone()).run(stopped.clone()));
    let heartbeat = tokio::spawn(beat(app.clone(), agent, stopped.clone()));
    let metrics = tokio::spawn(listener::serve(metrics, None, service.metrics_router(), changed(stopped)));

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let signalled = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    tracing::info!(metrics = %metrics_address, "figures for Prometheus");
    if let Some(ca) = tls.as_ref().and_then(ListenerTls::ca_certificate) {
        tracing::info!(ca = %ca.display(), "clients must trust the certificate authority");
    }
    let upkeep = tls.map(|tls| AbortOnDropHandle::new(tokio::spawn(tls.keep_fresh())));
    tracing::info!(%address, "serving");
    listener::serve(listener, acceptor, service.router(&config), signalled).await;
    drop(upkeep);

    tracing::info!("stopping");
    let starts_end = async {
        while !app.in_flight.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(FINISH_STARTS, starts_end).await.is_err() {
        tracing::warn!("sandboxes are still starting; they are found again at the next start");
    }
    // The receivers are gone only if the tasks are.
    let _ = stop.send(true);
    for (task, name) in [
        (synchronizer, "synchronisation"),
        (policies, "policy worker"),
        (webhooks, "webhook worker"),
        (retention, "deletion of old webhooks"),
        (pruning, "forgetting of rate limits"),
        (heartbeat, "sign of life"),
        (metrics, "figures"),
    ] {
        if let Err(error) = task.await {
            tracing::error!(%error, name, "a task ended early");
        }
    }
    if let Err(error) = store.processes.leave().await {
        tracing::warn!(error = chain(&error), "what this process leaves undone is taken over only in a while");
    }
    database.close().await;
    Ok(())
}

/// Enters this process among those that serve the database: the name of its agent, and on SQLite, where it is the only one,
/// the proof of that, to be kept.
async fn join(config: &Config, store: &Store, clock: &Clock) -> anyhow::Result<(Option<String>, Option<Sole>)> {
    let sole = match config.database() {
        DatabaseLocation::Sqlite(path) => {
            let sole = Sole::take(&path)?;
            store.processes.outlive_others().await?;
            Some(sole)
        }
        DatabaseLocation::Postgres(_) => None,
    };
    let agent = agent_name(&config.agent_socket)?;
    if !store.processes.join(agent.as_deref(), clock.now()).await? {
        bail!(
            "Another sandpiper-api serves this database with another agent than {}: all of them must have the same one, \
             on its machine",
            config.agent_socket.display()
        );
    }
    Ok((agent, sole))
}

/// What tells this machine's agent from that of another; `None` where there is none. The kernel's boot id names the machine:
/// only processes that are alive at the same time are compared.
fn agent_name(socket: &Path) -> anyhow::Result<Option<String>> {
    let Ok(socket) = socket.canonicalize() else { return Ok(None) };
    let boot = std::fs::read_to_string(BOOT_ID).with_context(|| format!("Cannot read {BOOT_ID}"))?;
    Ok(Some(format!("{} {}", boot.trim(), socket.display())))
}

/// Returns when `stop` changes.
async fn changed(mut stop: watch::Receiver<bool>) {
    // An error means that nobody is left who could change it.
    let _ = stop.changed().await;
}

/// Says again and again that this process is alive, until `stop` changes.
async fn beat(app: App, agent: Option<String>, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(processes::BEAT) => {}
            _ = stop.changed() => return,
        }
        if let Err(error) = app.store.processes.beat(agent.as_deref(), app.clock.now()).await {
            tracing::warn!(error = chain(&error), "this process cannot say that it is alive");
        }
    }
}
