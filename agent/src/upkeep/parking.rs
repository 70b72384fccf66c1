//! Keeps as many machines parked as [`crate::parking`] says: at a quiet moment, one after the other.
//!
//! The guest of one becomes a guest of nobody's first and runs a shell that does nothing, so that what its owner will have it do
//! has been done once. It does so only where nothing of a tenant's can run with that: of the host's own templates, those that
//! start no program. Any other is told nothing, and stands still until there is an owner.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandpiper_images::snapshots::{self, WarmSnapshot};
use sandpiper_machine::control::RequestError;
use sandpiper_machine::link::Envs;
use sandpiper_machine::{Machine, MachineEvent};
use sandpiper_protocol::agent::{Network, NetworkPolicy};
use sandpiper_protocol::{error_chain, id};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::warm::{MakeError, guest};
use crate::capacity::Reservation;
use crate::launch::{self, Attachments, LaunchError, Source};
use crate::parking::{self, Kind, Parked};
use crate::sandbox::Context;

/// From a claim to making another, and from that to the next: sandboxes that have just begun, and their first commands, go
/// first.
const QUIET: Duration = Duration::from_secs(1);
/// How long is waited at most for a moment at which nobody has claimed one for so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often those that wait are looked at.
const CHECK: Duration = Duration::from_secs(5);
/// Pause after one that could not be made.
const AGAIN: Duration = Duration::from_secs(30);
/// As which a guest of nobody's is told who it is: neither that of a warm snapshot nor a sandbox's first.
const GENERATION: u64 = u64::MAX;
/// Prefix of the names of their folders.
const ID_PREFIX: &str = "prk";

/// Why no machine was parked.
#[derive(Debug, thiserror::Error)]
enum ParkError {
    #[error("The agent is ending")]
    Ending,
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Monitor(#[from] RequestError),
    #[error(transparent)]
    Guest(#[from] MakeError),
    #[error("Its monitor ended")]
    Ended,
    #[error("Its guest was not there within {} seconds", .0.as_secs())]
    Late(Duration),
}

/// Parks machines until the agent ends, and ends those that wait then.
pub(super) async fn keep(context: Arc<Context>) {
    let (lot, leave) = (&context.parking, &context.leave);
    let mut not_before = Instant::now();
    while !leave.is_cancelled() {
        tokio::select! {
            () = leave.cancelled() => break,
            () = lot.claimed() => drop(timeout(PATIENCE, quiet(&context)).await),
            () = sleep(CHECK) => {}
        }
        let snapshots = context.warm.list();
        let of = |kind: &Kind| snapshots.iter().find(|warm| warm.key == kind.warm && warm.snapshot.can_wait);
        end(&context, lot.take_surplus(|kind| of(kind).is_some())).await;
        while Instant::now() >= not_before && !leave.is_cancelled() {
            let Some(kind) = lot.lacking() else { break };
            // One that was claimed meanwhile for the first time comes next.
            let Some(warm) = of(&kind) else { break };
            match park(&context, &kind, warm).await {
                Ok(parked) => {
                    lot.park(&kind, parked);
                    drop(timeout(PATIENCE, quiet(&context)).await);
                }
                Err(ParkError::Ending) => break,
                Err(error) => {
                    tracing::warn!(key = kind.warm, error = %error_chain::chain(&error), "no machine was parked; retrying");
                    not_before = Instant::now() + AGAIN;
                }
            }
        }
    }
    end(&context, lot.take_all()).await;
}

/// Waits until nothing was begun for a while, or the agent ends.
async fn quiet(context: &Context) {
    let pause = async {
        loop {
            let claimed = timeout(QUIET, context.parking.claimed()).await.is_ok();
            if !claimed && !context.launcher.pool.is_starting() {
                return;
            }
        }
    };
    tokio::select! {
        () = context.leave.cancelled() => {}
        () = pause => {}
    }
}

async fn end(context: &Context, parked: Vec<Parked>) {
    join_all(parked.into_iter().map(|one| one.end(&context.launcher))).await;
}

/// Restores a machine, and has it wait. On failure nothing of it is left.
async fn park(context: &Context, kind: &Kind, warm: &WarmSnapshot) -> Result<Parked, ParkError> {
    let WarmSnapshot { folder, snapshot, .. } = warm;
    let launcher = &*context.launcher;
    let name = id::generate(ID_PREFIX);
    let paths = context.paths.helper(&name);
    // Nothing, until it is somebody's; under a version that no sandbox's policy has.
    let policy = NetworkPolicy { allow_internet_access: false, ..NetworkPolicy::default() };
    let network = Network { version: u64::MAX, policy };
    let template = context.templates.find(&snapshot.template_version);
    let rehearses = snapshot.defaults.start.is_none() && template.is_some_and(|found| found.version.team.is_none());
    let gathered = launcher.gather(launch::Order {
        source: Source::Snapshot { folder: folder.clone(), files: snapshot.files.clone().shared(), _pin: None },
        paths: paths.clone(),
        shape: snapshots::shape(snapshot.cpu, snapshot.memory_mb),
        disk_gib: snapshot.disk_gib,
        name,
        envs: Envs::new(),
        generation: GENERATION,
        defaults: snapshot.defaults.clone(),
        network: Some(network),
        net_limits: kind.net_limits,
        disk_limits: kind.disk_limits,
        volumes: Attachments::new(context.volumes.clone(), Vec::new(), None, PathBuf::new(), kind.disk_limits),
        serves_volume: false,
        capture_output: false,
    });
    let gathered = match gathered.await {
        Ok(gathered) => gathered,
        Err(error) => {
            parking::remove(paths).await;
            return Err(error.into());
        }
    };
    let (files, monitor) = (gathered.files().clone(), gathered.monitor());
    let (mut running, kit, ()) = match gathered.settle(launcher, Reservation::of_nothing(), || Ok(())).await {
        Ok(settled) => settled,
        Err(source) => {
            parking::remove(paths).await;
            return Err(ParkError::Host { what: "move a monitor's files", source });
        }
    };
    if !rehearses {
        running.machine.withhold();
    }
    let (vsock, limit) = (paths.vsock_socket(), context.config.boot_timeout());
    let restored = tokio::select! {
        () = context.leave.cancelled() => Err(ParkError::Ending),
        restored = async {
            kit.start(&mut running.machine, &context.config).await?;
            if !rehearses {
                return await_link(&mut running.machine, limit).await;
            }
            guest::await_ready(&mut running.machine, limit).await?;
            guest::rehearse(&vsock).await;
            Ok(())
        } => restored,
    };
    let parked = Parked { running, monitor, files, paths };
    match restored {
        Ok(()) => Ok(parked),
        Err(error) => {
            parked.end(launcher).await;
            Err(error)
        }
    }
}

async fn await_link(machine: &mut Machine, limit: Duration) -> Result<(), ParkError> {
    let give_up_at = Instant::now() + limit;
    loop {
        match timeout_at(give_up_at, machine.next()).await.map_err(|_| ParkError::Late(limit))? {
            MachineEvent::LinkOpened => return Ok(()),
            MachineEvent::Ended(_) | MachineEvent::OutOfControl => return Err(ParkError::Ended),
            MachineEvent::Guest(_) | MachineEvent::Disk(_) => {}
        }
    }
}
