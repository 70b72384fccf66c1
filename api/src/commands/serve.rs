//! `sandpiper-api serve`

use std::io::IsTerminal;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use sandpiper_dashboard::data_planes::DataPlanes;
use sandpiper_db::secrets::Vault;
use sandpiper_db::sole::Sole;
use sandpiper_db::{Database, DatabaseLocation};
use sandpiper_delivery::Dependencies;
use sandpiper_delivery::retention::Retention;
use sandpiper_delivery::worker::Worker;
use sandpiper_http::clock::Clock;
use sandpiper_http::{listener, metrics};
use sandpiper_ingress::ListenerTls;
use sandpiper_payments::state::{App as Payments, prune_rate_limits};
use sandpiper_protocol::error_chain::chain;
use sandpiper_trace::Traces;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::open_database;
use crate::auth::last_use;
use crate::config::Config;
use crate::event_retention;
use crate::mcp::Mcp;
use crate::orchestration::collect::Collector;
use crate::orchestration::disabled::Stopper;
use crate::orchestration::network::PolicyWorker;
use crate::orchestration::news::Listener;
use crate::orchestration::sync::Synchronizer;
use crate::privileges;
use crate::service::Service;
use crate::state::App;
use crate::store::{Store, processes};
use crate::telemetry::Exporter;
use crate::webhooks::enqueuer;

/// How long the end waits for starts of sandboxes that are under way. What is not finished then is settled by the
/// synchronisation after the next start.
const FINISH_STARTS: Duration = Duration::from_secs(10);

/// From one look at whether anybody has written to the database to the next.
const LOOK_FOR_NEWS: Duration = Duration::from_millis(250);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Serves until a signal.
pub fn run(config: Config) -> anyhow::Result<()> {
    let log = EnvFilter::try_from_env("SANDPIPER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let log = log.and(filter_fn(sandpiper_trace::is_no_part));
    let traces = Traces::default();
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_filter(log))
        .with(sandpiper_trace::layer(&traces, "api"))
        .init();

    // In this order: a low port may need root, nothing after it does, and threads come last because a process gives up its
    // rights as a whole only while it has one.
    let listener = TcpListener::bind(config.listen).with_context(|| format!("Cannot listen on {}", config.listen))?;
    let metrics = metrics::bind(config.metrics_listen, listener.local_addr()?)
        .context("Cannot listen on the address of metrics_listen")?;
    for listener in [&listener, &metrics] {
        listener.set_nonblocking(true)?;
    }
    privileges::drop_privileges(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config, listener, metrics, traces))
}

