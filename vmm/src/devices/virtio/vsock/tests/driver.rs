//! A driver as small as one can be: posts receive buffers, sends packets, and hides nothing of what it gets.

use std::collections::VecDeque;

use sandpiper_protocol::guest::{GUEST_CID, HOST_CID};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VRING_DESC_F_WRITE};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::{FromBytes, IntoBytes};

use super::super::packet::{HEADER_LEN, Header, TYPE_STREAM};
use crate::devices::virtio::driver_line::DriverLine;
use crate::devices::virtio::driver_queue::DriverQueue;
pub(super) use crate::devices::virtio::driver_queue::QUEUE_SIZE;
use crate::devices::virtio::{Activation, Memory};

/// Linux posts 4 KiB, less what it needs for itself.
pub(super) const RECEIVE_BUFFER: u32 = 3776;
/// What the driver's sockets buffer.
pub(super) const GUEST_BUFFER: u32 = 256 * 1024;
const LARGEST_PACKET: u64 = 64 * 1024;

const MEMORY: usize = 16 << 20;
const RECEIVE_AT: u64 = 1 << 20;
const SEND_AT: u64 = 4 << 20;
const EVENT_AT: u64 = 8 << 20;

/// A packet from the device.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) header: Header,
    pub(super) data: Vec<u8>,
}

impl Packet {
    pub(super) fn op(&self) -> u16 {
        self.header.op.get()
    }
}

/// The driver.
pub(super) struct Guest {
    pub(super) memory: Memory,
    pub(super) receive: DriverQueue,
    pub(super) transmit: DriverQueue,
    event: DriverQueue,
    pub(super) line: DriverLine,
    inbox: VecDeque<Packet>,
    receive_slots: Vec<u64>,
    /// What `buf_alloc` and `fwd_cnt` of outgoing headers are.
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

impl Guest {
    pub(super) fn new() -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory");
        let mut guest = Self {
            receive: DriverQueue::new(0x1_0000),
            transmit: DriverQueue::new(0x2_0000),
            event: DriverQueue::new(0x3_0000),
            line: DriverLine::new(),
            inbox: VecDeque::new(),
            receive_slots: vec![0; QUEUE_SIZE.into()],
            memory,
            buf_alloc: GUEST_BUFFER,
            fwd_cnt: 0,
        };
        for slot in 0..u64::from(QUEUE_SIZE) {
            guest.post_receive(RECEIVE_AT + slot * 4096);
        }
        guest
    }

    pub(super) fn activation(&self) -> Activation {
        Activation {
            memory: self.memory.clone(),
            queues: vec![self.receive.active(), self.transmit.active(), self.event.active()],
            interrupt: self.line.interrupt(),
            features: 1 << VIRTIO_RING_F_EVENT_IDX,
            restored: false,
        }
    }

    /// Posts a buffer for an event.
    pub(super) fn post_event(&mut self) {
        self.event.post(&self.memory, &[(EVENT_AT, 8)], VRING_DESC_F_WRITE).expect("a free descriptor");
    }

    /// The bytes of the next event, if there is one.
    pub(super) fn poll_event(&mut self) -> Option<Vec<u8>> {
        let (_, len) = self.event.take_used(&self.memory)?;
        let mut bytes = vec![0xff; len as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(EVENT_AT)).expect("in memory");
        Some(bytes)
    }

    /// One buffer for header and data, as Linux posts it.
    fn post_receive(&mut self, at: u64) {
        let head = self.receive.post(&self.memory, &[(at, RECEIVE_BUFFER)], VRING_DESC_F_WRITE);
        self.receive_slots[usize::from(head.expect("a descriptor for each slot"))] = at;
    }

    /// The next packet from the device.
    pub(super) fn receive(&mut self) -> Packet {
        self.wait(|guest| guest.poll())
    }

