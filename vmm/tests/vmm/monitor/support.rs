//! A monitor under test: the real binary, its control socket, and payload guests of a few instructions.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::payload::Payload;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen, socket,
};
use sandpiper_protocol::vmm::{
    self, DiskEvent, DiskLimits, Event, ExitRecord, Fault, MachineConfig, MonitorMessage, Reply, Request,
    RequestMessage,
};
use sandpiper_skip::skipped;

/// How long anything may take on a busy machine whose guests are emulated.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether guests can run here. If not, says so where nobody overlooks it.
pub(crate) fn kvm_is_usable() -> bool {
    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => true,
        Err(error) => {
            skipped("the monitor with payload guests", format!("/dev/kvm cannot be opened: {error}"));
            false
        }
    }
}

/// A running monitor.
pub(crate) struct Monitor {
    child: Child,
    address: UnixAddr,
    exit: File,
    pub(crate) agent: Agent,
}

impl Monitor {
    pub(crate) fn start() -> Self {
        let listener = seqpacket();
        // An unnamed address has the kernel choose an abstract one.
        bind(listener.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        listen(&listener, Backlog::new(4).unwrap()).unwrap();
        let address: UnixAddr = getsockname(listener.as_raw_fd()).unwrap();
        let exit = tempfile::tempfile().unwrap();
        let inherited = exit.try_clone().unwrap();
        // Inherited by any process that another test starts at this moment too: harmless, for none of them reads it.
        for fd in [listener.as_fd(), inherited.as_fd()] {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        }
        let child = Command::new(env!("CARGO_BIN_EXE_sandpiper-vmm"))
            .args(["--control-fd", &listener.as_raw_fd().to_string()])
            .args(["--exit-fd", &inherited.as_raw_fd().to_string()])
            .args(["--name", "test"])
            .spawn()
            .unwrap();
        let agent = Agent::connect(&address);
        Self { child, address, exit, agent }
    }

    /// One more control connection.
    pub(crate) fn connect(&self) -> Agent {
        Agent::connect(&self.address)
    }

    /// Waits for the process to end and reads its record.
    pub(crate) fn end(mut self) -> (ExitRecord, i32) {
        let deadline = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the monitor does not end");
            thread::sleep(Duration::from_millis(2));
        };
        let mut text = String::new();
        self.exit.rewind().unwrap();
        self.exit.read_to_string(&mut text).unwrap();
        (serde_json::from_str(&text).unwrap(), status.code().unwrap())
    }

    /// How many descriptors the process has.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// How many of its threads have this name.
    pub(crate) fn threads(&self, name: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let names = threads.flat_map(|thread| std::fs::read_to_string(thread.path().join("comm")));
        names.filter(|found| found.trim_end() == name).count()
    }

    /// KiB of memory that is this process's alone because it wrote to it, guest memory (mappings of at least `guest_mib`)
    /// left out. Not `Private_Dirty`: of a program that is on a tmpfs that counts the code too.
    pub(crate) fn anonymous_kib(&self, guest_mib: u64) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let (mut size, mut sum) = (0, 0);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next().and_then(|number| number.parse::<u64>().ok())) {
                (Some("Size:"), Some(kib)) => size = kib,
                (Some("Anonymous:"), Some(kib)) if size < guest_mib * 1024 => sum += kib,
                _ => {}
            }
        }
        sum
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// One control connection, as the agent has it.
pub(crate) struct Agent {
    socket: OwnedFd,
    next_id: u64,
    /// The guest's connections that nobody asked for yet.
    guest_connections: VecDeque<OwnedFd>,
    disk_events: VecDeque<DiskEvent>,
}

