//! `sandpiper-api serve`

use std::io::IsTerminal;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use super::open_store;
use crate::app::App;
use crate::clock::Clock;
use crate::config::Config;
use crate::dispatch::network::PolicyWorker;
use crate::dispatch::sync::Synchronizer;
use crate::secrets::Vault;
use crate::webhooks::Outside;
use crate::webhooks::retention::Retention;
use crate::webhooks::worker::Worker;
use crate::{privileges, server};

/// How long the end waits for starts of sandboxes that are under way. What is not finished then is settled by the
/// synchronisation after the next start.
const FINISH_STARTS: Duration = Duration::from_secs(10);

/// Serves until a signal.
pub fn run(config: Config) -> anyhow::Result<()> {
    let log = EnvFilter::try_from_env("SANDPIPER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).with_ansi(colours).init();

    // In this order: a low port may need root, nothing after it does, and threads come last because a process gives up its
    // rights as a whole only while it has one.
    let listener = TcpListener::bind(config.listen).with_context(|| format!("Cannot listen on {}", config.listen))?;
    listener.set_nonblocking(true)?;
    privileges::give_up(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config, listener))
}

async fn serve(config: Config, listener: TcpListener) -> anyhow::Result<()> {
    let vault = Vault::open(&config.secrets_key_file())?;
    let store = open_store(&config.database()).await?;
    let clock = Clock::system();
    store.idempotency.end_leases(clock.now()).await?;

    let address = listener.local_addr()?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let outside = Outside::system(&config.webhooks)?;
    let app = App::new(config, store.clone(), vault, clock);
    let (stop, stopped) = watch::channel(false);
    let webhooks = tokio::spawn(Worker::new(app.clone(), outside).run(stopped.clone()));
    let retention = tokio::spawn(Retention::new(app.clone()).run(stopped.clone()));
    let policies = tokio::spawn(PolicyWorker::new(app.clone()).run(stopped.clone()));
    let synchronizer = tokio::spawn(Synchronizer::new(app.clone()).run(stopped));

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let signalled = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    tracing::info!(%address, "serving");
    server::serve(listener, app.router(), signalled).await;

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
    ] {
        if let Err(error) = task.await {
            tracing::error!(%error, name, "a task ended early");
        }
    }
    store.close().await;
    Ok(())
}
