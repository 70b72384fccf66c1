//! A process in the monitor's place, with a guest in the guest's: this test binary, started once more.
//!
//! Both speak their side of the protocols (`vmm`, `guest`) and have files, sockets and an end like the real ones; there is
//! only no machine between them. The guest writes a block to the top of its disk whenever it learns who it is, so that what
//! becomes of layers can be read from them. Words in the file `behaviour` of the test's folder have them fail.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, accept, connect, socket};
use nix::unistd::Pid;
use sandpiper_protocol::guest::{GuestMessage, HostMessage, LINK_PORT};
use sandpiper_protocol::vmm::{
    self, DiskEvent, DiskFailure, DiskLimits, Event, Fault, FaultCode, MachineState, MonitorMessage, Reply, Request,
    RequestMessage, SnapshotConfig, SnapshotStats, Then, Timings,
};

/// Set by the script that starts this binary as a monitor, to the monitor's arguments.
const ARGUMENTS: &str = "SANDPIPER_TEST_MONITOR";
const BLOCK: u64 = 4096;

/// A program that poses as `sandpiper-vmm`.
pub(super) fn program(folder: &Path) -> PathBuf {
    let path = folder.join("monitor");
    let own = std::env::current_exe().unwrap();
    let run = "--exact --ignored --nocapture server::tests::monitor::poses_as_a_monitor";
    let script = format!("#!/bin/sh\n{ARGUMENTS}=\"$*\" exec {} {run}\n", own.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// What the guest of `id` wrote in this life, if the blocks of the layers `files` (bottom first) still show it.
pub(super) fn block_of(folder: &Path, layers: &[String], generation: u64) -> Option<String> {
    layers.iter().rev().find_map(|layer| {
        let mut block = [0; 64];
        File::open(folder.join(layer)).ok()?.read_exact_at(&mut block, generation * BLOCK).ok()?;
        let text = String::from_utf8_lossy(&block).trim_end_matches('\0').to_owned();
        (!text.is_empty()).then_some(text)
    })
}

/// Kills the monitor whose shell's folder this is.
pub(super) fn kill(shell: &Path) {
    nix::sys::signal::kill(pid(shell), Signal::SIGKILL).unwrap();
}

/// Stops the monitor, which may do so itself.
pub(super) fn stop(shell: &Path) {
    nix::sys::signal::kill(pid(shell), Signal::SIGSTOP).unwrap();
}

/// Lets it go on.
pub(super) fn go_on(shell: &Path) {
    nix::sys::signal::kill(pid(shell), Signal::SIGCONT).unwrap();
}

pub(super) fn has_stopped(shell: &Path) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid(shell))).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

/// Has a machine be written down and stay paused, as an agent does that is killed before it has seen to the rest.
pub(super) fn pause(control: &Path, folder: &Path) {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(socket.as_raw_fd(), &UnixAddr::new(control).unwrap()).unwrap();
    let files = ["state", "memory"].map(|name| File::create_new(folder.join(name)).unwrap());
    let request = Request::Snapshot(SnapshotConfig { push_layers: false, then: Then::Pause });
    let fds = files.each_ref().map(|file| file.as_fd());
    vmm::send(socket.as_fd(), &RequestMessage { id: 1, request }, &fds).unwrap();
    vmm::receive(socket.as_fd()).unwrap().unwrap();
}

