//! Machines written down and made again: a guest that counts must not notice.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::support::{Agent, Guest, Monitor, kvm_is_usable, vsock_listener};
use crate::payload::Payload;
use sandpiper_protocol::vmm::{
    DiskLimits, Fault, FaultCode, MachineState, NetConfig, NetLimits, Reply, Request, RestoreConfig, Shape,
    SnapshotConfig, SnapshotStats, Then,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A layer without a name, which lies above those that the machine was restored from.
const COPY: Request = Request::CopyMemory { name: None, above: None, least_bytes: 0, past_cache: false };

/// A snapshot's files.
pub(super) struct Snapshot {
    state: File,
    /// Bottom first.
    memory: Vec<File>,
}

impl Snapshot {
    pub(super) fn take(agent: &mut Agent, below: &[File], then: Then) -> Result<(Self, SnapshotStats), Fault> {
        Self::take_with(agent, below, tempfile::tempfile().unwrap(), then)
    }

    /// Likewise, with its memory layer begun while the machine runs; `None` where the kernel cannot tell what is written.
    fn take_begun(agent: &mut Agent, below: &[File], then: Then) -> Option<(Self, SnapshotStats)> {
        let layer = tempfile::tempfile().unwrap();
        match agent.request(COPY, &[layer.as_fd()]) {
            Ok(Reply::MemoryCopied { above: false }) => Some(Self::take_with(agent, below, layer, then).unwrap()),
            Err(fault) if fault.message.contains("userfaultfd") => {
                println!("SKIPPED: memory layers that are begun: {fault}");
                None
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn take_with(agent: &mut Agent, below: &[File], layer: File, then: Then) -> Result<(Self, SnapshotStats), Fault> {
        let state = tempfile::tempfile().unwrap();
        let request = Request::Snapshot(SnapshotConfig { push_layers: false, then, past_cache: true });
        let reply = agent.request(request, &[state.as_fd(), layer.as_fd()])?;
        let Reply::Snapshot(stats) = reply else { panic!("unexpected {reply:?}") };
        let mut memory: Vec<File> = below.iter().map(|file| file.try_clone().unwrap()).collect();
        memory.push(layer);
        Ok((Self { state, memory }, stats))
    }

    /// Makes the machine again, with `console` for its output.
    pub(super) fn restore(&self, agent: &mut Agent, console: &File) -> Result<Reply, Fault> {
        self.restore_with(agent, None, console)
    }

    /// The same with a network device, which is to have this tap.
    fn restore_with(&self, agent: &mut Agent, tap: Option<&File>, console: &File) -> Result<Reply, Fault> {
        let (_folder, vsock) = vsock_listener();
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.state.as_fd()];
        fds.extend(self.memory.iter().map(AsFd::as_fd));
        fds.push(vsock.as_fd());
        fds.extend(tap.map(AsFd::as_fd));
        fds.push(console.as_fd());
        let net = tap.map(|_| NetConfig { mac: [2, 0, 0, 0, 0, 1], limits: NetLimits::default() });
        let memory_layers = u32::try_from(self.memory.len()).unwrap();
        let (disk_layers, disk_limits) = (Vec::new(), DiskLimits::default());
        let config = RestoreConfig {
            memory_layers,
            working_set: false,
            tells_touched: false,
            disk_layers,
            disk_sizes: Vec::new(),
            disk_limits,
            net,
            console: true,
        };
        agent.request(Request::Restore(config), &fds)
    }
}

fn output(console: &File) -> Vec<u8> {
    let length = usize::try_from(console.metadata().unwrap().len()).unwrap();
    let mut bytes = vec![0; length];
    console.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Waits until the guest has printed `count` bytes more than it has.
fn wait_for_more(console: &File, count: usize) {
    let wanted = output(console).len() + count;
    let deadline = Instant::now() + TIMEOUT;
    while output(console).len() < wanted {
        assert!(Instant::now() < deadline, "the guest prints nothing more");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_counts(bytes: &[u8]) {
    let gap = bytes.windows(2).position(|pair| pair[1] != pair[0].wrapping_add(1));
    assert_eq!(gap, None, "of {} bytes", bytes.len());
}

#[test]
fn a_guest_counts_on_after_each_restore_as_if_nothing_had_been() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for_more(guest.console.as_ref().unwrap(), 1000);
    let (mut snapshot, first) = Snapshot::take(&mut monitor.agent, &[], Then::Pause).unwrap();
    // A console keeps some output back until its monitor ends.
    monitor.agent.request(Request::Stop, &[]).unwrap();
    monitor.end();
    let mut counted = guest.output();
    let mut layers = Vec::new();
    for _ in 0..3 {
        let console = tempfile::tempfile().unwrap();
        let mut monitor = Monitor::start();
        monitor.agent.request(Request::Prepare(Shape { vcpus: 1, memory_mib: 32 }), &[]).unwrap();
        snapshot.restore(&mut monitor.agent, &console).unwrap();
        wait_for_more(&console, 1000);
        let (next, stats) = Snapshot::take(&mut monitor.agent, &snapshot.memory, Then::Pause).unwrap();
        monitor.agent.request(Request::Stop, &[]).unwrap();
        monitor.end();
        counted.extend(output(&console));
        layers.push(stats.memory_bytes);
        snapshot = next;
    }

    assert_counts(&counted);
    assert!(layers.iter().all(|bytes| *bytes < first.memory_bytes), "{layers:?} against {first:?}");
}

#[test]
fn a_machine_that_is_written_down_runs_on_without_a_gap() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    for _ in 0..20 {
        wait_for_more(console, 300);
        Snapshot::take(&mut monitor.agent, &[], Then::Run).unwrap();
    }
    wait_for_more(console, 300);
    assert_counts(&guest.output());
}

#[test]
fn a_machine_of_which_memory_was_copied_while_it_ran_goes_on_after_each_restore() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    for _ in 0..10 {
        wait_for_more(console, 300);
        if Snapshot::take_begun(&mut monitor.agent, &[], Then::Run).is_none() {
            return;
        }
    }
    wait_for_more(console, 300);
    let (mut snapshot, _) = Snapshot::take_begun(&mut monitor.agent, &[], Then::Pause).unwrap();
    let again = tempfile::tempfile().unwrap();
    let refused = monitor.agent.request(COPY, &[again.as_fd()]).unwrap_err();
    assert_eq!(refused.code, FaultCode::InvalidState);
    monitor.agent.request(Request::Stop, &[]).unwrap();
    monitor.end();
    let mut counted = guest.output();
    for _ in 0..3 {
        let console = tempfile::tempfile().unwrap();
        let mut monitor = Monitor::start();
        snapshot.restore(&mut monitor.agent, &console).unwrap();
        wait_for_more(&console, 1000);
        (snapshot, _) = Snapshot::take_begun(&mut monitor.agent, &snapshot.memory, Then::Pause).unwrap();
        monitor.agent.request(Request::Stop, &[]).unwrap();
        monitor.end();
        counted.extend(output(&console));
    }
    assert_counts(&counted);
}

#[test]
fn a_snapshot_lies_above_the_last_one_if_that_is_the_one_that_is_named() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for_more(console, 300);
    if let Err(fault) = copy(&mut monitor.agent, "given up", None) {
        return println!("SKIPPED: memory layers above the last one: {fault}");
    }
    let little = Request::CopyMemory { name: None, above: None, least_bytes: u64::MAX, past_cache: false };
    let empty = tempfile::tempfile().unwrap();
    let reply = monitor.agent.request(little, &[empty.as_fd()]).unwrap();
    assert!(matches!(reply, Reply::LittleMemory) && empty.metadata().unwrap().len() == 0);
    let mut snapshot = Snapshot { state: tempfile::tempfile().unwrap(), memory: Vec::new() };
    for (name, above, is_above, then) in [
        ("first", Some("given up"), false, Then::Run),
        ("second", Some("first"), true, Then::Run),
        ("third", Some("first"), false, Then::Run),
        ("fourth", Some("third"), true, Then::Run),
        ("last", Some("fourth"), true, Then::Pause),
    ] {
        let (layer, lies_above) = copy(&mut monitor.agent, name, above).unwrap();
        assert_eq!(lies_above, is_above, "{name}");
        wait_for_more(console, 300);
        let below = if is_above { &snapshot.memory[..] } else { &[] };
        (snapshot, _) = Snapshot::take_with(&mut monitor.agent, below, layer, then).unwrap();
    }
    assert_eq!(snapshot.memory.len(), 3);
    monitor.agent.request(Request::Stop, &[]).unwrap();
    monitor.end();

    let console = tempfile::tempfile().unwrap();
    let mut monitor = Monitor::start();
    snapshot.restore(&mut monitor.agent, &console).unwrap();
    wait_for_more(&console, 1000);
    monitor.agent.request(Request::Stop, &[]).unwrap();
    monitor.end();
    let mut counted = guest.output();
    counted.extend(output(&console));
    assert_counts(&counted);
}

/// Begins a layer called `name`, and says whether it lies above the one called `above`.
fn copy(agent: &mut Agent, name: &str, above: Option<&str>) -> Result<(File, bool), Fault> {
    let layer = tempfile::tempfile().unwrap();
    let request = Request::CopyMemory {
        name: Some(name.to_owned()),
        above: above.map(str::to_owned),
        least_bytes: 0,
        past_cache: false,
    };
    let reply = agent.request(request, &[layer.as_fd()])?;
    let Reply::MemoryCopied { above } = reply else { panic!("unexpected {reply:?}") };
    Ok((layer, above))
}

#[test]
fn a_layer_that_was_begun_is_of_no_use_for_another_file() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for_more(guest.console.as_ref().unwrap(), 10);
    let layer = tempfile::tempfile().unwrap();
    if monitor.agent.request(COPY, &[layer.as_fd()]).is_err() {
        return;
    }
    // All of it is in the other one, and the first is no empty file.
    let (_, whole) = Snapshot::take(&mut monitor.agent, &[], Then::Run).unwrap();
    assert!(whole.memory_bytes > 0);
    let refused = Snapshot::take_with(&mut monitor.agent, &[], layer, Then::Run).map(drop).unwrap_err();
    assert!(refused.message.contains("not empty"), "{refused}");
}

#[test]
fn a_paused_machine_stands_still_until_it_is_resumed() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for_more(console, 300);

    Snapshot::take(&mut monitor.agent, &[], Then::Pause).unwrap();
    let status = monitor.agent.request(Request::Status, &[]).unwrap();
    assert!(matches!(status, Reply::Status { state: MachineState::Paused, .. }));
    let again = Snapshot::take(&mut monitor.agent, &[], Then::Pause).map(drop).unwrap_err();
    assert_eq!(again.code, FaultCode::InvalidState);
    let before = output(console);
    // Another machine shows that there was time to go on.
    let other = Guest::new(&Payload::new().count());
    let mut running = Monitor::start();
    running.agent.boot(&other).unwrap();
    wait_for_more(other.console.as_ref().unwrap(), 300);
    assert_eq!(output(console), before);

    monitor.agent.request(Request::Resume, &[]).unwrap();
    monitor.agent.request(Request::Resume, &[]).unwrap();
    wait_for_more(console, 300);
    assert_counts(&guest.output());
}