impl Agent {
    fn connect(address: &UnixAddr) -> Self {
        let socket = seqpacket();
        connect(socket.as_raw_fd(), address).unwrap();
        let timeout = nix::sys::time::TimeVal::new(TIMEOUT.as_secs().try_into().unwrap(), 0);
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::ReceiveTimeout, &timeout).unwrap();
        Self { socket, next_id: 1, guest_connections: VecDeque::new(), disk_events: VecDeque::new() }
    }

    pub(crate) fn request(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, Fault> {
        let id = self.next_id;
        self.next_id += 1;
        vmm::send(self.socket.as_fd(), &RequestMessage { id, request }, fds).unwrap();
        let (replied, result) = self.reply();
        assert_eq!(replied, id);
        result
    }

    /// Sends bytes that need not be a request.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> (u64, Result<Reply, Fault>) {
        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
        let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        let iov = [std::io::IoSlice::new(bytes)];
        sendmsg::<()>(self.socket.as_raw_fd(), &iov, rights, MsgFlags::empty(), None).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> (u64, Result<Reply, Fault>) {
        loop {
            if let Some(reply) = self.receive() {
                return reply;
            }
        }
    }

    /// The host's end of the next connection that the guest opens, or has opened.
    pub(crate) fn guest_connection(&mut self) -> UnixStream {
        loop {
            if let Some(connection) = self.guest_connections.pop_front() {
                return connection.into();
            }
            assert!(self.receive().is_none(), "a reply to no request");
        }
    }

    /// Takes one packet, and returns it if it is a reply.
    fn receive(&mut self) -> Option<(u64, Result<Reply, Fault>)> {
        let packet = vmm::receive(self.socket.as_fd()).unwrap().expect("the monitor closed the connection");
        match serde_json::from_slice(&packet.bytes).unwrap() {
            MonitorMessage::Reply { id, result } => Some((id, result)),
            MonitorMessage::Event(Event::GuestConnected { .. }) => {
                self.guest_connections.extend(packet.fds);
                None
            }
            MonitorMessage::Event(Event::Disk(event)) => {
                self.disk_events.push_back(event);
                None
            }
        }
    }

    /// The next thing that the monitor tells of its disks.
    pub(crate) fn disk_event(&mut self) -> DiskEvent {
        loop {
            if let Some(event) = self.disk_events.pop_front() {
                return event;
            }
            assert!(self.receive().is_none(), "a reply to no request");
        }
    }

    pub(crate) fn boot(&mut self, guest: &Guest) -> Result<Reply, Fault> {
        let mut fds = vec![guest.kernel.as_fd()];
        fds.extend(guest.layers.iter().map(AsFd::as_fd));
        fds.push(guest.vsock.as_fd());
        fds.extend(guest.console.iter().map(AsFd::as_fd));
        self.request(Request::Boot(guest.config.clone()), &fds)
    }
}

/// A machine to boot, and the files it is made of.
pub(crate) struct Guest {
    pub(crate) config: MachineConfig,
    pub(crate) kernel: File,
    pub(crate) layers: Vec<File>,
    pub(crate) vsock: UnixListener,
    pub(crate) console: Option<File>,
}

impl Guest {
    /// One vCPU, 32 MiB, a console, no disk, and `code` for a kernel.
    pub(crate) fn new(code: &Payload) -> Self {
        // The socket outlives its name.
        let (_, vsock) = vsock_listener();
        Self {
            config: MachineConfig {
                vcpus: 1,
                memory_mib: 32,
                kernel_args: String::new(),
                disks: Vec::new(),
                disk_limits: DiskLimits::default(),
                net: None,
                console: true,
            },
            kernel: file_with(&code.elf()),
            layers: Vec::new(),
            vsock,
            console: Some(tempfile::tempfile().unwrap()),
        }
    }

    /// What the guest wrote to its serial port.
    pub(crate) fn output(&self) -> Vec<u8> {
        let mut file = self.console.as_ref().unwrap();
        let mut output = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut output).unwrap();
        output
    }
}

pub(crate) fn file_with(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Where a guest's vsock ports are reached: the socket `vsock` in the folder.
pub(crate) fn vsock_listener() -> (tempfile::TempDir, UnixListener) {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("vsock")).unwrap();
    (folder, listener)
}
