//! What an agent does first: bring what it finds and what should be into agreement.
//!
//! | record | monitor | then |
//! |---|---|---|
//! | `creating` | any | killed; everything removed: nobody was ever told that it exists |
//! | `ready` | alive | adopted |
//! | `checkpointing` | alive | adopted, and `ready` once its machine is known to run |
//! | `stopping`, pausing | alive | the same: a pause that nobody was told of never happened |
//! | these three | gone | `stopped`, of its disk alone, with what its exit record says; `host_restarted` after a reboot |
//! | `stopped` | any | killed; its files stay |
//! | `restoring` | any | killed; `stopped` again, without the layer that the resume had put on top |
//! | `stopping` | any | killed; everything removed: the delete is finished |
//! | `failed` | any | killed; everything but the record removed |
//! | none | any | killed; everything removed |
//! | unreadable | any | left alone, as far as it says which is its monitor, and an error logged: an operator must look |
//!
//! The machine of the last two is let go on if it is paused, and its guest is thawed, however long that takes.
//!
//! A monitor is found by the folder that it was idle in, which its environment names, and belongs to the sandbox whose
//! record names its identity. One that no record names was idle, or made a warm snapshot, or was just being given to a sandbox: it is killed. What
//! else such a monitor had (folders, cgroup) goes with it, and so do files in a sandbox's folder that its record does not
//! name: all that is in use is named first.
//!
//! The journal of intervals is brought to what the records say of theirs, before a record goes. A machine that is gone was last
//! seen where the journal says that all were ([`crate::intervals`]); those that are adopted are seen now. What went through its
//! network is read before its slot goes.
//!
//! An agent killed at any moment leaves one of these, so it leaks nothing: this module is the other half of every
//! operation that is not atomic.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fs, io};

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_machine::MachinePaths;
use sandpiper_machine::process::{self, Ended, Identity, KnownMonitor};
use sandpiper_network::Slot;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::ids::{IntervalId, SandboxId};
use sandpiper_protocol::interval::{Counters, EndReason};
use sandpiper_protocol::{error_chain, id};

use super::record::Record;
use super::{Context, ending, record_file};
use crate::intervals::Intervals;
use crate::paths::Paths;

/// A sandbox that is still here.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: Record,
    /// Its monitor; `None` when the sandbox is stopped or has failed.
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Found {
    /// Whether its machine has ended since it was found.
    fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| process::has_ended(pidfd.as_fd()))
    }
}

/// What an earlier agent left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) sandboxes: Vec<Found>,
    /// Sandboxes that are left alone, and why: an operator has to see to them.
    pub(crate) unreadable: BTreeMap<String, String>,
}