#[test]
fn an_access_to_a_device_is_finished_before_the_machine_is_written_down() {
    if !kvm_is_usable() {
        return;
    }
    // What is loaded from the device's window is printed: a load that a snapshot tore would print something else.
    let window = 0xd000_0000;
    let guest = Guest::new(&Payload::new().map(window).again(Payload::new().print_word(window)));
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    let mut printed = Vec::new();
    let mut below = Vec::new();
    let mut at = console.try_clone().unwrap();
    for _ in 0..10 {
        wait_for_more(&at, 300);
        let (snapshot, _) = Snapshot::take(&mut monitor.agent, &below, Then::Pause).unwrap();
        monitor.agent.request(Request::Stop, &[]).unwrap();
        monitor.end();
        printed.extend(output(&at));
        at = tempfile::tempfile().unwrap();
        monitor = Monitor::start();
        snapshot.restore(&mut monitor.agent, &at).unwrap();
        below = snapshot.memory;
    }
    assert!(printed.chunks(4).all(|word| b"virt".starts_with(word)), "{:?}", String::from_utf8_lossy(&printed));
}

#[test]
fn what_is_damaged_or_does_not_fit_is_refused_and_the_monitor_goes_on() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().count());
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for_more(guest.console.as_ref().unwrap(), 10);
    let (good, _) = Snapshot::take(&mut monitor.agent, &[], Then::Pause).unwrap();
    drop(monitor);
    let length = good.state.metadata().unwrap().len();
    let mut state = vec![0; usize::try_from(length).unwrap()];
    good.state.read_exact_at(&mut state, 0).unwrap();
    let with_state = |bytes: &[u8]| {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        Snapshot { state: file, memory: vec![good.memory[0].try_clone().unwrap()] }
    };
    let mut bad =
        vec![with_state(b""), with_state(&state[..state.len() - 1]), with_state(&[state.clone(), vec![0]].concat())];
    for bit in (0..state.len() * 8).step_by(state.len() / 4) {
        let mut flipped = state.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        bad.push(with_state(&flipped));
    }
    let short = tempfile::tempfile().unwrap();
    short.set_len(4096).unwrap();
    bad.push(Snapshot { state: good.state.try_clone().unwrap(), memory: vec![short] });

    let mut monitor = Monitor::start();
    let console = tempfile::tempfile().unwrap();
    for (index, snapshot) in bad.iter().enumerate() {
        let fault = snapshot.restore(&mut monitor.agent, &console).unwrap_err();
        assert_eq!(fault.code, FaultCode::BadSnapshot, "{index}: {fault}");
    }

    let fault = good.restore_with(&mut monitor.agent, Some(&console), &console).unwrap_err();
    assert_eq!(fault.message, "The snapshot's machine has 0 network devices, 1 were given");

    good.restore(&mut monitor.agent, &console).unwrap();
    wait_for_more(&console, 300);
    assert_counts(&output(&console));
}

#[test]
fn what_is_asked_of_no_machine_is_refused() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    let file = tempfile::tempfile().unwrap();
    let requests: [(Request, &[BorrowedFd<'_>]); 5] = [
        (Request::Resume, &[]),
        (Request::DetachDisk { slot: 0 }, &[]),
        (Request::PushLayer { disk: 0 }, &[file.as_fd()]),
        (Request::NoteTouched, &[]),
        (Request::SaveWorkingSet, &[file.as_fd()]),
    ];
    for (request, fds) in requests {
        let fault = monitor.agent.request(request, fds).unwrap_err();
        assert_eq!(fault.code, FaultCode::InvalidState, "{fault}");
    }
    let fault = Snapshot::take(&mut monitor.agent, &[], Then::Run).map(drop).unwrap_err();
    assert_eq!(fault.code, FaultCode::InvalidState, "{fault}");
}