/// What runs until the end, and its name in the log.
type Task = (JoinHandle<()>, &'static str);

async fn serve(config: Config, listener: TcpListener, metrics: TcpListener, traces: Traces) -> anyhow::Result<()> {
    // Reads and writes files, before anything is served.
    let tls = ListenerTls::open(&config.tls, &config.state_dir, &config.host).context("Setting tls")?;
    let acceptor = tls.as_ref().map(ListenerTls::acceptor).transpose()?;
    let database = open_database(&config.database()).await?;
    let sole = match config.database() {
        DatabaseLocation::Sqlite(path) => Some(Sole::take(&path)?),
        DatabaseLocation::Postgres(_) => None,
    };
    let clock = Clock::system();
    let sandboxes = config.roles.sandboxes.then(|| sandboxes(&config, &database, &clock)).transpose()?;
    let payments = config.roles.payments.then(|| payments(&config, &database, &clock)).transpose()?;
    let of_teams = config.roles.sandboxes.then(|| Dependencies::system(&config.team_webhooks)).transpose()?;
    let of_merchants = config.roles.payments.then(|| Dependencies::system(&config.webhooks)).transpose()?;
    let service = Service::new(database.clone(), sandboxes, payments).with_traces(traces.clone());
    let agent = match &service.sandboxes {
        Some(app) => join(&config, app, sole.is_some()).await?,
        None => None,
    };

    let address = listener.local_addr()?;
    let metrics_address = metrics.local_addr()?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let metrics = tokio::net::TcpListener::from_std(metrics)?;
    let (stop, stopped) = watch::channel(false);
    let mut tasks = Vec::new();
    let mut news = None;
    if let Some((app, dependencies)) = service.sandboxes.as_ref().zip(of_teams) {
        let listener = Listener::new(app.agent.clone(), database.writes(), LOOK_FOR_NEWS);
        news = Some(listener.news().receiver());
        tasks.extend(sandbox_tasks(app, listener, agent, sole.is_some(), dependencies, &stopped));
    }
    if let Some((app, dependencies)) = service.payments.as_ref().zip(of_merchants) {
        tasks.extend(payment_tasks(app, news, dependencies, &stopped));
    }
    if let Some(exporter) = Exporter::new(&config.telemetry, &traces, service.clone())? {
        tasks.push((tokio::spawn(exporter.run(stopped.clone())), "telemetry"));
    }
    let (service, mcp) = with_mcp(service, &config, &stopped, &mut tasks).await?;
    let metrics = listener::serve(metrics, None, service.metrics_router(), changed(stopped));
    tasks.push((tokio::spawn(metrics), "metrics"));

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let logs = service.sandboxes.as_ref().map(|app| app.ending.clone());
    let signalled = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        if let Some(logs) = logs {
            logs.cancel();
        }
        if let Some(mcp) = mcp {
            mcp.end();
        }
    };
    tracing::info!(metrics = %metrics_address, "metrics for Prometheus");
    if let Some(ca) = tls.as_ref().and_then(ListenerTls::ca_certificate) {
        tracing::info!(ca = %ca.display(), "clients must trust the certificate authority");
    }
    let upkeep = tls.map(|tls| AbortOnDropHandle::new(tokio::spawn(tls.keep_fresh())));
    tracing::info!(%address, "serving");
    listener::serve(listener, acceptor, service.router(&config), signalled).await;
    drop(upkeep);

    tracing::info!("stopping");
    if let Some(app) = &service.sandboxes {
        finish_starts(app).await;
    }
    // The receivers are gone only if the tasks are.
    let _ = stop.send(true);
    for (task, name) in tasks {
        if let Err(error) = task.await {
            tracing::error!(%error, name, "a task ended early");
        }
    }
    if let Some(app) = &service.sandboxes
        && let Err(error) = app.store.processes.leave().await
    {
        tracing::warn!(
            error = chain(&error),
            "cannot sign this process off; others take over its unfinished work once its heartbeat is too old"
        );
    }
    database.close().await;
    Ok(())
}

/// Serves the sandbox side to its own tools, on a port of the loopback that nobody else needs to know, and adds these tools
/// and the dashboard.
async fn with_mcp(
    service: Service,
    config: &Config,
    stop: &watch::Receiver<bool>,
    tasks: &mut Vec<Task>,
) -> anyhow::Result<(Service, Option<Mcp>)> {
    let Some(app) = service.sandboxes.clone() else { return Ok((service, None)) };
    let listener =
        tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("Cannot listen on 127.0.0.1")?;
    let mcp = Mcp::new(app, &format!("http://{}", listener.local_addr()?))?;
    let inner = listener::serve(listener, None, service.router(config), changed(stop.clone()));
    tasks.push((tokio::spawn(inner), "calls of tools"));
    Ok((service.with_mcp(mcp.clone()).with_dashboard(DataPlanes::new()?), Some(mcp)))
}

fn sandboxes(config: &Config, database: &Database, clock: &Clock) -> anyhow::Result<App> {
    let vault = Vault::open(&config.secrets_key_file())?;
    Ok(App::new(config.sandboxes(), Store::new(database.clone()), vault, clock.clone())?)
}

fn payments(config: &Config, database: &Database, clock: &Clock) -> anyhow::Result<Payments> {
    let vault = Vault::open(&config.merchant_secrets_key_file())?;
    let store = sandpiper_payments::store::Store::new(database.clone());
    Ok(Payments::new(config.payments(), store, vault, clock.clone()))
}

