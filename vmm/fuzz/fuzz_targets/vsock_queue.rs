//! The vsock device against a hostile driver, with clients on the host that come, talk and go.
//!
//! The input is a program: each step's first byte says what happens, and the bytes after it how. Most packets get the right
//! addresses and ports that some connection may have, so that they reach the state machine; none has to be well formed.
//! Everything runs on one thread, the device gets its turns between the steps.
//!
//! Beyond the absence of panics: the device comes to rest. When nothing changes any more, it does not want another turn.
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use sandpiper_vmm::devices::virtio::vsock::{Backend, GuestConnections, Pace, Turn, Worker};
use sandpiper_vmm::devices::virtio::{Activation, ActiveQueue, Interrupt, Memory};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const GUEST_CID: u8 = 3;
const QUEUE_SIZE: u16 = 16;
/// The receive, transmit and event queues, one after the other.
const QUEUES: u64 = 0x1000;
const QUEUE_STRIDE: u64 = 0x1000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
/// Headers and data, in slots.
const SLOTS: u64 = 0x8000;
const SLOT: u64 = 0x1000;
const MEMORY: usize = 0x4_0000;
/// `VIRTIO_RING_F_EVENT_IDX`
const EVENT_IDX: u64 = 1 << 29;
const MAX_CLIENTS: usize = 8;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut machine = Machine::new(input.byte());
    while !input.0.is_empty() {
        match input.byte() % 16 {
            0..=5 => machine.send_packet(&mut input),
            6..=8 => machine.post_receive(&mut input),
            9 => machine.scribble(&mut input),
            10 => machine.connect(&mut input),
            11 => machine.talk(&mut input),
            12 => machine.hang_up(&mut input),
            13 => machine.listen(),
            _ => machine.turn(),
        }
    }
    // What is left is bounded: no step comes, no byte moves on the host.
    for _ in 0..4096 {
        machine.turn();
        if !machine.worker.is_busy() {
            return;
        }
    }
    panic!("the device does not come to rest");
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
    memory: Memory,
    worker: Worker,
    address: SocketAddr,
    clients: Arc<Mutex<Vec<UnixStream>>>,
    /// Entries made available so far, per queue.
    posted: [u16; 2],
}

impl Machine {
    fn new(settings: u8) -> Self {
        static INSTANCE: AtomicU64 = AtomicU64::new(0);
        let name = format!("vsock-fuzz-{}-{}", std::process::id(), INSTANCE.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        let listener = UnixListener::bind_addr(&address).expect("a free name");
        let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory");
        let clients = Arc::new(Mutex::new(Vec::new()));
        let event = || EventFd::new(EFD_NONBLOCK).expect("an event");
        let queues = (0..3).map(|index| ActiveQueue { queue: queue(index), notify: event() }).collect();
        let features = if settings & 1 == 0 { EVENT_IDX } else { 0 };
        let activation = Activation { memory: memory.clone(), queues, interrupt: Interrupt::new(event()), features, restored: false };
        let backend = Backend::new(GUEST_CID.into(), listener, Box::new(Accept(clients.clone())));
        let worker = Worker::new(backend, activation, None).expect("the worker starts");
        Self { memory, worker, address, clients, posted: [0; 2] }
    }

    fn turn(&mut self) {
        assert_eq!(self.worker.turn(Pace::Poll), Turn::Continue);
    }

    /// A packet with a header from the input, in one to three buffers.
    fn send_packet(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let mut header = [0; 44];
        input.fill(&mut header);
        if shape & 0x80 == 0 {
            // Addressed as it should be, a stream, and a port that may be in use.
            let (guest_port, op) = (u32::from(header[16] % 4), u16::from(header[30] % 9));
            header[..16].fill(0);
            header[0] = GUEST_CID;
            header[8] = 2;
            header[16..20].copy_from_slice(&guest_port.to_le_bytes());
            let host_port = if header[20] % 2 == 0 { 1024 } else { (1 << 30) + u32::from(header[21] % 4) };
            header[20..24].copy_from_slice(&host_port.to_le_bytes());
            header[28..30].copy_from_slice(&1_u16.to_le_bytes());
            header[30..32].copy_from_slice(&op.to_le_bytes());
        }
        let slot = SLOTS + u64::from(shape % 8) * SLOT;
        self.put(slot, &header);
        let len = u32::from(input.byte()) * 16;
        match shape >> 3 & 3 {
            0 => self.post(1, &[(slot, 44 + len, 0)]),
            1 => self.post(1, &[(slot, 44, 0), (slot + 44, len, 0)]),
            2 => self.post(1, &[(slot, 20, 0), (slot + 20, 24, 0), (slot + 44, len, 0)]),
            _ => self.post(1, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let slot = SLOTS + (8 + u64::from(shape % 8)) * SLOT;
        match shape >> 3 & 3 {
            0 | 1 => self.post(0, &[(slot, 3776, 2)]),
            2 => self.post(0, &[(slot, 44, 2), (slot + 44, u32::from(input.byte()) * 8, 2)]),
            _ => self.post(0, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    /// Puts a chain of `buffers` (address, length, flags) where the next entry's descriptors are, and makes it available.
    fn post(&mut self, queue: usize, buffers: &[(u64, u32, u16)]) {
        let base = QUEUES + queue as u64 * QUEUE_STRIDE;
        let head = self.posted[queue] % 5 * 3;
        for (at, (addr, len, flags)) in (head..).zip(buffers) {
            let last = usize::from(at - head) + 1 == buffers.len();
            let flags = flags | u16::from(!last);
            let descriptor = base + u64::from(at) * 16;
            self.put(descriptor, &addr.to_le_bytes());
            self.put(descriptor + 8, &len.to_le_bytes());
            self.put(descriptor + 12, &flags.to_le_bytes());
            self.put(descriptor + 14, &(at + 1).to_le_bytes());
        }
        let entry = base + AVAILABLE + 4 + u64::from(self.posted[queue] % QUEUE_SIZE) * 2;
        self.put(entry, &head.to_le_bytes());
        self.posted[queue] = self.posted[queue].wrapping_add(1);
        self.put(base + AVAILABLE + 2, &self.posted[queue].to_le_bytes());
    }

    /// Anything, anywhere.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let at = u64::from(u16::from_le_bytes([input.byte(), input.byte()]));
        let mut bytes = [0; 8];
        input.fill(&mut bytes);
        self.put(at, &bytes);
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        // Beyond the end of memory there is nothing to be written.
        let _ = self.memory.write(bytes, GuestAddress(at));
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
        self.turn();
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

fn queue(index: u64) -> Queue {
    let base = QUEUES + index * QUEUE_STRIDE;
    let mut queue = Queue::new(QUEUE_SIZE).expect("a power of two");
    queue.set_size(QUEUE_SIZE);
    queue.try_set_desc_table_address(GuestAddress(base)).expect("aligned");
    queue.try_set_avail_ring_address(GuestAddress(base + AVAILABLE)).expect("aligned");
    queue.try_set_used_ring_address(GuestAddress(base + USED)).expect("aligned");
    queue.set_ready(true);
    queue
}

/// What is left of the input. Zeroes after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let (now, later) = self.0.split_at(self.0.len().min(bytes.len()));
        bytes[..now.len()].copy_from_slice(now);
        self.0 = later;
    }
}
