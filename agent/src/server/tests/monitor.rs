//! A process in the monitor's place, with a guest in the guest's: this test binary, started once more.
//!
//! Both speak their side of the protocols (`vmm`, `guest`) and have files, sockets and an end like the real ones; there is
//! only no machine between them. The guest writes a block to the top of its disk whenever it learns who it is, so that what
//! becomes of layers can be read from them; so it does to every volume that it mounts. Words in the file `behaviour` of the test's folder have them fail.

pub(super) mod builder;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, accept, connect, socket};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use sandpiper_images::templates::GuestDefaults;
use sandpiper_protocol::connect;
use sandpiper_protocol::guest::{
    BARE, DAMAGED_VOLUME, GuestMessage, GuestMount, HostMessage, Init, LINK_PORT, OutputLine, OutputStream,
    REFUSED_MOUNT,
};
use sandpiper_protocol::vmm::{
    self, DiskEvent, DiskFailure, DiskLimits, EXTRA_DISKS, Event, Fault, FaultCode, MachineState, MonitorMessage,
    Reply, Request, RequestMessage, SnapshotConfig, SnapshotStats, Then, Timings,
};

/// Set by the script that starts this binary as a monitor, to the monitor's arguments.
const ARGUMENTS: &str = "SANDPIPER_TEST_MONITOR";
const BLOCK: u64 = 4096;
/// Where on a volume its one file is.
const FILE: u64 = 1 << 20;

/// What was written down of a sandbox when its guest was told to mount its volumes again, in the test's folder.
pub(super) const RECORD_AT_MOUNT: &str = "record-at-mount";

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

/// Kills the monitor that was idle in this folder, and waits for its end, for a process that was only just killed still
/// lives. Its exit is left to who started it.
pub(super) fn kill(folder: &Path) {
    let pid = pid(folder);
    nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
    let ended = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    assert!(matches!(ended, Ok(_) | Err(Errno::ECHILD)), "{ended:?}");
}

/// Stops the monitor, which may do so itself.
pub(super) fn stop(folder: &Path) {
    nix::sys::signal::kill(pid(folder), Signal::SIGSTOP).unwrap();
}

/// Lets it go on.
pub(super) fn go_on(folder: &Path) {
    nix::sys::signal::kill(pid(folder), Signal::SIGCONT).unwrap();
}

pub(super) fn has_stopped(folder: &Path) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid(folder))).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

/// Has a machine be written down and stay paused, as an agent does that is killed before it has seen to the rest.
pub(super) fn pause(control: &Path, folder: &Path) {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(socket.as_raw_fd(), &UnixAddr::new(control).unwrap()).unwrap();
    let files = ["state", "memory"].map(|name| File::create_new(folder.join(name)).unwrap());
    let request = Request::Snapshot(SnapshotConfig { push_layers: false, then: Then::Pause, past_cache: false });
    let fds = files.each_ref().map(|file| file.as_fd());
    vmm::send(socket.as_fd(), &RequestMessage { id: 1, request }, &fds).unwrap();
    vmm::receive(socket.as_fd()).unwrap().unwrap();
}

/// In which folders below `parent` the monitors were idle that run.
pub(super) fn folders(parent: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
    let folder = |environment: Vec<u8>| {
        let mut variables = environment.split(|byte| *byte == 0).filter_map(|variable| str::from_utf8(variable).ok());
        variables.find_map(|variable| variable.strip_prefix("SANDPIPER_SANDBOX=").map(PathBuf::from))
    };
    environments.filter_map(folder).filter(|folder| folder.starts_with(parent)).collect()
}

fn pid(folder: &Path) -> Pid {
    let marker = format!("SANDPIPER_SANDBOX={}", folder.display());
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
    /// Whether the next snapshot's memory is begun.
    has_copied: bool,
    /// The name of the memory layer that was begun last, and whether it is that of a snapshot.
    begun_as: Option<String>,
    is_written_down: bool,
    /// Top layers of the extra disks.
    extra: [Option<File>; EXTRA_DISKS as usize],
    mounts: Vec<GuestMount>,
    sandbox: String,
    is_restored: bool,
    /// What the builder's program was given.
    given: builder::Given,
    /// Of the last `Init`: what follows with the same one is no news.
    generation: Option<u64>,
}

