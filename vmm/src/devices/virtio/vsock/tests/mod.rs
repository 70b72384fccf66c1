//! The whole device against a driver: its thread runs, the queues lie in guest memory, the sockets are real.

mod data;
mod driver;
mod handshake;
mod hostile;
mod shutdown;
mod snapshot;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use driver::{Guest, Packet};
use sandpiper_protocol::guest::{GUEST_CID, LINK_PORT};
use tempfile::TempDir;

use super::packet::op;
use super::{Backend, GuestConnections, Service, Vsock};
use crate::devices::virtio::{Activation, EventLoop, VirtioDevice};

/// No test waits longer than this for anything.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Lets the guest connect to [`LINK_PORT`], and hands the test the far end.
struct Link(Sender<UnixStream>);

impl GuestConnections for Link {
    fn connect(&mut self, port: u32) -> Option<UnixStream> {
        let (near, far) = UnixStream::pair().ok()?;
        far.set_read_timeout(Some(TIMEOUT)).ok()?;
        (port == LINK_PORT && self.0.send(far).is_ok()).then_some(near)
    }
}

/// A running device, its driver, and the way in from the host.
struct Fixture {
    device: Vsock,
    guest: Guest,
    links: Receiver<UnixStream>,
    socket: PathBuf,
    _directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("vsock");
        let listener = UnixListener::bind(&socket).expect("a listener");
        let (sender, links) = channel();
        let mut device = Vsock::new(GUEST_CID, listener, Box::new(Link(sender)));
        let guest = Guest::new();
        device.activate(guest.activation()).expect("the device starts");
        Self { device, guest, links, socket, _directory: directory }
    }

    /// A client that has named its port.
    fn client(&self, port: u32) -> UnixStream {
        client(&self.socket, port)
    }

    /// A client that is connected to the guest's `port`, and the host's port.
    fn connected(&mut self, port: u32) -> (UnixStream, u32) {
        let mut client = self.client(port);
        let request = self.guest.receive_op(op::REQUEST);
        self.guest.reply(&request, op::RESPONSE, 0);
        let host_port = request.header.src_port.get();
        assert_eq!(read_line(&mut client), format!("OK {host_port}\n"));
        (client, host_port)
    }

    /// A connection that the guest opened from `port`, as the host has it.
    fn linked(&mut self, port: u32) -> UnixStream {
        self.guest.send(LINK_PORT, port, op::REQUEST, 0, &[]);
        let response = self.guest.receive();
        assert_eq!(response.op(), op::RESPONSE);
        self.links.recv_timeout(TIMEOUT).expect("the device asked for a connection")
    }
}

fn client(socket: &Path, port: u32) -> UnixStream {
    let mut client = UnixStream::connect(socket).expect("the listener accepts");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    client.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    writeln!(client, "CONNECT {port}").expect("room for a line");
    client
}

/// Where a device without a thread is reached.
struct Socket {
    path: PathBuf,
    _links: Receiver<UnixStream>,
    _directory: TempDir,
}

/// The device's loop without its thread, for tests that poll it themselves.
fn event_loop(guest: &Guest) -> (EventLoop<Service>, Socket) {
    event_loop_of(guest.activation())
}

fn event_loop_of(activation: Activation) -> (EventLoop<Service>, Socket) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("vsock");
    let listener = UnixListener::bind(&path).expect("a listener");
    let (sender, links) = channel();
    let backend = Backend::new(GUEST_CID, listener, Box::new(Link(sender)));
    let service = Service::new(backend, activation, None).expect("a service");
    (EventLoop::new(service), Socket { path, _links: links, _directory: directory })
}

/// Polls until the guest gets an `op`.
fn poll_until(event_loop: &mut EventLoop<Service>, guest: &mut Guest, op: u16) -> Packet {
    for _ in 0..100 {
        event_loop.poll().expect("a device that goes on");
        while let Some(packet) = guest.poll() {
            if packet.op() == op {
                return packet;
            }
        }
    }
    panic!("no packet with operation {op}");
}

fn read_line(stream: &mut UnixStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") && stream.read(&mut byte).expect("an answer in time") > 0 {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}

fn assert_at_end(stream: &mut UnixStream) {
    assert_eq!(stream.read(&mut [0]).expect("an end of file in time"), 0);
}

/// Bytes in which every misplaced block shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

fn ports(packet: &Packet) -> (u32, u32) {
    (packet.header.src_port.get(), packet.header.dst_port.get())
}
