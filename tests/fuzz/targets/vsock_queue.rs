//! The vsock device against a hostile driver, with clients on the host that come, talk and go.
//!
//! The input is a program: each step's first byte says what happens, and the bytes after it how. Most packets get the right
//! addresses and ports that some connection may have, so that they reach the state machine; none has to be well formed.
//! Everything runs on one thread, the device works between the steps.
//!
//! Beyond the absence of panics: the device becomes idle. When nothing changes any more, it has nothing to do before an event.
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Driver, Input, SLOT, SLOTS};
use sandpiper_vmm::devices::virtio::vsock::{Backend, GuestConnections, Service};
use sandpiper_vmm::devices::virtio::{EventLoop, Next};

const GUEST_CID: u8 = 3;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// `VIRTIO_RING_F_EVENT_IDX`
const EVENT_IDX: u64 = 1 << 29;
const MAX_CLIENTS: usize = 8;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut machine = Machine::new(input.byte());
    while !input.is_empty() {
        match input.byte() % 16 {
            0..=5 => machine.send_packet(&mut input),
            6..=8 => machine.post_receive(&mut input),
            9 => machine.driver.scribble(&mut input),
            10 => machine.connect(&mut input),
            11 => machine.talk(&mut input),
            12 => machine.hang_up(&mut input),
            13 => machine.listen(),
            _ => drop(machine.poll()),
        }
    }
    // What is left is bounded: no step comes, no byte moves on the host.
    for _ in 0..4096 {
        if machine.poll() != Next::Now {
            return;
        }
    }
    panic!("the device does not become idle");
}

/// Accepts the guest's connections, and keeps the far ends where the program finds them.
struct Accept(Arc<Mutex<Vec<UnixStream>>>);

impl GuestConnections for Accept {
    fn connect(&mut self, port: u32) -> Option<UnixStream> {
        let mut clients = self.0.lock().ok()?;
        if port % 2 == 1 || clients.len() >= MAX_CLIENTS {
            return None;
        }
        let (near, far) = UnixStream::pair().ok()?;
        far.set_nonblocking(true).ok()?;
        clients.push(far);
        Some(near)
    }
}

struct Machine {
    driver: Driver,
    event_loop: EventLoop<Service>,
    address: SocketAddr,
    clients: Arc<Mutex<Vec<UnixStream>>>,
}

impl Machine {
    fn new(settings: u8) -> Self {
        static INSTANCE: AtomicU64 = AtomicU64::new(0);
        let name = format!("vsock-fuzz-{}-{}", std::process::id(), INSTANCE.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        let listener = UnixListener::bind_addr(&address).expect("a free name");
        let driver = Driver::new(3);
        let clients = Arc::new(Mutex::new(Vec::new()));
        let features = if settings & 1 == 0 { EVENT_IDX } else { 0 };
        let backend = Backend::new(GUEST_CID.into(), listener, Box::new(Accept(clients.clone())));
        let service = Service::new(backend, driver.activation(features), None).expect("three queues");
        Self { driver, event_loop: EventLoop::new(service), address, clients }
    }

    fn poll(&mut self) -> Next {
        self.event_loop.poll().expect("a broken queue does not end the loop")
    }

    /// A packet with a header from the input, in one to three buffers.
    fn send_packet(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let mut header: [u8; 44] = input.number();
        if shape & 0x80 == 0 {
            // Addressed as it should be, a stream, and a port that may be in use.
            let (guest_port, op) = (u32::from(header[16] % 4), u16::from(header[30] % 9));
            header[..16].fill(0);
            header[0] = GUEST_CID;
            header[8] = 2;
            header[16..20].copy_from_slice(&guest_port.to_le_bytes());
            let host_port = if header[20].is_multiple_of(2) { 1024 } else { (1 << 30) + u32::from(header[21] % 4) };
            header[20..24].copy_from_slice(&host_port.to_le_bytes());
            header[28..30].copy_from_slice(&1_u16.to_le_bytes());
            header[30..32].copy_from_slice(&op.to_le_bytes());
        }
        let slot = SLOTS + u64::from(shape % 8) * SLOT;
        self.driver.put(slot, &header);
        let len = u32::from(input.byte()) * 16;
        match shape >> 3 & 3 {
            0 => self.driver.publish(TRANSMIT, &[(slot, 44 + len, 0)]),
            1 => self.driver.publish(TRANSMIT, &[(slot, 44, 0), (slot + 44, len, 0)]),
            2 => self.driver.publish(TRANSMIT, &[(slot, 20, 0), (slot + 20, 24, 0), (slot + 44, len, 0)]),
            _ => self.driver.publish(TRANSMIT, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let slot = SLOTS + (8 + u64::from(shape % 8)) * SLOT;
        match shape >> 3 & 3 {
            0 | 1 => self.driver.publish(RECEIVE, &[(slot, 3776, 2)]),
            2 => self.driver.publish(RECEIVE, &[(slot, 44, 2), (slot + 44, u32::from(input.byte()) * 8, 2)]),
            _ => self.driver.publish(RECEIVE, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let port = input.byte() % 4;
        let mut clients = self.clients.lock().expect("nobody panicked");
        if clients.len() < MAX_CLIENTS {
            let mut client = UnixStream::connect_addr(&self.address).expect("room in the backlog");
            client.set_nonblocking(true).expect("a flag");
            let _ = writeln!(client, "CONNECT {port}");
            clients.push(client);
        }
        drop(clients);
        // Keeps the backlog short.
        self.poll();
    }

    fn talk(&mut self, input: &mut Input<'_>) {
        let (which, len) = (usize::from(input.byte()), usize::from(input.byte()) * 64);
        let clients = self.clients.lock().expect("nobody panicked");
        if let Some(client) = clients.get(which % MAX_CLIENTS) {
            let _ = { client }.write(&vec![0x55; len]);
        }
    }

    fn hang_up(&mut self, input: &mut Input<'_>) {
        let (which, how) = (usize::from(input.byte()) % MAX_CLIENTS, input.byte());
        let mut clients = self.clients.lock().expect("nobody panicked");
        let Some(client) = clients.get(which) else { return };
        let _ = match how % 4 {
            0 => client.shutdown(Shutdown::Write),
            1 => client.shutdown(Shutdown::Read),
            _ => {
                clients.swap_remove(which);
                Ok(())
            }
        };
    }

    /// Reads what has come for the clients.
    fn listen(&mut self) {
        let mut waste = [0; 4096];
        for mut client in self.clients.lock().expect("nobody panicked").iter() {
            let end = client.read(&mut waste).map_err(|error| error.kind());
            assert!(!matches!(end, Err(ErrorKind::InvalidInput)));
        }
    }
}
