//! What an agent does first: bring what it finds and what should be into agreement.
//!
//! | record | monitor | then |
//! |---|---|---|
//! | `creating` | any | killed; everything removed: nobody was ever told that it exists |
//! | `stopping` | any | killed; everything removed: the delete is finished |
//! | `ready` | alive | adopted |
//! | `ready` | gone | `failed`, with what its exit record says; `host_restarted` after a reboot |
//! | `failed` | any | killed; everything but the record removed |
//! | none | any | killed; everything removed |
//! | unreadable | any | left alone, and an error logged: an operator must look |
//!
//! An agent killed at any moment leaves one of these, so it leaks nothing: this module is the other half of every
//! operation that is not atomic.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use jiff::Timestamp;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::id;

use super::ID_PREFIX;
use super::ending;
use super::process::{self, Ended, Identity};
use super::record::{self, Record};
use crate::durable;
use crate::paths::Paths;

/// A sandbox that is still here.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) record: Record,
    /// Its monitor; `None` when the sandbox has failed.
    pub(super) pidfd: Option<OwnedFd>,
}

/// Why the sandboxes of an earlier agent cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error("Cannot read {what}")]
    Read { what: &'static str, source: io::Error },
}

/// Cleans up and returns what is to be adopted. Blocks.
pub(super) fn reconcile(paths: &Paths, boot_id: &str) -> Result<Vec<Found>, ReconcileError> {
    let read = |what| move |source| ReconcileError::Read { what, source };
    let mut monitors: HashMap<String, Vec<Identity>> = HashMap::new();
    for (id, identity) in process::find_monitors(&paths.sandboxes()).map_err(read("the list of processes"))? {
        monitors.entry(id).or_default().push(identity);
    }
    let mut found = Vec::new();
    for id in sandbox_folders(&paths.sandboxes()).map_err(read("the sandboxes' folders"))? {
        let running = monitors.remove(&id).unwrap_or_default();
        match settle(paths, &id, &running, boot_id) {
            Ok(Some(sandbox)) => found.push(sandbox),
            Ok(None) => {}
            Err(error) => tracing::error!(sandbox = id, error = %chain(&*error), "left alone: cannot be cleaned up"),
        }
    }
    for (id, running) in monitors {
        tracing::warn!(sandbox = id, "killing a monitor that has no record");
        kill(&running, boot_id);
    }
    for id in sandbox_folders(&paths.runtime_sandboxes()).map_err(read("the runtime folders"))? {
        if !paths.sandbox(&id).state.exists() {
            tracing::warn!(sandbox = id, "removing runtime files that have no record");
            report(&id, durable::remove_tree(&paths.sandbox(&id).runtime));
        }
    }
    Ok(found)
}

/// Kills monitors that appeared while an earlier agent was dying, after [`reconcile`] had looked. Blocks.
pub(super) fn sweep(paths: &Paths, boot_id: &str, is_known: impl Fn(&str) -> bool) -> io::Result<()> {
    for (id, identity) in process::find_monitors(&paths.sandboxes())? {
        if !is_known(&id) && !paths.sandbox(&id).record().exists() {
            tracing::warn!(sandbox = id, "killing a monitor that has no record");
            kill(&[identity], boot_id);
        }
    }
    Ok(())
}

/// Decides about one sandbox's folder.
fn settle(
    paths: &Paths,
    id: &str,
    running: &[Identity],
    boot_id: &str,
) -> Result<Option<Found>, Box<dyn std::error::Error>> {
    let own = paths.sandbox(id);
    let Some(mut record) = record::load(&own.record(), id)? else {
        tracing::warn!(sandbox = id, "removing a folder that has no record");
        kill(running, boot_id);
        ending::remove(&own)?;
        return Ok(None);
    };
    // Its own monitor, and any other that claims to be: there is one at the most.
    let (own_monitor, strangers): (Vec<_>, Vec<_>) =
        running.iter().cloned().partition(|identity| record.process.as_ref() == Some(identity));
    kill(&strangers, boot_id);
    let pidfd = match &record.process {
        Some(identity) => identity.open(boot_id)?,
        None => None,
    };
    match (record.state, pidfd) {
        (SandboxState::Creating | SandboxState::Stopping, pidfd) => {
            tracing::info!(sandbox = id, state = ?record.state, "removing a sandbox that was not finished");
            if let Some(pidfd) = pidfd {
                process::kill_blocking(pidfd.as_fd())?;
            }
            ending::remove(&own)?;
            Ok(None)
        }
        (SandboxState::Failed, _) => {
            kill(&own_monitor, boot_id);
            ending::free(&own)?;
            Ok(Some(Found { record, pidfd: None }))
        }
        (_, Some(pidfd)) => Ok(Some(Found { record, pidfd: Some(pidfd) })),
        (_, None) => {
            let same_boot = record.process.as_ref().is_some_and(|identity| identity.boot_id == boot_id);
            let error = if same_boot { ending::explain(&own, &Ended::Unknown) } else { ending::host_restarted() };
            tracing::info!(sandbox = id, code = error.code, "a sandbox ended while no agent ran");
            record.fail(error, Timestamp::now());
            record::save(&own.record(), &record)?;
            ending::free(&own)?;
            Ok(Some(Found { record, pidfd: None }))
        }
    }
}