impl Machine {
    /// Whether its guest waits for a disk.
    fn is_bare(&self) -> bool {
        self.memory.starts_with("bare") && !self.memory.contains(" on ")
    }
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

/// How fast the disk may be of the machine whose monitor was idle in this folder.
pub(super) fn disk_limits(folder: &Path) -> DiskLimits {
    serde_json::from_slice(&fs::read(limits_file(folder)).unwrap()).unwrap()
}

fn note_limits(limits: &DiskLimits) {
    let folder = PathBuf::from(std::env::var("SANDPIPER_SANDBOX").unwrap());
    fs::write(limits_file(&folder), serde_json::to_vec(limits).unwrap()).unwrap();
}

/// In the test's folder, as the agent removes what is the monitor's.
fn limits_file(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap().to_str().unwrap();
    folder.ancestors().nth(3).unwrap().join(format!("limits-{name}"))
}

/// The test's folder.
fn folder() -> PathBuf {
    let folder = PathBuf::from(std::env::var("SANDPIPER_SANDBOX").unwrap());
    // <folder>/state/monitors/<id>
    folder.ancestors().nth(3).unwrap().to_owned()
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
            machine.memory = if config.kernel_args.contains(BARE) { "bare" } else { "booted" }.into();
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
            assert_eq!(config.disk_sizes.len(), usize::from(machine.is_bare()));
            machine.is_restored = true;
            let mut files = files.skip(others as usize - 3);
            run(&mut machine, shared, files.next().unwrap(), files.next().unwrap());
            Ok(Reply::Restored(Timings::default()))
        }
        Request::CopyMemory { name, above, .. } => {
            files.next().unwrap().write_all_at(&[2; 8192], 0).unwrap();
            machine.has_copied = !behaves("no-copy");
            let last = std::mem::replace(&mut machine.begun_as, name);
            let is_above = machine.is_written_down && last.is_some() && last == above;
            machine.is_written_down = false;
            if machine.has_copied { Ok(Reply::MemoryCopied { above: is_above }) } else { refuse(FaultCode::Host) }
        }
        Request::Snapshot(_) if behaves("no-snapshot") => refuse(FaultCode::Host),
        Request::Snapshot(_) if machine.state != Some(MachineState::Running) => refuse(FaultCode::InvalidState),
        Request::Snapshot(_) if machine.extra.iter().any(Option::is_some) => refuse(FaultCode::InvalidState),
        Request::Snapshot(_) if behaves("die-in-snapshot") => std::process::exit(9),
        Request::Snapshot(config) => {
            files.next().unwrap().write_all(machine.memory.as_bytes()).unwrap();
            let memory = files.next().unwrap();
            // One that was begun may have been given up, and this be another.
            let has_begun = std::mem::take(&mut machine.has_copied);
            machine.is_written_down = has_begun;
            let length = memory.metadata().unwrap().len();
            assert!(length == 0 || has_begun && length == 8192);
            memory.write_all_at(&[1; 4096], 0).unwrap();
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
        Request::AttachDisk { .. } if machine.is_restored && behaves("no-slots") => refuse(FaultCode::InvalidState),
        Request::AttachDisk { slot, .. } if machine.extra[usize::from(slot)].is_some() => {
            refuse(FaultCode::InvalidState)
        }
        Request::AttachDisk { slot, disk, .. } => {
            assert_eq!((files.len(), disk.size % (1 << 30)), (disk.layers as usize, 0));
            machine.extra[usize::from(slot)] = files.next_back();
            Ok(Reply::DiskAttached)
        }
        Request::DetachDisk { slot } => {
            machine.extra[usize::from(slot)] = None;
            Ok(Reply::DiskDetached)
        }
        Request::Resume => {
            machine.state = Some(MachineState::Running);
            Ok(Reply::Resumed)
        }
        Request::NoteTouched => Ok(Reply::TouchedNoted),
        Request::SaveWorkingSet => {
            files.next().unwrap().write_all(machine.memory.as_bytes()).unwrap();
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
    let served = Arc::clone(shared);
    std::thread::spawn(move || {
        for stream in vsock.incoming().flatten() {
            let machine = Arc::clone(&served);
            std::thread::spawn(move || serve_data_plane(stream, &machine));
        }
    });
    let guest = Arc::clone(shared);
    std::thread::spawn(move || {
        // Opened again whenever it breaks.
        loop {
            live(&guest);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

fn serve_data_plane(mut stream: UnixStream, shared: &Shared) {
    if behaves("deaf") {
        return;
    }
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    stream.write_all(b"OK 1\n").unwrap();
    let mut lines = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).skip(1);
    let request = lines.next().unwrap_or_default();
    let lengths = lines.filter_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let length: usize = lengths.last().unwrap_or(0);
    if behaves("taken-over") {
        let body = r#"{"code":"quota_exceeded","message":"\u001b[2Jpay"}"#;
        let _ = write!(stream, "HTTP/1.1 402 Gone\r\nContent-Length: {}\r\nX-Odd: 1\r\n\r\n{body}", body.len());
    } else if behaves("full-volume") {
        let body = r#"{"code":"quota_exceeded","message":"no room\u0007"}"#;
        let _ = write!(stream, "HTTP/1.1 507 Full\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    } else if request.contains(" /process.Process/Start") {
        run_command(&mut stream, reader, length, shared);
    } else if request.contains(" /process.Process/") {
        builder::take_input(&mut stream, reader, length, shared);
    } else if request.starts_with("POST /files?") {
        builder::take_file(&mut stream, reader, &request, length, shared);
    } else if request.contains(" /volume/files") {
        serve_file(&mut stream, reader, &request, length, shared);
    } else {
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    }
}

/// Says that a command printed a word, and how it ended.
fn run_command(stream: &mut UnixStream, mut body: impl Read, length: usize, shared: &Shared) {
    let mut order = vec![0; length];
    if body.read_exact(&mut order).is_err() {
        return;
    }
    if builder::is_program(&order) {
        return builder::run(stream, shared);
    }
    let status = u8::from(behaves("not-up"));
    let events = [
        r#"{"event":{"start":{"pid":7}}}"#.to_owned(),
        r#"{"event":{"data":{"stderr":"Y29ubmVjdGlvbiByZWZ1c2Vk"}}}"#.to_owned(),
        format!(r#"{{"event":{{"end":{{"exitCode":{status},"exited":true,"status":"exit status {status}"}}}}}}"#),
    ];
    let body = events.map(|event| connect::envelope(0, event.as_bytes())).concat();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(&body);
}

/// The one file of a volume: how long it is, and behind that what is in it.
fn serve_file(stream: &mut UnixStream, mut body: impl Read, request: &str, length: usize, shared: &Shared) {
    let file = || shared.lock().unwrap().extra[0].as_ref().unwrap().try_clone().unwrap();
    if request.starts_with("PUT ") {
        let mut content = vec![0; length];
        if body.read_exact(&mut content).is_err() {
            return;
        }
        file().write_all_at(&content, FILE + 8).unwrap();
        file().write_all_at(&(length as u64).to_le_bytes(), FILE).unwrap();
        let entry = format!(
            r#"{{"path":"/f","kind":"file","size":{length},"mode":"0644","uid":0,"gid":0,"modified_at":"2026-01-01T00:00:00Z"}}"#
        );
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{entry}", entry.len());
    } else {
        let mut length = [0; 8];
        file().read_exact_at(&mut length, FILE).unwrap();
        let mut content = vec![0; usize::try_from(u64::from_le_bytes(length)).unwrap()];
        file().read_exact_at(&mut content, FILE + 8).unwrap();
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
        let _ = stream.write_all(&content);
    }
}

/// What of its volume a sandbox wrote when it mounted it in this generation.
pub(super) fn mounted_block(data: &Path, generation: u64) -> Option<String> {
    block_of(data.parent().unwrap(), &[data.file_name().unwrap().to_str().unwrap().to_owned()], generation)
}

/// Mounts all of these or none.
fn mount(machine: &mut Machine, mounts: &[GuestMount], words: &str, generation: u64) -> Result<(), String> {
    if behaves("bad-volume") {
        return Err(format!("{DAMAGED_VOLUME}: as the test wants it"));
    }
    if behaves("bad-place") {
        return Err(format!("{REFUSED_MOUNT} /data: as the test wants it"));
    }
    if machine.mounts.iter().any(|mounted| mounts.iter().any(|mount| mount.slot == mounted.slot)) {
        return Err("mounted already".into());
    }
    for mount in mounts {
        let disk = machine.extra[usize::from(mount.slot)].as_ref().ok_or("no disk")?;
        disk.write_all_at(words.as_bytes(), generation * BLOCK).unwrap();
    }
    machine.mounts.extend_from_slice(mounts);
    Ok(())
}

fn unmount(machine: &mut Machine, force: bool) -> GuestMessage {
    let is_held = behaves("hold-volume");
    if is_held && !force {
        return GuestMessage::NotUnmounted { message: "something holds /data".into() };
    }
    let slots = machine.mounts.drain(..).map(|mount| mount.slot).collect();
    GuestMessage::Unmounted { held: if is_held { slots } else { Vec::new() } }
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

/// What a guest was told of its template, in the test's folder: the last word counts.
pub(super) fn defaults_told(folder: &Path, sandbox: &str) -> GuestDefaults {
    serde_json::from_slice(&fs::read(folder.join(format!("defaults-{sandbox}"))).unwrap()).unwrap()
}

fn note_defaults(init: &Init) {
    let defaults = GuestDefaults { settings: init.settings.clone(), start: init.start.clone() };
    let path = folder().join(format!("defaults-{}", init.sandbox_id));
    fs::write(path, serde_json::to_vec(&defaults).unwrap()).unwrap();
}

/// What a process writes as soon as its guest knows who it is.
fn said_by(init: &Init) -> GuestMessage {
    let line = OutputLine {
        stream: OutputStream::Stdout,
        pid: 7,
        command: "app".into(),
        tag: None,
        text: format!("I am {}", init.sandbox_id),
        cut: false,
    };
    GuestMessage::Output { lines: vec![line], left_out: 0 }
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
        let mut output = None;
        let answer = match serde_json::from_str(&line).unwrap() {
            HostMessage::Init(init) => {
                while behaves("hold-ready") {
                    std::thread::sleep(Duration::from_millis(5));
                }
                note_defaults(&init);
                let mut machine = shared.lock().unwrap();
                if let Some(bytes) = init.root_bytes.filter(|_| machine.is_bare() && !behaves("stays-bare")) {
                    machine.memory += &format!(" on {} GiB", bytes >> 30);
                }
                let words = format!("{} {}", init.sandbox_id, machine.memory);
                // A guest of nobody's has nothing to write.
                if init.generation < u64::MAX {
                    machine.top.as_ref().unwrap().write_all_at(words.as_bytes(), init.generation * BLOCK).unwrap();
                }
                machine.sandbox.clone_from(&init.sandbox_id);
                let is_new = machine.generation.replace(init.generation) != Some(init.generation);
                machine.memory = format!("{} {}", machine.memory, init.generation);
                let mounts = if is_new { &init.mounts[..] } else { &[] };
                let mounted =
                    if mounts.is_empty() { Ok(()) } else { mount(&mut machine, mounts, &words, init.generation) };
                match mounted {
                    Ok(()) => {
                        let captures_output = !behaves("old-init");
                        if (init.capture_output && captures_output) || behaves("output-unasked") {
                            output = Some(said_by(&init));
                        }
                        let is_bare = machine.is_bare() && !behaves("old-init");
                        GuestMessage::Ready { init_version: "test".into(), steps: Vec::new(), captures_output, is_bare }
                    }
                    Err(message) => GuestMessage::Failed { message },
                }
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
            HostMessage::Freeze { disks, .. } => GuestMessage::Frozen { disks },
            HostMessage::Thaw => GuestMessage::Thawed,
            HostMessage::Mount { mounts } => {
                let mut machine = shared.lock().unwrap();
                let record = folder().join("state/sandboxes").join(&machine.sandbox).join("record.json");
                // A machine of the agent's own has none.
                let _ = fs::copy(record, folder().join(RECORD_AT_MOUNT));
                let generation = machine.generation.unwrap();
                match mount(&mut machine, &mounts, "again", generation) {
                    Ok(()) => GuestMessage::Mounted,
                    Err(message) => GuestMessage::NotMounted { message },
                }
            }
            HostMessage::Unmount { force } => unmount(&mut shared.lock().unwrap(), force),
            HostMessage::Format { slot } => {
                let machine = shared.lock().unwrap();
                machine.extra[usize::from(slot)].as_ref().unwrap().write_all_at(b"formatted", 0).unwrap();
                GuestMessage::Formatted
            }
            HostMessage::Time { .. } => continue,
        };
        for message in std::iter::once(answer).chain(output) {
            let mut line = serde_json::to_vec(&message).unwrap();
            line.push(b'\n');
            let _ = (&ours).write_all(&line);
        }
    }
}
