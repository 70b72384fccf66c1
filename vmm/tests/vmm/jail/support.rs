//! A jailed monitor under test.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::Uid;
use sandpiper_protocol::vmm::{
    self, DiskConfig, DiskLimits, Event, ExitRecord, Fault, MachineConfig, MonitorMessage, NetConfig, NetLimits, Reply,
    Request, RequestMessage,
};
use sandpiper_skip::skipped;
use tempfile::TempDir;

use super::devices;
use super::wire::Wire;

/// The user that monitors become here.
pub(crate) const UID: u32 = 0x2000_0001;

/// How long anything may take on a busy machine whose guests are emulated.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether monitors can be jailed and run guests here. If not, says so where nobody overlooks it.
pub(crate) fn jails_are_possible() -> bool {
    let reason = if !Uid::effective().is_root() {
        "this needs root".to_owned()
    } else if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        format!("/dev/kvm cannot be opened: {error}")
    } else {
        return true;
    };
    skipped("the monitor in its jail", reason);
    false
}

/// Asks `condition` until it holds.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "this did not come: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A running monitor.
pub(crate) struct Monitor {
    child: Child,
    exit: File,
    socket: OwnedFd,
    next_id: u64,
    /// Connections of the guest that came before they were asked for.
    connections: VecDeque<OwnedFd>,
}

