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
//! An agent killed at any moment leaves one of these, so it leaks nothing: this module is the other half of every
//! operation that is not atomic.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fs, io};

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_machine::MachinePaths;
use sandpiper_machine::process::{self, Ended, Identity, KnownMonitor};
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::{error_chain, id};

use super::record::Record;
use super::{Context, ID_PREFIX, ending, record_file};
use crate::paths::Paths;

/// A sandbox that is still here.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) record: Record,
    /// Its monitor; `None` when the sandbox is stopped or has failed.
    pub(super) pidfd: Option<OwnedFd>,
}

/// What an earlier agent left.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) sandboxes: Vec<Found>,
    /// Sandboxes that are left alone, and why: an operator has to see to them.
    pub(super) unreadable: BTreeMap<String, String>,
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
pub(super) fn reconcile(context: &Context) -> Result<Left, ReconcileError> {
    let (left, spared) = settle_all(&context.paths, &context.boot_id)?;
    for monitor in left.sandboxes.iter().filter_map(|found| found.record.process.as_ref()).chain(&spared) {
        context.launcher.pool.adopt(monitor);
    }
    if let Err(error) = context.launcher.pool.sweep_cgroups() {
        tracing::error!(%error, "cannot remove cgroups that have no monitor");
    }
    Ok(left)
}

/// Kills monitors that appeared while an earlier agent was dying, after [`reconcile`] had looked. Blocks.
pub(super) fn sweep(context: &Context) -> io::Result<()> {
    for (monitor, identity) in process::find_monitors(&context.paths.monitors())? {
        if !context.launcher.pool.knows(&monitor) {
            tracing::warn!(monitor, "killing a monitor that has no record");
            kill(&identity, &context.boot_id);
            remove_monitor(&context.paths, &monitor);
        }
    }
    context.launcher.pool.sweep_cgroups()
}