fn sandbox_tasks(
    app: &App,
    listener: Listener,
    agent: Option<String>,
    is_sole: bool,
    dependencies: Dependencies,
    stop: &watch::Receiver<bool>,
) -> [Task; 11] {
    let worker = Worker::new(app.webhooks.clone(), dependencies).with_news(Some(listener.news().receiver()));
    let (for_sync, for_policies, for_webhooks) = (listener.news(), listener.news(), listener.news());
    let for_disabled = listener.news();
    [
        (tokio::spawn(Synchronizer::new(app.clone()).with_news(for_sync).run(stop.clone())), "synchronisation"),
        (tokio::spawn(PolicyWorker::new(app.clone()).with_news(for_policies).run(stop.clone())), "policy worker"),
        (tokio::spawn(Stopper::new(app.clone()).run(for_disabled, stop.clone())), "stopping of disabled teams"),
        (tokio::spawn(listener.run(stop.clone())), "news of the agent and the database"),
        (tokio::spawn(Collector::new(app.clone()).run(stop.clone())), "collection of usage"),
        (tokio::spawn(beat(app.clone(), agent, is_sole, stop.clone())), "heartbeat"),
        (tokio::spawn(last_use::keep(app.clone(), stop.clone())), "notes on the use of keys"),
        (tokio::spawn(event_retention::keep(app.clone(), stop.clone())), "removal of old events"),
        (tokio::spawn(enqueuer::run(app.clone(), for_webhooks, stop.clone())), "deliveries of events"),
        (tokio::spawn(worker.run(stop.clone())), "worker of teams' webhooks"),
        (tokio::spawn(Retention::new(app.webhooks.clone()).run(stop.clone())), "deletion of teams' old webhooks"),
    ]
}

fn payment_tasks(
    app: &Payments,
    news: Option<watch::Receiver<()>>,
    dependencies: Dependencies,
    stop: &watch::Receiver<bool>,
) -> [Task; 3] {
    let worker = Worker::new(app.webhooks.clone(), dependencies).with_news(news);
    [
        (tokio::spawn(worker.run(stop.clone())), "webhook worker"),
        (tokio::spawn(Retention::new(app.webhooks.clone()).run(stop.clone())), "deletion of old webhooks"),
        (tokio::spawn(prune_rate_limits(app.clone(), stop.clone())), "pruning of rate limits"),
    ]
}

/// Waits a while for the starts of sandboxes that are under way.
async fn finish_starts(app: &App) {
    let starts_end = async {
        while !app.in_flight.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(FINISH_STARTS, starts_end).await.is_err() {
        tracing::warn!("sandboxes are still starting; they are found again at the next start");
    }
}

/// Enters this process among those that serve sandboxes of the database; the name of its agent. `is_sole`: it is the only
/// process.
async fn join(config: &Config, app: &App, is_sole: bool) -> anyhow::Result<Option<String>> {
    let processes = &app.store.processes;
    if is_sole {
        processes.outlive_others().await?;
    }
    let agent = agent_name(&config.agent_socket)?;
    if !processes.join(agent.as_deref(), app.clock.now()).await? {
        bail!(
            "Another sandpiper-api serves this database with another agent than {}: all of them must have the same one, \
             on its machine",
            config.agent_socket.display()
        );
    }
    Ok(agent)
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

/// Says again and again that this process is alive, until `stop` changes; seldom, if it is the only one.
async fn beat(app: App, agent: Option<String>, is_sole: bool, mut stop: watch::Receiver<bool>) {
    loop {
        let (processes, agent, now) = (&app.store.processes, agent.as_deref(), app.clock.now());
        let beaten = if is_sole { processes.beat_alone(agent, now).await } else { processes.beat(agent, now).await };
        let period = match beaten {
            Ok(()) if is_sole => processes::BEAT_ALONE,
            Ok(()) => processes::BEAT,
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot write this process's heartbeat");
                processes::BEAT
            }
        };
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            _ = stop.changed() => return,
        }
    }
}
