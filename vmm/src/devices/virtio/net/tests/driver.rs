//! A driver as small as one can be.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use sandpiper_protocol::vmm::{NetConfig, NetLimits};
use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;
use vm_memory::{Bytes, GuestAddress};
use zerocopy::{FromBytes, IntoBytes};

use super::super::header::{HEADER_LEN, Header};
use super::super::{Net, NetError, Service, Tap};
use crate::devices::virtio::driver_line::DriverLine;
use crate::devices::virtio::driver_queue::DriverQueue;
use crate::devices::virtio::{Activation, Memory, Next, VirtioDevice};

const MEMORY: usize = 16 << 20;
/// Room for what is received and for what is sent, a slot for each chain.
const RECEIVE_AT: u64 = 1 << 20;
const SEND_AT: u64 = 8 << 20;
const SLOT: u64 = 0x1_2000;
const SLOTS: u64 = 64;

/// All that is on offer.
pub(super) fn all_features() -> u64 {
    net([0; 6]).features()
}

/// A device that nobody has begun to use.
pub(super) fn net(mac: [u8; 6]) -> Net {
    let (tap, _) = socket_pair();
    Net::new(&NetConfig { mac, limits: NetLimits::default() }, tap)
}

/// A tap that is a socket, and its other end.
fn socket_pair() -> (Tap, OwnedFd) {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("sockets");
    (Tap::new(File::from(ours)).expect("flags"), theirs)
}

/// A frame from the device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
    /// How much is in each of the chains that it fills.
    pub(super) chains: Vec<u32>,
}

pub(super) struct Driver {
    pub(super) memory: Memory,
    pub(super) line: DriverLine,
    pub(super) receive: DriverQueue,
    pub(super) transmit: DriverQueue,
    features: u64,
    /// Where the room of each posted chain is.
    rooms: HashMap<u16, u64>,
    /// Chains posted and sent so far.
    posted: u64,
    sent: u64,
}

impl Driver {
    pub(super) fn new(features: u64) -> Self {
        Self {
            memory: Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory"),
            line: DriverLine::new(),
            receive: DriverQueue::new(0x1_0000),
            transmit: DriverQueue::new(0x2_0000),
            features,
            rooms: HashMap::new(),
            posted: 0,
            sent: 0,
        }
    }

    pub(super) fn activation(&self) -> Activation {
        Activation {
            memory: self.memory.clone(),
            queues: vec![self.receive.active(), self.transmit.active()],
            interrupt: self.line.interrupt(),
            features: self.features,
            restored: false,
        }
    }

    /// Posts one chain of buffers of these lengths.
    pub(super) fn post(&mut self, lengths: &[u32]) {
        let at = RECEIVE_AT + self.posted % SLOTS * SLOT;
        let head = self.receive.post(&self.memory, &cut(at, lengths), VRING_DESC_F_WRITE).expect("free descriptors");
        self.rooms.insert(head, at);
        self.posted += 1;
    }

    /// Sends a frame, cut into buffers of these lengths and one of the rest. False without room in the queue.
    pub(super) fn send(&mut self, header: &Header, frame: &[u8], lengths: &[u32]) -> bool {
        let bytes = [header.as_bytes(), frame].concat();
        let at = SEND_AT + self.sent % SLOTS * SLOT;
        self.memory.write_slice(&bytes, GuestAddress(at)).expect("in memory");
        let rest = u32::try_from(bytes.len()).expect("short") - lengths.iter().sum::<u32>();
        let is_sent = self.transmit.post(&self.memory, &cut(at, &[lengths, &[rest]].concat()), 0).is_some();
        self.sent += u64::from(is_sent);
        is_sent
    }

    /// Takes back the chains whose frames were sent, and says how many.
    pub(super) fn reclaim(&mut self) -> usize {
        std::iter::from_fn(|| self.transmit.take_used(&self.memory)).count()
    }

    /// The next frame that was received.
    pub(super) fn received(&mut self) -> Option<Frame> {
        let (mut bytes, first) = self.next_chain()?;
        let header = Header::read_from_bytes(bytes.get(..HEADER_LEN)?).expect("as long");
        let mut chains = vec![first];
        bytes.drain(..HEADER_LEN);
        for _ in 1..header.num_buffers.get() {
            let (more, length) = self.next_chain().expect("all chains of a frame are there at once");
            bytes.extend(more);
            chains.push(length);
        }
        Some(Frame { header, bytes, chains })
    }

    fn next_chain(&mut self) -> Option<(Vec<u8>, u32)> {
        let (head, length) = self.receive.take_used(&self.memory)?;
        let mut bytes = vec![0; length as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(self.rooms[&head])).expect("in memory");
        Some((bytes, length))
    }
}

/// Buffers of these lengths, one behind the other.
fn cut(at: u64, lengths: &[u32]) -> Vec<(u64, u32)> {
    let begin = |index: usize| lengths[..index].iter().map(|length| u64::from(*length)).sum::<u64>();
    lengths.iter().enumerate().map(|(index, length)| (at + begin(index), *length)).collect()
}

/// A device without a thread, its driver, and the other end of its tap.
pub(super) struct Machine {
    pub(super) driver: Driver,
    pub(super) service: Service,
    host: OwnedFd,
}

impl Machine {
    pub(super) fn new(features: u64) -> Self {
        Self::limited(features, NetLimits::default())
    }

    pub(super) fn limited(features: u64, limits: NetLimits) -> Self {
        let driver = Driver::new(features);
        let activation = driver.activation();
        Self::with(driver, activation, limits)
    }

    /// A device that goes on with `activation`, which is not the first one of the driver.
    pub(super) fn going_on(driver: Driver, activation: Activation) -> Self {
        Self::with(driver, activation, NetLimits::default())
    }

    fn with(driver: Driver, activation: Activation, limits: NetLimits) -> Self {
        let (tap, host) = socket_pair();
        let service = Service::new(tap, limits, activation).expect("a service");
        Self { driver, service, host }
    }

    /// Transfers until there is nothing to do before an event.
    pub(super) fn settle(&mut self) {
        self.settle_at(Instant::now());
    }

    /// The same at another time.
    pub(super) fn settle_at(&mut self, now: Instant) -> Next {
        self.service.readable();
        let mut batches = (0..10_000).map(|_| self.service.transfer(now).expect("a sound device"));
        batches.find(|next| *next != Next::Now).expect("the device becomes idle")
    }

    pub(super) fn transfer(&mut self) -> Result<Next, NetError> {
        self.service.transfer(Instant::now())
    }

    /// Puts a frame into the tap.
    pub(super) fn host_sends(&self, header: &Header, frame: &[u8]) {
        let bytes = [header.as_bytes(), frame].concat();
        assert_eq!(send(self.host.as_raw_fd(), &bytes, MsgFlags::empty()), Ok(bytes.len()));
    }

    /// The frames that have come out of the tap.
    pub(super) fn host_got(&self) -> Vec<(Header, Vec<u8>)> {
        let mut bytes = vec![0; 100_000];
        std::iter::from_fn(|| {
            let count = recv(self.host.as_raw_fd(), &mut bytes, MsgFlags::empty()).ok()?;
            let (header, frame) = bytes[..count].split_at(HEADER_LEN);
            Some((Header::read_from_bytes(header).expect("as long"), frame.to_vec()))
        })
        .collect()
    }

    /// Takes the tap away.
    pub(super) fn hang_up(&mut self) {
        let (_, other) = socket_pair();
        self.host = other;
    }
}
