//! Everything that can be asked of a monitor, asked of a jailed one: whatever system call it takes, it is allowed.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use super::support::{Guest, Monitor, NET, jails_are_possible};
use sandpiper_protocol::vmm::{
    DiskConfig, DiskLimits, ExitReason, MachineState, Reply, Request, RestoreConfig, Shape, SnapshotConfig, Then,
};

fn empty() -> File {
    tempfile::tempfile().unwrap()
}

fn state_of(monitor: &mut Monitor) -> MachineState {
    let reply = monitor.request(Request::Status, &[]);
    let Reply::Status { state, .. } = reply else { panic!("{reply:?}") };
    state
}

fn stop(mut monitor: Monitor) {
    monitor.request(Request::Stop, &[]);
    let (status, record) = monitor.end();
    assert_eq!(record.expect("an exit record").reason, ExitReason::Stopped);
    assert_eq!(status.code(), Some(0));
}

/// What a machine that used its devices left behind.
struct Snapshot {
    state: File,
    memory: File,
}

impl Snapshot {
    /// Makes `guest` anew in `monitor`.
    fn restore(&self, monitor: &mut Monitor, guest: &Guest, working_set: Option<&File>) {
        let (top, console) = (empty(), empty());
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.state.as_fd(), self.memory.as_fd()];
        fds.extend(working_set.map(AsFd::as_fd));
        fds.extend([guest.disk.as_fd(), top.as_fd(), guest.vsock.as_fd(), guest.wire.tap.as_fd(), console.as_fd()]);
        let working_set = working_set.is_some();
        let config = RestoreConfig {
            memory_layers: 1,
            working_set,
            tells_touched: false,
            disk_layers: vec![2],
            disk_sizes: Vec::new(),
            disk_limits: DiskLimits::default(),
            net: Some(NET),
            console: true,
        };
        let reply = monitor.request(Request::Restore(config), &fds);
        assert!(matches!(reply, Reply::Restored(_)), "{reply:?}");
    }
}

#[test]
fn a_jailed_machine_is_written_down_given_layers_and_resumed() {
    if !jails_are_possible() {
        return;
    }
    let guest = Guest::new();
    let mut monitor = Monitor::start(&[]);
    monitor.request(Request::Prepare(Shape { vcpus: 1, memory_mib: 32 }), &[]);
    monitor.boot(&guest);
    let connection = monitor.guest_connection();
    let attach = |monitor: &mut Monitor| {
        let disk = DiskConfig { serial: "volume".into(), size: 8192, layers: 2, read_only: false };
        let request = Request::AttachDisk { slot: 2, disk, limits: DiskLimits::default() };
        monitor.request(request, &[empty().as_fd(), empty().as_fd()]);
    };
    attach(&mut monitor);
    monitor.request(Request::DetachDisk { slot: 2 }, &[]);

    for (is_begun, then) in [(false, Then::Run), (has_userfaultfd(), Then::Run), (false, Then::Pause)] {
        let config = SnapshotConfig { push_layers: true, then, past_cache: true };
        let files = [empty(), empty(), empty()];
        if is_begun {
            monitor.request(
                Request::CopyMemory { name: None, above: None, least_bytes: 0, past_cache: true },
                &[files[1].as_fd()],
            );
        }
        let reply = monitor.request(Request::Snapshot(config), &[files[0].as_fd(), files[1].as_fd(), files[2].as_fd()]);
        assert!(matches!(reply, Reply::Snapshot(stats) if stats.memory_bytes > 0), "{reply:?}");
    }
    assert_eq!(state_of(&mut monitor), MachineState::Paused);
    monitor.request(Request::PushLayer { disk: 0 }, &[empty().as_fd()]);
    attach(&mut monitor);
    monitor.request(Request::Resume, &[]);
    monitor.request(Request::DetachDisk { slot: 2 }, &[]);
    monitor.request(Request::PushLayer { disk: 0 }, &[empty().as_fd()]);

    assert_eq!(state_of(&mut monitor), MachineState::Running);
    drop(connection);
    stop(monitor);
}

/// Whether the kernel has what notes writes.
fn has_userfaultfd() -> bool {
    let has = sandpiper_vmm::memory::tracker::Tracker::open().is_ok();
    if !has {
        println!("SKIPPED: memory copied by a jailed machine that runs: this kernel does not note writes");
    }
    has
}

#[test]
fn a_jailed_machine_is_restored_and_tells_its_working_set() {
    if !jails_are_possible() {
        return;
    }
    let guest = Guest::new();
    let mut monitor = Monitor::start(&[]);
    monitor.boot(&guest);
    drop(monitor.guest_connection());
    let snapshot = Snapshot { state: empty(), memory: empty() };
    let config = SnapshotConfig { push_layers: false, then: Then::Pause, past_cache: true };
    monitor.request(Request::Snapshot(config), &[snapshot.state.as_fd(), snapshot.memory.as_fd()]);
    stop(monitor);

    let working_set = empty();
    let mut monitor = Monitor::start(&[]);
    monitor.request(Request::Prepare(Shape { vcpus: 1, memory_mib: 32 }), &[]);
    snapshot.restore(&mut monitor, &guest, None);
    monitor.request(Request::NoteTouched, &[]);
    monitor.request(Request::SaveWorkingSet, &[working_set.as_fd()]);
    stop(monitor);

    let mut monitor = Monitor::start(&[]);
    snapshot.restore(&mut monitor, &guest, Some(&working_set));
    assert_eq!(state_of(&mut monitor), MachineState::Running);
    let config = SnapshotConfig { push_layers: false, then: Then::Run, past_cache: false };
    let reply = monitor.request(Request::Snapshot(config), &[empty().as_fd(), empty().as_fd()]);
    assert!(matches!(reply, Reply::Snapshot(_)), "{reply:?}");
    stop(monitor);
}
