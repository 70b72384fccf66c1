//! The driver's side of virtqueues, bound by no rule.
//!
//! ```text
//!   0x1000  queue 0: descriptors, 0x400 available, 0x800 used
//!   0x2000  queue 1, and so on
//!   0x8000  16 slots of a page each, for what descriptors point to
//! ```

use sandpiper_vmm::devices::virtio::{Activation, ActiveQueue, Interrupt, Memory};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::Input;

const QUEUE_SIZE: u16 = 16;
const QUEUES: u64 = 0x1000;
const QUEUE_STRIDE: u64 = 0x1000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const MEMORY: usize = 0x4_0000;

/// Where buffers are.
pub const SLOTS: u64 = 0x8000;
pub const SLOT: u64 = 0x1000;

/// Guest memory with virtqueues in it.
pub struct Driver {
    pub memory: Memory,
    /// Entries made available so far, per queue.
    posted: Vec<u16>,
}

impl Driver {
    /// A driver of a device with so many queues.
    pub fn new(queues: usize) -> Self {
        Self::in_memory(Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory"), queues)
    }

    /// As [`Self::new`], in memory that is there already and reaches beyond the slots.
    pub fn in_memory(memory: Memory, queues: usize) -> Self {
        Self { memory, posted: vec![0; queues] }
    }

    /// What a device is started with after the driver has set up all its queues.
    pub fn activation(&self, features: u64) -> Activation {
        let queues = (0..self.posted.len()).map(|index| ActiveQueue { queue: queue(index), notify: event() }).collect();
        let interrupt = Interrupt::new(event());
        Activation { memory: self.memory.clone(), queues, interrupt, features, restored: false }
    }

    /// Puts a chain of `buffers` (address, length, flags) where the next entry's descriptors are, and makes it available.
    pub fn publish(&mut self, queue: usize, buffers: &[(u64, u32, u16)]) {
        let base = base(queue);
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

    /// The length that the device gave with its last answer; none before the first.
    pub fn last_answer(&self, queue: usize) -> Option<u32> {
        let used = base(queue) + USED;
        let index: u16 = self.memory.read_obj(GuestAddress(used + 2)).expect("in memory");
        let entry = used + 4 + u64::from(index.checked_sub(1)? % QUEUE_SIZE) * 8;
        Some(self.memory.read_obj(GuestAddress(entry + 4)).expect("in memory"))
    }

    /// Anything, anywhere.
    pub fn scribble(&self, input: &mut Input<'_>) {
        let at = u16::from_le_bytes(input.number());
        self.put(at.into(), &input.number::<8>());
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        put(&self.memory, at, bytes);
    }
}

/// Writes what lies in memory; addresses from an input may lie beyond its end, where there is nothing to be written.
pub fn put(memory: &Memory, at: u64, bytes: &[u8]) {
    let _ = memory.write(bytes, GuestAddress(at));
}

fn base(queue: usize) -> u64 {
    QUEUES + queue as u64 * QUEUE_STRIDE
}

fn queue(index: usize) -> Queue {
    let base = base(index);
    let mut queue = Queue::new(QUEUE_SIZE).expect("a power of two");
    queue.set_size(QUEUE_SIZE);
    queue.try_set_desc_table_address(GuestAddress(base)).expect("aligned");
    queue.try_set_avail_ring_address(GuestAddress(base + AVAILABLE)).expect("aligned");
    queue.try_set_used_ring_address(GuestAddress(base + USED)).expect("aligned");
    queue.set_ready(true);
    queue
}

fn event() -> EventFd {
    EventFd::new(EFD_NONBLOCK).expect("an event")
}
