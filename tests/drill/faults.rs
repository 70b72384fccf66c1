//! Who is killed, and when.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::Value;
use support::{AtExit, Host, wait_for};
use tokio::task::spawn_blocking;

use crate::caller::Caller;
use crate::ledger::Ledger;
use crate::postgres::Postgres;

/// Between two kills, in milliseconds: some meet what the last one began.
const BETWEEN: std::ops::Range<u64> = 200..8000;

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Victim {
    Agent,
    Api,
    Up,
    Monitor,
    Postgres,
}

/// Kills some of `victims`, or of all where there is none, until `end`; then everything is up again.
pub(crate) async fn go_on(
    caller: Caller,
    mut postgres: Postgres,
    victims: &[Victim],
    seed: u64,
    end: Instant,
) -> anyhow::Result<Postgres> {
    let host = Host::shared();
    let victims = if victims.is_empty() { Victim::value_variants() } else { victims };
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        tokio::time::sleep(Duration::from_millis(random.random_range(BETWEEN))).await;
        if Instant::now() >= end {
            break;
        }
        let ledger = &caller.ledger;
        match *victims.choose(&mut random).expect("there are some") {
            Victim::Agent => fell(ledger, "agent", host.agent_pid()),
            Victim::Api => fell(ledger, "API", host.api_pid()),
            Victim::Monitor => fell_monitor(ledger, &mut random),
            Victim::Up => {
                fell(ledger, "up", host.up_pid());
                host.start_up_again(AtExit::Keep).await;
            }
            Victim::Postgres => {
                postgres.kill()?;
                ledger.killed("PostgreSQL");
                postgres = spawn_blocking(move || postgres.restart().map(|()| postgres)).await??;
            }
        }
    }
    caller.ask("health", Method::GET, "/healthz", &Value::Null).await?;
    wait_for("the agent answers", || async { host.agent_host().await.ok() }).await;
    Ok(postgres)
}

/// Kills the agent once more: the next one parks no machines, and has none of those that waited.
pub(crate) async fn park_none(ledger: &Arc<Ledger>) {
    let host = Host::shared();
    let before = host.agent_pid();
    host.set_agent("parking.max", 0);
    fell(ledger, "agent", before);
    wait_for("another agent answers", || async {
        host.agent_pid().filter(|pid| Some(*pid) != before)?;
        host.agent_host().await.ok()
    })
    .await;
}

/// Kills a process, unless it is just being started.
fn fell(ledger: &Arc<Ledger>, name: &'static str, pid: Option<Pid>) {
    // One that has just ended by itself cannot be killed.
    if pid.is_some_and(|pid| kill(pid, Signal::SIGKILL).is_ok()) {
        ledger.killed(name);
    }
}

/// Kills the monitor of one sandbox, if any has one.
fn fell_monitor(ledger: &Arc<Ledger>, random: &mut StdRng) {
    let host = Host::shared();
    let ids = host.folders().into_iter().flat_map(|folder| names(&folder));
    let running: Vec<(String, Pid)> = ids.filter_map(|id| Some((id.clone(), host.monitor_of(&id)?))).collect();
    if let Some((id, pid)) = running.choose(random) {
        ledger.crashes(id);
        fell(ledger, "monitor", Some(*pid));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
