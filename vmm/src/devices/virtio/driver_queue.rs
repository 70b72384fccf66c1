//! A driver's side of a virtqueue, for the tests of devices.

use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::VRING_DESC_F_NEXT;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{ActiveQueue, Memory};

pub(super) const QUEUE_SIZE: u16 = 64;

/// The driver's side of a split virtqueue (virtio 1.2 section 2.7).
pub(super) struct DriverQueue {
    table: u64,
    available: u64,
    used: u64,
    free: Vec<u16>,
    chains: Vec<Vec<u16>>,
    posted: u16,
    seen: u16,
    pub(super) notify: EventFd,
}

impl DriverQueue {
    pub(super) fn new(at: u64) -> Self {
        Self {
            table: at,
            available: at + 0x1000,
            used: at + 0x2000,
            free: (0..QUEUE_SIZE).collect(),
            chains: vec![Vec::new(); QUEUE_SIZE.into()],
            posted: 0,
            seen: 0,
            notify: EventFd::new(EFD_NONBLOCK).expect("an event"),
        }
    }

    /// Where its descriptors are.
    pub(super) fn table(&self) -> u64 {
        self.table
    }

    pub(super) fn active(&self) -> ActiveQueue {
        let mut queue = Queue::new(QUEUE_SIZE).expect("a power of two");
        queue.set_size(QUEUE_SIZE);
        queue.try_set_desc_table_address(GuestAddress(self.table)).expect("aligned");
        queue.try_set_avail_ring_address(GuestAddress(self.available)).expect("aligned");
        queue.try_set_used_ring_address(GuestAddress(self.used)).expect("aligned");
        queue.set_ready(true);
        ActiveQueue { queue, notify: self.notify.try_clone().expect("a descriptor") }
    }

    /// Makes a chain available and returns its head, or `None` without enough descriptors.
    pub(super) fn post(&mut self, memory: &Memory, buffers: &[(u64, u32)], flags: u32) -> Option<u16> {
        if self.free.len() < buffers.len() {
            return None;
        }
        let indices = self.free.split_off(self.free.len() - buffers.len());
        for (at, (addr, len)) in buffers.iter().enumerate() {
            let next = indices.get(at + 1);
            let flags = u16::try_from(flags | next.map_or(0, |_| VRING_DESC_F_NEXT)).expect("16 bits");
            let descriptor = Descriptor::new(*addr, *len, flags, next.copied().unwrap_or(0));
            let place = GuestAddress(self.table + u64::from(indices[at]) * 16);
            memory.write_obj(RawDescriptor::from(descriptor), place).expect("in memory");
        }
        let head = indices[0];
        self.chains[usize::from(head)] = indices;
        self.publish(memory, head);
        Some(head)
    }

    /// Puts `head` into the available ring, whatever it is.
    pub(super) fn publish(&mut self, memory: &Memory, head: u16) {
        let slot = self.available + 4 + u64::from(self.posted % QUEUE_SIZE) * 2;
        memory.write_obj(head, GuestAddress(slot)).expect("in memory");
        self.posted = self.posted.wrapping_add(1);
        self.set_available(memory, self.posted);
    }

    pub(super) fn set_available(&self, memory: &Memory, index: u16) {
        memory.store(index, GuestAddress(self.available + 2), Ordering::Release).expect("in memory");
        self.notify.write(1).expect("an event");
    }

    /// The next chain that the device has finished, and how many bytes it wrote.
    pub(super) fn take_used(&mut self, memory: &Memory) -> Option<(u16, u32)> {
        let index: u16 = memory.load(GuestAddress(self.used + 2), Ordering::Acquire).expect("in memory");
        if index == self.seen {
            // `used_event`: an interrupt for the very next one.
            let event = self.available + 4 + u64::from(QUEUE_SIZE) * 2;
            memory.store(self.seen, GuestAddress(event), Ordering::SeqCst).expect("in memory");
            fence(Ordering::SeqCst);
            let again: u16 = memory.load(GuestAddress(self.used + 2), Ordering::Acquire).expect("in memory");
            if again == self.seen {
                return None;
            }
        }
        let slot = self.used + 4 + u64::from(self.seen % QUEUE_SIZE) * 8;
        let (head, len): (u32, u32) = (
            memory.read_obj(GuestAddress(slot)).expect("in memory"),
            memory.read_obj(GuestAddress(slot + 4)).expect("in memory"),
        );
        self.seen = self.seen.wrapping_add(1);
        let head = u16::try_from(head).expect("one of the posted heads");
        self.free.append(&mut self.chains[usize::from(head)]);
        Some((head, len))
    }
}
