//! The network device against a hostile driver, with a socket for a tap.
//!
//! The input is a program: each step's first byte says what happens, and the bytes after it how. Most chains lie in memory
//! and most headers ask for something that can be had, so that they get far; none has to be well formed. Everything runs
//! on one thread, the device gets its turns between the steps.
//!
//! Beyond the absence of panics: no frame comes out of the tap that is longer or shorter than one may be, and the device
//! comes to rest, or breaks, when nothing changes any more.
#![no_main]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use sandpiper_protocol::vmm::NetLimits;
use sandpiper_vmm::devices::virtio::net::{Broken, Next, Service, Tap};
use sandpiper_vmm::devices::virtio::{Activation, ActiveQueue, Interrupt, Memory};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const QUEUE_SIZE: u16 = 16;
/// The receive and transmit queues, one after the other.
const QUEUES: u64 = 0x1000;
const QUEUE_STRIDE: u64 = 0x1000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
/// Headers and frames, in slots.
const SLOTS: u64 = 0x8000;
const SLOT: u64 = 0x1000;
const MEMORY: usize = 0x4_0000;
/// `EVENT_IDX` and what a network driver may accept, in the order of the settings' bits.
const FEATURES: [u32; 8] = [29, 15, 0, 1, 7, 8, 11, 12];
const HEADER: usize = 12;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut machine = Machine::new(input.byte());
    while !input.0.is_empty() {
        match input.byte() % 12 {
            0..=2 => machine.send(&mut input),
            3..=5 => machine.post(&mut input),
            6 => machine.scribble(&mut input),
            7 | 8 => machine.host_sends(&mut input),
            9 => machine.host_receives(),
            _ if machine.turn().is_err() => return,
            _ => {}
        }
    }
    // What is left is bounded: no step comes, no frame moves on the host.
    for _ in 0..4096 {
        match machine.turn() {
            Ok(Next::Now) => {}
            Ok(_) | Err(_) => return,
        }
    }
    panic!("the device does not come to rest");
}

struct Machine {
    memory: Memory,
    service: Service,
    host: OwnedFd,
    /// Entries made available so far, per queue.
    posted: [u16; 2],
}

impl Machine {
    fn new(settings: u8) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (tap, host) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("sockets");
        let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory");
        let event = || EventFd::new(EFD_NONBLOCK).expect("an event");
        let queues = (0..2).map(|index| ActiveQueue { queue: queue(index), notify: event() }).collect();
        let accepted = |(at, bit): (usize, &u32)| u64::from(settings >> at & 1) << bit;
        let features = FEATURES.iter().enumerate().map(accepted).sum();
        let interrupt = Interrupt::new(event());
        let activation = Activation { memory: memory.clone(), queues, interrupt, features, restored: false };
        let tap = Tap::new(File::from(tap)).expect("flags");
        let service = Service::new(tap, NetLimits::default(), activation).expect("two queues");
        Self { memory, service, host, posted: [0; 2] }
    }

    fn turn(&mut self) -> Result<Next, Broken> {
        self.service.readable();
        self.service.turn(Instant::now())
    }

    /// A frame behind a header from the input, in one to three buffers.
    fn send(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let mut header = [0; HEADER];
        input.fill(&mut header);
        if shape & 0x80 == 0 {
            // Flags and types that exist, and small numbers.
            header[0] &= 1;
            header[1] = [0, 1, 4, 0x81][usize::from(header[1] % 4)];
            for high in [3, 5, 7, 9] {
                header[high] = 0;
            }
        }
        let slot = SLOTS + u64::from(shape % 8) * SLOT;
        self.put(slot, &header);
        let len = u32::from(input.byte()) * 16;
        match shape >> 3 & 3 {
            0 => self.publish(TRANSMIT, &[(slot, 12 + len, 0)]),
            1 => self.publish(TRANSMIT, &[(slot, 12, 0), (slot + 12, len, 0)]),
            2 => self.publish(TRANSMIT, &[(slot, 5, 0), (slot + 5, 50, 0), (SLOTS, len * 32, 0)]),
            _ => self.publish(TRANSMIT, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let slot = SLOTS + (8 + u64::from(shape % 8)) * SLOT;
        match shape >> 3 & 3 {
            0 => self.publish(RECEIVE, &[(slot, 1526, 2)]),
            1 => self.publish(RECEIVE, &[(slot, u32::from(input.byte()) * 16, 2)]),
            2 => self.publish(RECEIVE, &[(slot, 3, 2), (slot + 3, u32::from(input.byte()) * 8, 2)]),
            _ => self.publish(RECEIVE, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    /// Puts a chain of `buffers` (address, length, flags) where the next entry's descriptors are, and makes it available.
    fn publish(&mut self, queue: usize, buffers: &[(u64, u32, u16)]) {
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

    fn host_sends(&mut self, input: &mut Input<'_>) {
        let mut bytes = vec![0x55; HEADER + usize::from(input.byte()) * 300];
        bytes[..HEADER].fill(0);
        bytes[0] = input.byte() % 4;
        bytes[1] = input.byte() % 6;
        // A full socket takes no more.
        let _ = send(self.host.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
    }

    fn host_receives(&mut self) {
        let mut bytes = vec![0; 100_000];
        while let Ok(count) = recv(self.host.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            assert!((HEADER + 14..=HEADER + 14 + 65_535).contains(&count), "{count}");
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