    /// The next packet from the device, if it is there.
    pub(super) fn poll(&mut self) -> Option<Packet> {
        while let Some((head, len)) = self.receive.take_used(&self.memory) {
            let at = self.receive_slots[usize::from(head)];
            let mut bytes = vec![0; len as usize];
            self.memory.read_slice(&mut bytes, GuestAddress(at)).expect("in memory");
            self.post_receive(at);
            let (header, data) = Header::read_from_prefix(&bytes).expect("a whole header");
            assert_eq!(header.len.get() as usize, data.len());
            assert_eq!((header.src_cid.get(), header.dst_cid.get()), (HOST_CID.into(), GUEST_CID.into()));
            self.inbox.push_back(Packet { header, data: data.to_vec() });
        }
        self.inbox.pop_front()
    }

    /// The next packet, which is to be an `op`.
    pub(super) fn receive_op(&mut self, op: u16) -> Packet {
        let packet = self.receive();
        assert_eq!(packet.op(), op, "{packet:?}");
        packet
    }

    /// The next packet that is not about credit.
    pub(super) fn receive_other_than(&mut self, ops: &[u16]) -> Packet {
        loop {
            let packet = self.receive();
            if !ops.contains(&packet.op()) {
                return packet;
            }
        }
    }

    fn wait<T>(&mut self, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            self.line.wait();
        }
    }

    /// Waits until the device has raised `DEVICE_NEEDS_RESET`.
    pub(super) fn wait_for_needs_reset(&mut self) {
        self.wait(|guest| guest.line.is_reset_needed().then_some(()));
    }

    pub(super) fn header(&self, host_port: u32, guest_port: u32, op: u16, flags: u32, len: usize) -> Header {
        Header {
            src_cid: u64::from(GUEST_CID).into(),
            dst_cid: u64::from(HOST_CID).into(),
            src_port: guest_port.into(),
            dst_port: host_port.into(),
            len: u32::try_from(len).expect("a packet's length").into(),
            kind: TYPE_STREAM.into(),
            op: op.into(),
            flags: flags.into(),
            buf_alloc: self.buf_alloc.into(),
            fwd_cnt: self.fwd_cnt.into(),
        }
    }

    pub(super) fn send(&mut self, host_port: u32, guest_port: u32, op: u16, flags: u32, data: &[u8]) {
        let header = self.header(host_port, guest_port, op, flags, data.len());
        self.send_raw(&header, data, &[data.len()]);
    }

    pub(super) fn reply(&mut self, to: &Packet, op: u16, flags: u32) {
        self.send(to.header.src_port.get(), to.header.dst_port.get(), op, flags, &[]);
    }

    /// Sends `header` and `data`, the latter cut into buffers of the given lengths. Waits until the device has taken it.
    pub(super) fn send_raw(&mut self, header: &Header, data: &[u8], cuts: &[usize]) {
        assert!(data.len() as u64 <= LARGEST_PACKET);
        let header_at = SEND_AT;
        let data_at = SEND_AT + HEADER_LEN as u64;
        self.memory.write_slice(header.as_bytes(), GuestAddress(header_at)).expect("in memory");
        self.memory.write_slice(data, GuestAddress(data_at)).expect("in memory");
        let mut buffers = vec![(header_at, u32::try_from(HEADER_LEN).expect("small"))];
        let mut at = data_at;
        for cut in cuts.iter().filter(|cut| **cut > 0) {
            buffers.push((at, u32::try_from(*cut).expect("small")));
            at += *cut as u64;
        }
        self.send_chain(&buffers, 0);
    }

    /// Sends a chain of any buffers, and waits until the device has taken it.
    pub(super) fn send_chain(&mut self, buffers: &[(u64, u32)], flags: u32) {
        let head = self.transmit.post(&self.memory, buffers, flags).expect("enough descriptors");
        let (used, len) = self.wait(|guest| guest.transmit.take_used(&guest.memory));
        assert_eq!((used, len), (head, 0));
    }

    /// Posts one buffer of 8 KiB to be sent, and does not wait. False without a free descriptor.
    pub(super) fn try_post(&mut self, at: u64) -> bool {
        self.transmit.post(&self.memory, &[(at, 8192)], 0).is_some()
    }

    /// Takes back one buffer that the device has finished, if there is one.
    pub(super) fn reclaim(&mut self) -> bool {
        self.transmit.take_used(&self.memory).is_some()
    }
}
