//! Who is killed, and when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::Value;
use support::{AtExit, Host, Monitor, Sighting, wait_for};
use tokio::task::spawn_blocking;

use crate::caller::Caller;
use crate::ledger::Ledger;
use crate::observer::now_ms;
use crate::postgres::Postgres;

/// Between two kills, in milliseconds: some meet what the last one began.
const BETWEEN: std::ops::Range<u64> = 200..8000;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Victim {
    Agent,
    Api,
    Up,
    Monitor,
    Postgres,
}

/// Kills some of `victims` until `end`; then everything is up again.
pub(crate) async fn go_on(
    caller: Caller,
    mut postgres: Option<Postgres>,
    victims: &[Victim],
    seed: u64,
    end: Instant,
) -> anyhow::Result<Option<Postgres>> {
    let host = Host::shared();
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        tokio::time::sleep(Duration::from_millis(random.random_range(BETWEEN))).await;
        if Instant::now() >= end {
            break;
        }
        let ledger = &caller.ledger;
        match *victims.choose(&mut random).expect("there are some") {
            Victim::Agent => drop(fell(ledger, "agent", host.agent_pid())),
            Victim::Api => drop(fell(ledger, "API", host.api_pid())),
            Victim::Monitor => fell_monitor(ledger, &mut random),
            Victim::Up => {
                fell(ledger, "up", host.up_pid());
                host.start_up_again(AtExit::Keep).await;
            }
            Victim::Postgres => {
                let Some(mut server) = postgres.take() else { bail!("there is no PostgreSQL to be killed") };
                server.kill()?;
                ledger.killed("PostgreSQL");
                postgres = Some(spawn_blocking(move || server.restart().map(|()| server)).await??);
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

/// Kills a process, unless it is just being started; whether it did.
fn fell(ledger: &Arc<Ledger>, name: &'static str, pid: Option<Pid>) -> bool {
    // One that has just ended by itself cannot be killed.
    let is_killed = pid.is_some_and(|pid| kill(pid, Signal::SIGKILL).is_ok());
    if is_killed {
        ledger.killed(name);
    }
    is_killed
}

/// Kills the monitor of one sandbox, if any has one.
fn fell_monitor(ledger: &Arc<Ledger>, random: &mut StdRng) {
    let sightings = Host::shared().sightings().into_iter();
    let running: Vec<(String, Monitor)> = sightings
        .filter_map(|Sighting { sandbox, monitor, .. }| Some((sandbox, monitor.filter(|monitor| monitor.lives)?)))
        .collect();
    if let Some((sandbox, monitor)) = running.choose(random) {
        ledger.crashes(sandbox);
        let at_ms = now_ms();
        if fell(ledger, "monitor", Some(monitor.pid)) {
            ledger.killed_monitor(&monitor.id, at_ms);
        }
    }
}