impl Monitor {
    /// Starts one. `inherited` is open in it until it closes what it was not told of.
    pub(crate) fn start(inherited: &[RawFd]) -> Self {
        let listener = seqpacket();
        // An unnamed address has the kernel choose an abstract one.
        bind(listener.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        listen(&listener, Backlog::new(4).unwrap()).unwrap();
        let address: UnixAddr = getsockname(listener.as_raw_fd()).unwrap();
        let exit = tempfile::tempfile().unwrap();
        let kvm = File::options().read(true).write(true).open("/dev/kvm").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandpiper-vmm"));
        command
            .args(["--control-fd", &listener.as_raw_fd().to_string()])
            .args(["--exit-fd", &exit.as_raw_fd().to_string()])
            .args(["--kvm-fd", &kvm.as_raw_fd().to_string()])
            .args(["--jail", &UID.to_string(), "--name", "test"])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // Inherited by any process that another test starts at this moment too: harmless, for none of them reads it.
        for fd in [listener.as_fd(), exit.as_fd(), kvm.as_fd()] {
            inherit(fd);
        }
        for fd in inherited {
            // SAFETY: the caller keeps it open meanwhile.
            inherit(unsafe { BorrowedFd::borrow_raw(*fd) });
        }
        let child = spawn_as_first_process(command);
        let socket = seqpacket();
        connect(socket.as_raw_fd(), &address).unwrap();
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT.as_secs().try_into().unwrap(), 0)).unwrap();
        Self { child, exit, socket, next_id: 1, connections: VecDeque::new() }
    }

    /// Its id here; in its own namespace it is 1.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The text of a file in its folder of `/proc`.
    pub(crate) fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap()
    }

    /// Its threads, as (id, name).
    pub(crate) fn threads(&self) -> Vec<(libc::pid_t, String)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
        // A thread may end between the two.
        ids.filter_map(|id| {
            let name = std::fs::read_to_string(format!("/proc/{}/task/{id}/comm", self.pid())).ok()?;
            Some((id.parse().unwrap(), name.trim_end().to_owned()))
        })
        .collect()
    }

    /// The id of the thread called `name`, when there is one.
    pub(crate) fn thread(&self, name: &str) -> libc::pid_t {
        let find = || self.threads().into_iter().find(|thread| thread.1 == name);
        wait_for(name, || find().is_some());
        find().unwrap().0
    }

    pub(crate) fn request(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Reply {
        let id = self.next_id;
        self.next_id += 1;
        vmm::send(self.socket.as_fd(), &RequestMessage { id, request }, fds).unwrap();
        loop {
            if let Some((replied, result)) = self.receive() {
                assert_eq!(replied, id);
                return result.unwrap();
            }
        }
    }

    /// One packet: a reply, or a connection that is put aside.
    fn receive(&mut self) -> Option<(u64, Result<Reply, Fault>)> {
        let packet = vmm::receive(self.socket.as_fd()).unwrap().expect("the monitor closed the connection");
        match serde_json::from_slice(&packet.bytes).unwrap() {
            MonitorMessage::Reply { id, result } => Some((id, result)),
            MonitorMessage::Event(Event::GuestConnected { .. }) => {
                self.connections.extend(packet.fds);
                None
            }
            MonitorMessage::Event(Event::Disk(event)) => panic!("the host's disk: {event:?}"),
        }
    }

    /// The next connection of the guest.
    pub(crate) fn guest_connection(&mut self) -> UnixStream {
        while self.connections.is_empty() {
            assert!(self.receive().is_none(), "a reply that nobody asked for");
        }
        let stream = UnixStream::from(self.connections.pop_front().unwrap());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    pub(crate) fn boot(&mut self, guest: &Guest) {
        let console = guest.console.as_fd();
        let tap = guest.wire.tap.as_fd();
        let fds = [guest.kernel.as_fd(), guest.disk.as_fd(), guest.vsock.as_fd(), tap, console];
        let reply = self.request(Request::Boot(guest.config.clone()), &fds);
        assert!(matches!(reply, Reply::Booted(_)), "{reply:?}");
    }

    /// Waits for the process to end; its record, if it left one.
    pub(crate) fn end(mut self) -> (ExitStatus, Option<ExitRecord>) {
        let mut status = None;
        wait_for("the monitor's end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut text = String::new();
        self.exit.rewind().unwrap();
        self.exit.read_to_string(&mut text).unwrap();
        (status.unwrap(), serde_json::from_str(&text).ok())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a new PID namespace, whose first process the next child of a thread is that asked for one: so the thread is a new
/// one.
fn spawn_as_first_process(mut command: Command) -> Child {
    let spawn = move || {
        unshare(CloneFlags::CLONE_NEWPID).unwrap();
        command.spawn().unwrap()
    };
    thread::spawn(spawn).join().unwrap()
}

fn inherit(fd: BorrowedFd<'_>) {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
}

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// What a guest's network device is and may.
pub(crate) const NET: NetConfig = NetConfig {
    mac: [2, 0, 0, 0, 0, 1],
    limits: NetLimits { bytes_per_second: Some(1 << 20), packets_per_second: Some(1000) },
};

/// A machine that uses its console, disk, network and vsock, and then runs in circles.
pub(crate) struct Guest {
    config: MachineConfig,
    kernel: File,
    pub(crate) disk: File,
    pub(crate) vsock: UnixListener,
    pub(crate) wire: Wire,
    console: File,
    /// Of the vsock listener's socket.
    folder: TempDir,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut kernel = tempfile::tempfile().unwrap();
        kernel.write_all(&devices::payload().elf()).unwrap();
        let mut disk = tempfile::tempfile().unwrap();
        disk.write_all(&devices::FIRST_BLOCK).unwrap();
        Self {
            config: MachineConfig {
                vcpus: 1,
                memory_mib: 32,
                kernel_args: String::new(),
                disk_limits: DiskLimits::default(),
                disks: vec![DiskConfig {
                    serial: "root".into(),
                    size: devices::DISK_SIZE,
                    layers: 1,
                    read_only: false,
                }],
                net: Some(NET),
                console: true,
            },
            kernel,
            disk,
            vsock: UnixListener::bind(folder.path().join("vsock")).unwrap(),
            wire: Wire::new(),
            console: tempfile::tempfile().unwrap(),
            folder,
        }
    }

    /// What the guest wrote to its serial port.
    pub(crate) fn output(&self) -> Vec<u8> {
        let mut file = &self.console;
        let mut output = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut output).unwrap();
        output
    }

    /// A client of the guest's vsock ports.
    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("vsock")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }
}