fn pid(shell: &Path) -> Pid {
    let marker = format!("SANDPIPER_SANDBOX={}", shell.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.filter_map(|entry| {
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let is_it = environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes());
        is_it.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    let pids: Vec<i32> = found.collect();
    assert_eq!(pids.len(), 1);
    Pid::from_raw(pids[0])
}

#[derive(Default)]
struct Machine {
    state: Option<MachineState>,
    /// The connection that events go to.
    agent: Option<Arc<OwnedFd>>,
    /// Top layer of the disk.
    top: Option<File>,
    /// What the guest has in its memory.
    memory: String,
}

type Shared = Arc<Mutex<Machine>>;

#[test]
#[ignore = "is no test: it is started as a monitor by others"]
fn poses_as_a_monitor() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let descriptor = |option: &str| {
        let position = arguments.iter().position(|argument| *argument == option).unwrap();
        // SAFETY: the agent passed it to this process for this, and nothing else here uses it.
        unsafe { OwnedFd::from_raw_fd(arguments[position + 1].parse().unwrap()) }
    };
    let (control, exit) = (descriptor("--control-fd"), File::from(descriptor("--exit-fd")));
    let machine = Shared::default();
    std::thread::spawn(end_with_the_test);
    loop {
        let connection = accept(control.as_raw_fd()).unwrap();
        // SAFETY: accept has just made it.
        let connection = Arc::new(unsafe { OwnedFd::from_raw_fd(connection) });
        machine.lock().unwrap().agent = Some(Arc::clone(&connection));
        let (machine, exit) = (Arc::clone(&machine), exit.try_clone().unwrap());
        std::thread::spawn(move || serve(&connection, &machine, &exit));
    }
}

/// How fast the disk may be of the machine whose shell's folder this is.
pub(super) fn disk_limits(shell: &Path) -> DiskLimits {
    serde_json::from_slice(&fs::read(limits_file(shell)).unwrap()).unwrap()
}

fn note_limits(limits: &DiskLimits) {
    let shell = PathBuf::from(std::env::var("SANDPIPER_SANDBOX").unwrap());
    fs::write(limits_file(&shell), serde_json::to_vec(limits).unwrap()).unwrap();
}

/// In the test's folder, as the agent looks after the shell's.
fn limits_file(shell: &Path) -> PathBuf {
    let name = shell.file_name().unwrap().to_str().unwrap();
    shell.ancestors().nth(3).unwrap().join(format!("limits-{name}"))
}

/// The test's folder.
fn folder() -> PathBuf {
    let shell = PathBuf::from(std::env::var("SANDPIPER_SANDBOX").unwrap());
    // <folder>/state/shells/<id>
    shell.ancestors().nth(3).unwrap().to_owned()
}

fn behaves(word: &str) -> bool {
    let behaviour = fs::read_to_string(folder().join("behaviour"));
    behaviour.is_ok_and(|words| words.split_whitespace().any(|found| found == word))
}

/// A test that failed leaves its monitors to themselves.
fn end_with_the_test() {
    while folder().exists() {
        std::thread::sleep(Duration::from_millis(100));
    }
    std::process::exit(0);
}

fn serve(connection: &OwnedFd, machine: &Shared, mut exit: &File) {
    while let Ok(Some(packet)) = vmm::receive(connection.as_fd()) {
        let RequestMessage { id, request } = serde_json::from_slice(&packet.bytes).unwrap();
        let stops = matches!(request, Request::Stop);
        if matches!(request, Request::Snapshot(_) | Request::PushLayer { .. }) && behaves("slow") {
            raise(Signal::SIGSTOP).unwrap();
        }
        let result = answer(request, packet.fds, machine);
        vmm::send(connection.as_fd(), &MonitorMessage::Reply { id, result }, &[]).unwrap();
        if stops {
            exit.write_all(br#"{"reason":"stopped","message":""}"#).unwrap();
            std::process::exit(0);
        }
    }
}

fn answer(request: Request, fds: Vec<OwnedFd>, shared: &Shared) -> Result<Reply, Fault> {
    let mut machine = shared.lock().unwrap();
    let mut files = fds.into_iter().map(File::from);
    let refuse = |code| Err(Fault { code, message: "as the test wants it".into() });
    match request {
        Request::Prepare(_) => {
            machine.state = Some(MachineState::Prepared);
            Ok(Reply::Prepared)
        }
        Request::Boot(config) => {
            note_limits(&config.disk_limits);
            assert_eq!(files.len(), 2 + config.disks[0].layers as usize);
            machine.memory = "booted".into();
            let mut files = files.skip(config.disks[0].layers as usize);
            run(&mut machine, shared, files.next().unwrap(), files.next().unwrap());
            Ok(Reply::Booted(Timings::default()))
        }
        Request::Restore(_) if behaves("bad-snapshot") => refuse(FaultCode::BadSnapshot),
        Request::Restore(_) if behaves("no-restore") => refuse(FaultCode::Host),
        Request::Restore(config) => {
            note_limits(&config.disk_limits);
            while behaves("hold-restore") {
                std::thread::sleep(Duration::from_millis(5));
            }
            let others = 1 + config.memory_layers + u32::from(config.working_set) + config.disk_layers[0] + 1;
            assert_eq!(files.len(), others as usize);
            files.next().unwrap().read_to_string(&mut machine.memory).unwrap();
            let mut files = files.skip(others as usize - 3);
            run(&mut machine, shared, files.next().unwrap(), files.next().unwrap());
            Ok(Reply::Restored(Timings::default()))
        }
        Request::Snapshot(_) if behaves("no-snapshot") => refuse(FaultCode::Host),
        Request::Snapshot(_) if machine.state != Some(MachineState::Running) => refuse(FaultCode::InvalidState),
        Request::Snapshot(_) if behaves("die-in-snapshot") => std::process::exit(9),
        Request::Snapshot(config) => {
            files.next().unwrap().write_all(machine.memory.as_bytes()).unwrap();
            files.next().unwrap().write_all_at(&[1; 4096], 0).unwrap();
            if config.push_layers {
                machine.top = files.next();
            }
            if config.then == Then::Pause {
                machine.state = Some(MachineState::Paused);
            }
            Ok(Reply::Snapshot(SnapshotStats { stopped_us: 77, ..SnapshotStats::default() }))
        }
        Request::PushLayer { disk: 0 } => {
            machine.top = files.next();
            Ok(Reply::LayerPushed)
        }
        Request::PushLayer { .. } => refuse(FaultCode::Malformed),
        Request::Resume => {
            machine.state = Some(MachineState::Running);
            Ok(Reply::Resumed)
        }
        Request::SaveWorkingSet => {
            files.next().unwrap().write_all(b"pages").unwrap();
            Ok(Reply::WorkingSetSaved)
        }
        Request::Status => {
            let state = machine.state.unwrap_or(MachineState::Waiting);
            Ok(Reply::Status { state, timings: Timings::default() })
        }
        Request::Stop => Ok(Reply::Stopping),
    }
}

/// Starts what is in the machine: its guest, and its data plane behind the vsock socket.
fn run(machine: &mut Machine, shared: &Shared, top: File, vsock: File) {
    machine.state = Some(MachineState::Running);
    machine.top = Some(top);
    let vsock = UnixListener::from(OwnedFd::from(vsock));
    std::thread::spawn(move || vsock.incoming().flatten().for_each(serve_data_plane));
    let guest = Arc::clone(shared);
    std::thread::spawn(move || {
        // Opened again whenever it breaks.
        loop {
            live(&guest);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

fn serve_data_plane(mut stream: UnixStream) {
    let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
    stream.write_all(b"OK 1\n").unwrap();
    while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
}

/// As a monitor does for whose guest the host has no room, until it has.
fn stand_still(shared: &Shared, agent: &Arc<OwnedFd>) {
    let failure = DiskFailure { disk: 0, layer: 1, operation: "write".into(), offset: Some(0), errno: libc::ENOSPC };
    let (shared, agent) = (Arc::clone(shared), Arc::clone(agent));
    let tell = move |state, event| {
        shared.lock().unwrap().state = Some(state);
        vmm::send(agent.as_fd(), &MonitorMessage::Event(Event::Disk(event)), &[]).unwrap();
    };
    tell(MachineState::Held, DiskEvent::Full(failure));
    std::thread::spawn(move || {
        while behaves("full-disk") {
            std::thread::sleep(Duration::from_millis(5));
        }
        tell(MachineState::Running, DiskEvent::Room);
    });
}

/// One link's life.
fn live(shared: &Shared) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let Some(agent) = shared.lock().unwrap().agent.clone() else { return };
    let event = MonitorMessage::Event(Event::GuestConnected { port: LINK_PORT });
    if vmm::send(agent.as_fd(), &event, &[theirs.as_fd()]).is_err() {
        // The agent is gone; there may be another.
        return;
    }
    drop(theirs);
    for line in BufReader::new(ours.try_clone().unwrap()).lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line).unwrap() {
            HostMessage::Init(init) => {
                let mut machine = shared.lock().unwrap();
                let words = format!("{} {}", init.sandbox_id, machine.memory);
                machine.top.as_ref().unwrap().write_all_at(words.as_bytes(), init.generation * BLOCK).unwrap();
                machine.memory = format!("{} {}", machine.memory, init.generation);
                GuestMessage::Ready { init_version: "test".into() }
            }
            HostMessage::Freeze { .. } if behaves("no-freeze") => {
                GuestMessage::NotFrozen { message: "too busy".into() }
            }
            HostMessage::Freeze { .. } if behaves("break-link") => {
                fs::remove_file(folder().join("behaviour")).unwrap();
                return;
            }
            HostMessage::Freeze { .. } if behaves("full-disk") => {
                stand_still(shared, &agent);
                continue;
            }
            HostMessage::Freeze { .. } => GuestMessage::Frozen,
            HostMessage::Thaw => GuestMessage::Thawed,
            HostMessage::Time { .. } => continue,
        };
        let mut line = serde_json::to_vec(&answer).unwrap();
        line.push(b'\n');
        let _ = (&ours).write_all(&line);
    }
}