/// What is kept, and the monitors of what is left alone.
fn settle_all(paths: &Paths, boot_id: &str) -> Result<(Left, Vec<KnownMonitor>), ReconcileError> {
    let read = |what| move |source| ReconcileError::Read { what, source };
    let (mut left, mut spared) = (Left::default(), Vec::new());
    for id in folders(&paths.sandboxes()).map_err(read("the sandboxes' folders"))? {
        match settle(paths, &id, boot_id) {
            Ok(Settled::Kept(sandbox)) => left.sandboxes.push(*sandbox),
            Ok(Settled::Gone) => {}
            Err(error) => {
                let reason = error_chain::chain(&*error);
                tracing::error!(sandbox = id, error = reason, "left alone until an operator has seen to it");
                spared.extend(named_monitor(&paths.sandbox(&id)));
                left.unreadable.insert(id, reason);
            }
        }
    }
    let known = left.sandboxes.iter().filter_map(|sandbox| sandbox.record.process.as_ref()).chain(&spared);
    let keep: HashSet<&str> = known.map(|monitor| monitor.id.as_str()).collect();
    for (monitor, identity) in process::find_monitors(&paths.monitors()).map_err(read("the list of processes"))? {
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
    for folder in [paths.monitors(), paths.runtime_monitors(), paths.runtime_warm()] {
        for entry in fs::read_dir(&folder).map_err(read("the monitors' folders"))? {
            let entry = entry.map_err(read("the monitors' folders"))?;
            report(&entry.file_name().to_string_lossy(), durable::remove_tree(&entry.path()));
        }
    }
    Ok((left, spared))
}

/// What became of a sandbox's folder.
enum Settled {
    Kept(Box<Found>),
    Gone,
}

/// Decides about one sandbox's folder.
fn settle(paths: &Paths, id: &str, boot_id: &str) -> Result<Settled, Box<dyn std::error::Error>> {
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
    let kept = |record, pidfd| Ok(Settled::Kept(Box::new(Found { record, pidfd })));
    match (record.state, pidfd) {
        (SandboxState::Creating, pidfd) => remove(&own, &record, pidfd),
        (SandboxState::Stopping, pidfd) if !record.pausing => remove(&own, &record, pidfd),
        (SandboxState::Failed, _) => {
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
            record.files.remove_others(&own.state)?;
            kept(record, Some(pidfd))
        }
        (_, None) => {
            let same_boot = record.process.as_ref().is_some_and(|monitor| monitor.identity.boot_id == boot_id);
            let error = if same_boot { ending::explain(&own, &Ended::Unknown) } else { ending::host_restarted() };
            tracing::info!(sandbox = id, code = error.code, "a machine ended while no agent ran");
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
    tracing::info!(sandbox = record.id, state = ?record.state, "removing a sandbox that was not finished");
    if let Some(pidfd) = pidfd {
        process::kill_blocking(pidfd.as_fd())?;
    }
    ending::remove(own)?;
    Ok(Settled::Gone)
}

/// What an unreadable record says of its monitor, if that at least can be read.
fn named_monitor(own: &MachinePaths) -> Option<KnownMonitor> {
    let named_in = |path: PathBuf| {
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        serde_json::from_value(record.get_mut("process")?.take()).ok()
    };
    named_in(record_file::record_path(own)).or_else(|| named_in(record_file::copy_path(own)))
}

fn remove_monitor(paths: &Paths, monitor: &str) {
    let own = paths.monitor(monitor);
    report(monitor, durable::remove_tree(&own.runtime).and_then(|()| durable::remove_tree(&own.state)));
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
            Some(name) if id::is_valid(ID_PREFIX, name) => ids.push(name.to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::record::tests::example;
    use sandpiper_images::layers::{Layer, Role};
    use sandpiper_machine::process::testing::Sleeper;

    struct Host {
        _folder: tempfile::TempDir,
        paths: Paths,
        boot_id: String,
    }

    fn host() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(&folder.path().join("state"), &folder.path().join("run"));
        paths.create().unwrap();
        Host { _folder: folder, paths, boot_id: process::boot_id().unwrap() }
    }

    impl Host {
        /// A sandbox as an agent leaves it: record, layers, sockets, and a process that is its monitor.
        fn leave(&self, state: SandboxState) -> (Record, Sleeper) {
            let mut record = example(&id::generate(ID_PREFIX));
            let own = self.paths.sandbox(&record.id);
            fs::create_dir(&own.state).unwrap();
            fs::create_dir(&own.runtime).unwrap();
            for _ in 0..2 {
                let name = record.files.new_name(Role::Disk);
                fs::write(own.file(&name), b"layer").unwrap();
                record.files.disk.push(Layer::own(name));
            }
            fs::write(own.vsock_socket(), b"").unwrap();
            let monitor = id::generate("shl");
            let sleeper = self.monitor(&monitor);
            record.state = state;
            record.process = Some(KnownMonitor { identity: sleeper.identity(), id: monitor, uid: Some(1000) });
            record_file::save(&own, &record).unwrap();
            (record, sleeper)
        }

        fn save(&self, record: &Record) {
            record_file::save(&self.paths.sandbox(&record.id), record).unwrap();
        }

        /// A process that is a monitor, whose environment is there to be seen.
        fn monitor(&self, id: &str) -> Sleeper {
            let sleeper = Sleeper::start(&self.paths.monitor(id).state);
            let identity = sleeper.identity();
            let is_there =
                || process::find_monitors(&self.paths.monitors()).unwrap().iter().any(|(_, it)| *it == identity);
            while !is_there() {
                std::thread::yield_now();
            }
            sleeper
        }

        fn reconcile(&self) -> Vec<Found> {
            self.settle().sandboxes
        }

        fn settle(&self) -> Left {
            settle_all(&self.paths, &self.boot_id).unwrap().0
        }

        fn is_clean(&self) -> bool {
            let folders = [self.paths.sandboxes(), self.paths.runtime_sandboxes(), self.paths.monitors()];
            folders.iter().all(|folder| fs::read_dir(folder).unwrap().count() == 0)
        }

        /// Files of a sandbox, but its record.
        fn files(&self, record: &Record) -> Vec<String> {
            let entries = fs::read_dir(self.paths.sandbox(&record.id).state).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.retain(|name| !name.starts_with("record."));
            names.sort();
            names
        }
    }

    #[test]
    fn a_live_sandbox_is_adopted_and_nothing_of_it_is_touched() {
        let host = host();
        let (record, sleeper) = host.leave(SandboxState::Ready);

        let found = host.reconcile();

        assert_eq!(found.len(), 1);
        assert_eq!(found[0].record, record);
        assert!(found[0].pidfd.is_some() && sleeper.is_running());
        assert!(host.paths.sandbox(&record.id).vsock_socket().exists());
        assert_eq!(host.files(&record), ["disk-0.layer", "disk-1.layer"]);
    }

    #[test]
    fn unfinished_creates_and_deletes_leave_neither_process_nor_file() {
        let host = host();
        let (_, creating) = host.leave(SandboxState::Creating);
        let (_, stopping) = host.leave(SandboxState::Stopping);

        let found = host.reconcile();

        assert!(found.is_empty() && host.is_clean());
        assert!(!creating.is_running() && !stopping.is_running());
    }

    #[test]
    fn a_pause_that_was_not_finished_never_happened() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Stopping);
        record.pausing = true;
        host.save(&record);
        fs::write(host.paths.sandbox(&record.id).file("memory-2.layer"), b"half").unwrap();

        let found = host.reconcile();

        assert!(found[0].pidfd.is_some() && sleeper.is_running());
        assert_eq!(found[0].record, record, "its supervisor says when it is ready");
        assert_eq!(host.files(&record), ["disk-0.layer", "disk-1.layer"]);
    }

    #[test]
    fn a_stopped_sandbox_keeps_its_files_and_its_monitor_is_ended() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Ready);
        let mut files = record.files.clone();
        let state = files.new_name(Role::State);
        fs::write(host.paths.sandbox(&record.id).file(&state), b"state").unwrap();
        files.state = Some(state);
        record.stop(files, Timestamp::now());
        host.save(&record);

        let found = host.reconcile();

        assert!(found[0].pidfd.is_none() && !sleeper.is_running());
        assert_eq!(found[0].record, record);
        assert_eq!(host.files(&record), ["disk-0.layer", "disk-1.layer", "state-2"]);
        assert!(!host.paths.sandbox(&record.id).runtime.exists());
    }

    #[test]
    fn a_resume_that_was_not_finished_leaves_the_snapshot_without_what_the_guest_wrote_since() {
        let host = host();
        let (record, sleeper) = host.leave(SandboxState::Restoring);

        let found = host.reconcile();

        assert!(!sleeper.is_running());
        assert_eq!(found[0].record.state, SandboxState::Stopped);
        assert_eq!(found[0].record.process, None);
        assert_eq!(host.files(&record), ["disk-0.layer"]);
    }

    #[test]
    fn a_checkpoint_that_was_not_finished_leaves_a_ready_sandbox() {
        let host = host();
        let (record, sleeper) = host.leave(SandboxState::Checkpointing);

        let found = host.reconcile();

        assert!(found[0].pidfd.is_some() && sleeper.is_running());
        assert_eq!(found[0].record, record, "its supervisor says when it is ready");
        assert_eq!(host.files(&record), ["disk-0.layer", "disk-1.layer"]);
    }

    #[test]
    fn a_monitor_that_no_record_names_is_killed_and_its_folders_go() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Ready);
        record.process = None;
        host.save(&record);
        let monitor = id::generate("shl");
        let own = host.paths.monitor(&monitor);
        fs::create_dir(&own.state).unwrap();
        fs::create_dir(&own.runtime).unwrap();
        let other = host.monitor(&monitor);

        host.reconcile();

        assert!(!sleeper.is_running() && !other.is_running());
        assert!(!own.state.exists() && !own.runtime.exists());
    }

    #[test]
    fn of_a_machine_that_ended_meanwhile_the_disk_is_left_and_the_reason() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Ready);
        drop(sleeper);
        let own = host.paths.sandbox(&record.id);
        let memory = record.files.new_name(Role::Memory);
        fs::write(own.file(&memory), b"of no use without the machine").unwrap();
        record.files.memory.push(Layer::own(memory));
        host.save(&record);
        fs::write(own.exit_record(), r#"{"reason":"guest_powered_off","message":""}"#).unwrap();

        let found = host.reconcile();

        assert_eq!(found[0].record.state, SandboxState::Stopped);
        assert_eq!(found[0].record.error.as_ref().unwrap().code, "guest_powered_off");
        assert!(found[0].record.stopped_at.is_some() && found[0].pidfd.is_none());
        assert_eq!(record_file::load(&own, &record.id).unwrap().as_ref(), Some(&found[0].record));
        assert_eq!(host.files(&record), ["disk-0.layer", "disk-1.layer"]);
        assert!(!own.runtime.exists());
        assert_eq!(host.reconcile()[0].record, found[0].record, "the next agent finds the same");
    }

    #[test]
    fn a_recycled_pid_is_not_adopted_and_not_killed() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Ready);
        let stranger = Sleeper::start(Path::new("/nowhere"));
        drop(sleeper);
        let now = stranger.identity();
        record.process.as_mut().unwrap().identity = Identity { start_time: now.start_time.wrapping_sub(1), ..now };
        host.save(&record);

        let found = host.reconcile();

        assert_eq!(found[0].record.error.as_ref().unwrap().code, "monitor_failed");
        assert!(stranger.is_running());
    }

    #[test]
    fn a_reboot_ends_machines_and_leaves_their_disks() {
        let host = host();
        let running = [SandboxState::Ready, SandboxState::Checkpointing, SandboxState::Stopping].map(|state| {
            let (mut record, sleeper) = host.leave(state);
            drop(sleeper);
            record.pausing = state == SandboxState::Stopping;
            record.process.as_mut().unwrap().identity.boot_id = "an earlier boot".into();
            host.save(&record);
            record
        });
        let (mut stopped, sleeper) = host.leave(SandboxState::Stopped);
        drop(sleeper);
        stopped.process = None;
        host.save(&stopped);

        let found = host.reconcile();

        let of = |record: &Record| &found.iter().find(|found| found.record.id == record.id).unwrap().record;
        for record in &running {
            assert_eq!((of(record).state, of(record).pausing), (SandboxState::Stopped, false));
            assert_eq!(of(record).error.as_ref().unwrap().code, "host_restarted");
            assert_eq!(host.files(record), ["disk-0.layer", "disk-1.layer"]);
        }
        assert_eq!(of(&stopped), &stopped);
    }

    #[test]
    fn folders_without_a_record_go_and_foreign_ones_stay() {
        let host = host();
        let orphan = host.paths.sandbox(&id::generate(ID_PREFIX));
        fs::create_dir(&orphan.state).unwrap();
        fs::write(orphan.file("disk-0.layer"), b"layer").unwrap();
        let runtime_only = host.paths.sandbox(&id::generate(ID_PREFIX));
        fs::create_dir(&runtime_only.runtime).unwrap();
        let foreign = host.paths.sandboxes().join("notes");
        fs::create_dir(&foreign).unwrap();

        host.reconcile();

        assert!(!orphan.state.exists() && !runtime_only.runtime.exists() && foreign.exists());
    }

    #[test]
    fn an_unreadable_record_is_left_for_an_operator_and_reported() {
        let host = host();
        let (record, sleeper) = host.leave(SandboxState::Ready);
        let own = host.paths.sandbox(&record.id);
        let mut newer: serde_json::Value =
            serde_json::from_slice(&fs::read(record_file::record_path(&own)).unwrap()).unwrap();
        newer.as_object_mut().unwrap().remove("checksum");
        newer["form"] = serde_json::json!(99);
        fs::write(record_file::record_path(&own), newer.to_string()).unwrap();
        let (other, _) = host.leave(SandboxState::Ready);
        let damaged = host.paths.sandbox(&other.id);
        for path in [record_file::record_path(&damaged), record_file::copy_path(&damaged)] {
            fs::write(path, b"{ damaged").unwrap();
        }

        let left = host.settle();

        assert!(left.sandboxes.is_empty() && sleeper.is_running());
        assert!(left.unreadable[&record.id].contains("newer agent"));
        assert!(left.unreadable[&other.id].contains("restore one from a backup"));
        for own in [own, damaged] {
            assert!(own.file("disk-0.layer").exists() && own.runtime.exists());
        }
    }

    #[test]
    fn a_torn_draft_is_nothing_and_a_torn_record_is_mended() {
        let host = host();
        let (draft, _process) = host.leave(SandboxState::Creating);
        let own = host.paths.sandbox(&draft.id);
        fs::remove_file(record_file::copy_path(&own)).unwrap();
        fs::remove_file(record_file::record_path(&own)).unwrap();
        fs::write(record_file::draft_path(&own), b"{ \"form\": 2, ").unwrap();
        let (record, _other) = host.leave(SandboxState::Ready);
        fs::write(record_file::record_path(&host.paths.sandbox(&record.id)), b"").unwrap();

        let left = host.settle();

        assert!(left.unreadable.is_empty() && !own.state.exists());
        assert_eq!(left.sandboxes.len(), 1);
        assert_eq!(left.sandboxes[0].record, record);
    }
}
