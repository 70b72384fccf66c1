//! Sandboxes as earlier agents may have left them, with processes in the place of monitors.

mod intervals;

use sandpiper_images::layers::{Layer, Role};
use sandpiper_machine::process::testing::Sleeper;

use super::*;
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
    Host { _folder: folder, paths, boot_id: process::boot_id().unwrap() }
}

impl Host {
    /// A sandbox as an agent leaves it: record, layers, sockets, and a process that is its monitor.
    fn leave(&self, state: SandboxState) -> (Record, Sleeper) {
        let mut record = example(&SandboxId::generate());
        let own = self.paths.sandbox(&record.id);
        fs::create_dir(&own.state).unwrap();
        fs::create_dir(&own.runtime).unwrap();
        for _ in 0..2 {
            let name = record.files.new_name(Role::Disk);
            fs::write(own.file(&name), b"layer").unwrap();
            record.files.disk.push(Layer::own(name));
        }
        fs::write(own.vsock_socket(), b"").unwrap();
        let monitor = id::generate("mon");
        let sleeper = self.monitor(&monitor);
        record.state = state;
        if state != SandboxState::Creating {
            record.begin_interval(Timestamp::now(), Some(Counters::default()));
        }
        record.process = Some(KnownMonitor { identity: sleeper.identity(), id: monitor, uid: Some(1000) });
        record_file::save(&own, &record).unwrap();
        (record, sleeper)
    }

    fn save(&self, record: &Record) {
        record_file::save(&self.paths.sandbox(&record.id), record).unwrap();
    }

    /// A process that is a monitor, whose environment is there to be seen.
    fn monitor(&self, id: &str) -> Sleeper {
        self.monitor_in(&self.paths.monitor(id).state)
    }

    /// A process that is a monitor and was idle in `folder`.
    fn monitor_in(&self, folder: &Path) -> Sleeper {
        let sleeper = Sleeper::start(folder);
        let identity = sleeper.identity();
        let monitors = || process::find_monitors(&self.paths.monitors_ever()).unwrap();
        let is_there = || monitors().iter().any(|(_, it)| *it == identity);
        while !is_there() {
            std::thread::yield_now();
        }
        sleeper
    }

    fn reconcile(&self) -> Vec<Found> {
        self.settle().sandboxes
    }

    fn settle(&self) -> Left {
        self.settle_with(&|_, _| None)
    }

    fn settle_with(&self, counters: CountersOf<'_>) -> Left {
        settle_all(&self.paths, &self.intervals(), &self.boot_id, counters).unwrap().0
    }

    /// The journal, as the next agent opens it.
    fn intervals(&self) -> Intervals {
        Intervals::open(self.paths.intervals()).unwrap()
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
    let monitor = id::generate("mon");
    let own = host.paths.monitor(&monitor);
    fs::create_dir(&own.state).unwrap();
    fs::create_dir(&own.runtime).unwrap();
    let other = host.monitor(&monitor);

    host.reconcile();

    assert!(!sleeper.is_running() && !other.is_running());
    assert!(!own.state.exists() && !own.runtime.exists());
}

#[test]
fn a_sandbox_of_an_agent_that_kept_shells_is_adopted_and_the_idle_ones_go_with_their_folders() {
    let host = host();
    let (mut record, sleeper) = host.leave(SandboxState::Ready);
    drop(sleeper);
    let outdated = host.paths.outdated();
    let [state, runtime] = &outdated;
    let running = host.monitor_in(&state.join("shl-running"));
    record.process = Some(KnownMonitor { identity: running.identity(), id: "shl-running".into(), uid: Some(1000) });
    let mut older = serde_json::to_value(&record).unwrap();
    older["form"] = 2.into();
    let monitor = older["process"].as_object_mut().unwrap();
    let id = monitor.remove("id").unwrap();
    monitor.insert("shell".into(), id);
    let own = host.paths.sandbox(&record.id);
    fs::write(record_file::record_path(&own), older.to_string()).unwrap();
    for folder in [state, runtime] {
        fs::create_dir_all(folder.join("shl-idle")).unwrap();
    }
    let idle = host.monitor_in(&state.join("shl-idle"));

    let found = host.reconcile();

    assert!(found[0].pidfd.is_some() && running.is_running() && !idle.is_running());
    assert_eq!(found[0].record, record);
    assert!(own.vsock_socket().exists() && outdated.iter().all(|folder| !folder.exists()));
    assert_eq!(host.reconcile()[0].record, record, "the next agent finds the same");
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
    let orphan = host.paths.sandbox(&SandboxId::generate());
    fs::create_dir(&orphan.state).unwrap();
    fs::write(orphan.file("disk-0.layer"), b"layer").unwrap();
    let runtime_only = host.paths.sandbox(&SandboxId::generate());
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
    let (other, named_in_draft) = host.leave(SandboxState::Restoring);
    let damaged = host.paths.sandbox(&other.id);
    record_file::save_draft(&damaged, &other).unwrap();
    for path in [record_file::record_path(&damaged), record_file::copy_path(&damaged)] {
        fs::write(path, b"{ damaged").unwrap();
    }

    let left = host.settle();

    assert!(left.sandboxes.is_empty() && sleeper.is_running() && named_in_draft.is_running());
    assert!(left.unreadable[record.id.as_str()].contains("newer agent"));
    assert!(left.unreadable[other.id.as_str()].contains("restore one from a backup"));
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