fn kill(monitors: &[Identity], boot_id: &str) {
    for identity in monitors {
        let killed = match identity.open(boot_id) {
            Ok(Some(pidfd)) => process::kill_blocking(pidfd.as_fd()),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = killed {
            tracing::error!(pid = identity.pid, %error, "cannot kill a monitor; kill it by hand");
        }
    }
}

/// Names of folders in `path` that are ids. Anything else is not ours and stays.
fn sandbox_folders(path: &Path) -> io::Result<Vec<String>> {
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
        tracing::error!(sandbox = id, %error, "cannot remove what is left of a sandbox");
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    crate::chain(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use crate::sandbox::process::tests::Sleeper;
    use crate::sandbox::record::tests::example;

    struct Host {
        _folder: tempfile::TempDir,
        paths: Paths,
        boot_id: String,
    }

    fn host() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(&folder.path().join("state"), &folder.path().join("run"));
        paths.create().unwrap();
        Host { _folder: folder, paths, boot_id: host::boot_id().unwrap() }
    }

    impl Host {
        /// A sandbox as an agent leaves it: record, layer, sockets, and a process that is its monitor.
        fn leave(&self, state: SandboxState) -> (Record, Sleeper) {
            let mut record = example(&id::generate(ID_PREFIX));
            let own = self.paths.sandbox(&record.id);
            fs::create_dir(&own.state).unwrap();
            fs::create_dir(&own.runtime).unwrap();
            fs::write(own.root_layer(), b"layer").unwrap();
            fs::write(own.vsock_socket(), b"").unwrap();
            let sleeper = Sleeper::start(&own.state);
            record.state = state;
            record.process = Some(sleeper.identity());
            record::save(&own.record(), &record).unwrap();
            (record, sleeper)
        }

        fn reconcile(&self) -> Vec<Found> {
            reconcile(&self.paths, &self.boot_id).unwrap()
        }

        fn is_clean(&self) -> bool {
            fs::read_dir(self.paths.sandboxes()).unwrap().count() == 0
                && fs::read_dir(self.paths.runtime_sandboxes()).unwrap().count() == 0
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
    fn a_monitor_whose_pid_was_never_written_down_is_killed() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Creating);
        record.process = None;
        record::save(&host.paths.sandbox(&record.id).record(), &record).unwrap();
        let other = Sleeper::start(&host.paths.sandbox(&id::generate(ID_PREFIX)).state);
        // Their environment is there once they are executed.
        while process::find_monitors(&host.paths.sandboxes()).unwrap().len() < 2 {
            std::thread::yield_now();
        }

        host.reconcile();

        assert!(host.is_clean());
        assert!(!sleeper.is_running() && !other.is_running());
    }

    #[test]
    fn a_sandbox_that_ended_meanwhile_has_failed_as_its_exit_record_says() {
        let host = host();
        let (record, sleeper) = host.leave(SandboxState::Ready);
        drop(sleeper);
        let own = host.paths.sandbox(&record.id);
        fs::write(own.exit_record(), r#"{"reason":"guest_powered_off","message":""}"#).unwrap();

        let found = host.reconcile();

        assert_eq!(found[0].record.state, SandboxState::Failed);
        assert_eq!(found[0].record.error.as_ref().unwrap().code, "guest_powered_off");
        assert!(found[0].pidfd.is_none());
        assert_eq!(record::load(&own.record(), &record.id).unwrap().as_ref(), Some(&found[0].record));
        assert!(!own.root_layer().exists() && !own.runtime.exists());
    }

    #[test]
    fn a_recycled_pid_is_not_adopted_and_not_killed() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Ready);
        let stranger = Sleeper::start(Path::new("/nowhere"));
        drop(sleeper);
        let now = stranger.identity();
        record.process = Some(Identity { start_time: now.start_time.wrapping_sub(1), ..now });
        record::save(&host.paths.sandbox(&record.id).record(), &record).unwrap();

        let found = host.reconcile();

        assert_eq!(found[0].record.error.as_ref().unwrap().code, "monitor_failed");
        assert!(stranger.is_running());
    }

    #[test]
    fn after_a_reboot_sandboxes_have_failed_with_that_reason() {
        let host = host();
        let (mut record, sleeper) = host.leave(SandboxState::Ready);
        drop(sleeper);
        record.process.as_mut().unwrap().boot_id = "an earlier boot".into();
        record::save(&host.paths.sandbox(&record.id).record(), &record).unwrap();

        let found = host.reconcile();

        assert_eq!(found[0].record.error.as_ref().unwrap().code, "host_restarted");
    }

    #[test]
    fn folders_without_a_record_go_and_foreign_ones_stay() {
        let host = host();
        let orphan = host.paths.sandbox(&id::generate(ID_PREFIX));
        fs::create_dir(&orphan.state).unwrap();
        fs::write(orphan.root_layer(), b"layer").unwrap();
        let runtime_only = host.paths.sandbox(&id::generate(ID_PREFIX));
        fs::create_dir(&runtime_only.runtime).unwrap();
        let foreign = host.paths.sandboxes().join("notes");
        fs::create_dir(&foreign).unwrap();

        host.reconcile();

        assert!(!orphan.state.exists() && !runtime_only.runtime.exists() && foreign.exists());
    }

    #[test]
    fn an_unreadable_record_is_left_for_an_operator() {
        let host = host();
        let (record, sleeper) = host.leave(SandboxState::Ready);
        let own = host.paths.sandbox(&record.id);
        fs::write(own.record(), b"{ damaged").unwrap();

        let found = host.reconcile();

        assert!(found.is_empty() && sleeper.is_running());
        assert!(own.root_layer().exists() && own.runtime.exists());
    }
}