/// Why the sandboxes of an earlier agent cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error("Cannot read {what}")]
    Read { what: &'static str, source: io::Error },
    #[error("Sandboxes cannot be given a network; `network.enabled = false` in the configuration does without")]
    Network(#[from] sandpiper_network::StartError),
}

/// Cleans up and returns what is to be kept. Blocks.
pub(crate) fn reconcile(context: &Context) -> Result<Left, ReconcileError> {
    let counters = |id: &SandboxId, slot| counters_of(context, id, slot);
    let (left, spared) = settle_all(&context.paths, &context.intervals, &context.boot_id, &counters)?;
    for monitor in left.sandboxes.iter().filter_map(|found| found.record.process.as_ref()).chain(&spared) {
        context.launcher.pool.adopt(monitor);
    }
    let live = left.sandboxes.iter().filter(|found| found.pidfd.is_some()).map(|found| found.record.id.clone());
    context.volumes.reconcile(&live.collect(), &left.unreadable.keys().cloned().collect());
    if let Err(error) = context.launcher.pool.sweep_cgroups() {
        tracing::error!(%error, "cannot remove cgroups that have no monitor");
    }
    Ok(left)
}

/// Kills monitors that appeared while an earlier agent was dying, after [`reconcile`] had looked. Blocks.
pub(crate) fn sweep(context: &Context) -> io::Result<()> {
    for (monitor, identity) in process::find_monitors(&context.paths.monitors_ever())? {
        if !context.launcher.pool.knows(&monitor) {
            tracing::warn!(monitor, "killing a monitor that has no record");
            kill(&identity, &context.boot_id);
            remove_monitor(&context.paths, &monitor);
        }
    }
    context.launcher.pool.sweep_cgroups()
}

/// What the counters of the slot of this number say, if it is still that of a sandbox whose machine is gone.
type CountersOf<'a> = &'a dyn Fn(&SandboxId, u32) -> Option<Counters>;

fn counters_of(context: &Context, id: &SandboxId, slot: u32) -> Option<Counters> {
    let network = &context.config.network;
    let read = network.enabled.then(|| sandpiper_network::counters(network, slot, Slot::mac_of(id)))?;
    read.unwrap_or_else(|error| {
        tracing::warn!(
            slot,
            error = error_chain::chain(&error),
            "cannot read what went through the slot of a machine that is gone"
        );
        None
    })
}

/// What is kept, and the monitors of what is left alone.
fn settle_all(
    paths: &Paths,
    intervals: &Intervals,
    boot_id: &str,
    counters: CountersOf<'_>,
) -> Result<(Left, Vec<KnownMonitor>), ReconcileError> {
    let read = |what| move |source| ReconcileError::Read { what, source };
    let (mut left, mut spared) = (Left::default(), Vec::new());
    for id in folders(&paths.sandboxes()).map_err(read("the sandboxes' folders"))? {
        match settle(paths, intervals, &id, boot_id, counters) {
            Ok(Settled::Kept(sandbox)) => left.sandboxes.push(*sandbox),
            Ok(Settled::Gone) => {}
            Err(error) => {
                let reason = error_chain::chain(&*error);
                tracing::error!(
                    sandbox = id,
                    error = reason,
                    "cannot take over a sandbox; it is left as it is until an operator has seen to it"
                );
                spared.extend(named_monitor(&paths.sandbox(&id)));
                left.unreadable.insert(id, reason);
            }
        }
    }
    let live = left.sandboxes.iter().filter(|found| found.pidfd.is_some());
    let live: HashSet<IntervalId> = live.filter_map(|found| Some(found.record.interval.as_ref()?.id.clone())).collect();
    intervals.settle(&live);
    let looked_at = Timestamp::now();
    let all_run = !left.sandboxes.iter().any(Found::has_ended);
    let written = if all_run { intervals.see(looked_at) } else { intervals.write() };
    written.map_err(read("the journal of intervals"))?;
    let known = left.sandboxes.iter().filter_map(|sandbox| sandbox.record.process.as_ref()).chain(&spared);
    let keep: HashSet<&str> = known.map(|monitor| monitor.id.as_str()).collect();
    for (monitor, identity) in process::find_monitors(&paths.monitors_ever()).map_err(read("the list of processes"))? {
        if !keep.contains(monitor.as_str()) {
            tracing::debug!(monitor, "killing a monitor that belongs to no sandbox");
            kill(&identity, boot_id);
        }
    }
    for id in folders(&paths.runtime_sandboxes()).map_err(read("the runtime folders"))? {
        if !paths.sandbox(&id).state.exists() {
            tracing::warn!(sandbox = id, "removing runtime files that have no record");
            report(&id, durable::remove_tree(&paths.sandbox(&id).runtime));
        }
    }
    // Nothing of a sandbox is in these, and what made use of them is gone now.
    for folder in
        [paths.monitors(), paths.runtime_monitors(), paths.runtime_warm(), paths.helpers(), paths.runtime_helpers()]
    {
        for entry in fs::read_dir(&folder).map_err(read("the monitors' folders"))? {
            let entry = entry.map_err(read("the monitors' folders"))?;
            report(&entry.file_name().to_string_lossy(), durable::remove_tree(&entry.path()));
        }
    }
    for folder in paths.outdated() {
        report(&folder.to_string_lossy(), durable::remove_tree(&folder));
    }
    Ok((left, spared))
}

/// What became of a sandbox's folder.
enum Settled {
    Kept(Box<Found>),
    Gone,
}

/// Decides about one sandbox's folder.
fn settle(
    paths: &Paths,
    intervals: &Intervals,
    id: &str,
    boot_id: &str,
    counters: CountersOf<'_>,
) -> Result<Settled, Box<dyn std::error::Error>> {
    let own = paths.sandbox(id);
    let Some(mut record) = record_file::load(&own, id)? else {
        tracing::warn!(sandbox = id, "removing a folder that has no record");
        ending::remove(&own)?;
        return Ok(Settled::Gone);
    };
    let pidfd = match &record.process {
        Some(monitor) => monitor.identity.open(boot_id)?,
        None => None,
    };
    let kept = |record: Record, pidfd| {
        record.interval.iter().for_each(|interval| intervals.follow(interval));
        Ok(Settled::Kept(Box::new(Found { record, pidfd })))
    };
    let same_boot = record.process.as_ref().is_some_and(|monitor| monitor.identity.boot_id == boot_id);
    // Of a machine that is gone, or that nobody looks after any more. Its slot may be there still, unless the host was restarted.
    let lose_sight = |record: &mut Record| {
        let seen_at_ms = intervals.seen_at_ms().unwrap_or(i64::MIN).min(Timestamp::now().as_millisecond());
        let known = record.interval.as_ref().and_then(|interval| intervals.traffic(&interval.id));
        let slot = known.and(record.slot).filter(|_| same_boot);
        let counted = slot.and_then(|slot| counters(&record.id, slot));
        record.note_traffic(known.map(|known| counted.map_or(known, |counters| known.read(seen_at_ms, counters))));
        record.end_interval(seen_at_ms, EndReason::Lost);
    };
    match (record.state, pidfd) {
        (SandboxState::Creating, pidfd) => remove(&own, &record, pidfd),
        (SandboxState::Stopping, pidfd) if !record.pausing => {
            lose_sight(&mut record);
            record.interval.iter().for_each(|interval| intervals.follow(interval));
            intervals.write()?;
            remove(&own, &record, pidfd)
        }
        (SandboxState::Failed, _) => {
            lose_sight(&mut record);
            ending::free(&own)?;
            kept(record, None)
        }
        (SandboxState::Stopped | SandboxState::Restoring, pidfd) => {
            if let Some(pidfd) = pidfd {
                process::kill_blocking(pidfd.as_fd())?;
            }
            if record.state == SandboxState::Restoring {
                tracing::info!(sandbox = id, "a resume that was not finished is undone");
                record.undo_resume();
                record_file::save(&own, &record)?;
            }
            ending::remove_process_files(&own)?;
            record.files.remove_others(&own.state)?;
            kept(record, None)
        }
        (_, Some(pidfd)) => {
            if record.interval.is_none() {
                // Of an agent that counted no time.
                record.begin_interval(Timestamp::now(), None);
                record_file::save(&own, &record)?;
            }
            record.files.remove_others(&own.state)?;
            kept(record, Some(pidfd))
        }
        (_, None) => {
            let error = if same_boot { ending::explain(&own, &Ended::Unknown) } else { ending::host_restarted() };
            tracing::info!(sandbox = id, code = error.code, "a machine ended while no agent ran");
            lose_sight(&mut record);
            record.lose_machine(error, Timestamp::now());
            if let Err(error) = record.files.sync(&own.state) {
                tracing::error!(sandbox = id, %error, "cannot sync the disk of a machine that ended");
            }
            record_file::save(&own, &record)?;
            ending::remove_process_files(&own)?;
            record.files.remove_others(&own.state)?;
            kept(record, None)
        }
    }
}

/// Ends what was begun or nearly done.
fn remove(own: &MachinePaths, record: &Record, pidfd: Option<OwnedFd>) -> Result<Settled, Box<dyn std::error::Error>> {
    tracing::info!(sandbox = record.id.as_str(), state = ?record.state, "removing a sandbox that was not finished");
    if let Some(pidfd) = pidfd {
        process::kill_blocking(pidfd.as_fd())?;
    }
    ending::remove(own)?;
    Ok(Settled::Gone)
}

/// What an unreadable record, its copy or its draft says of its monitor, if that at least can be read.
fn named_monitor(own: &MachinePaths) -> Option<KnownMonitor> {
    let named_in = |path: PathBuf| {
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        serde_json::from_value(record.get_mut("process")?.take()).ok()
    };
    [record_file::record_path(own), record_file::copy_path(own), record_file::draft_path(own)]
        .into_iter()
        .find_map(named_in)
}

fn remove_monitor(paths: &Paths, monitor: &str) {
    report(monitor, paths.monitor(monitor).remove());
}

fn kill(identity: &Identity, boot_id: &str) {
    let killed = match identity.open(boot_id) {
        Ok(Some(pidfd)) => process::kill_blocking(pidfd.as_fd()),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = killed {
        tracing::error!(pid = identity.pid, %error, "cannot kill a monitor; kill it by hand");
    }
}

/// Names of folders in `path` that are ids. Anything else is not ours and stays.
fn folders(path: &Path) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        match name.to_str() {
            Some(name) if id::is_valid(SandboxId::PREFIX, name) => ids.push(name.to_owned()),
            _ => tracing::warn!(path = %path.join(&name).display(), "not a sandbox's folder; left alone"),
        }
    }
    Ok(ids)
}

fn report(id: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!(id, %error, "cannot remove what is left of a sandbox or a monitor");
    }
}
