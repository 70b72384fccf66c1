//! A virtqueue in use.

use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueState, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::{ActiveQueue, Interrupt, Memory};

/// The driver corrupted the queue itself: indices that cannot be, or rings that cannot be read. There is no way to go on.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("The driver corrupted a virtqueue")]
    Queue(#[from] virtio_queue::Error),
    #[error("The driver corrupted a virtqueue: its available ring cannot be read")]
    Unreadable,
}

/// One virtqueue.
pub struct Ring {
    queue: Queue,
    notify: EventFd,
    /// How many chains were finished, modulo 2^16, when it was last considered whether to interrupt the driver.
    signalled: u16,
}

impl Ring {
    /// A queue that the driver set up, having accepted `features`.
    pub fn new(active: ActiveQueue, features: u64) -> Self {
        let ActiveQueue { mut queue, notify } = active;
        queue.set_event_idx(features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0);
        let signalled = queue.next_used();
        Self { queue, notify, signalled }
    }

    /// The event that the driver's notification raises.
    pub(super) fn notify(&self) -> &EventFd {
        &self.notify
    }

    /// Whether the driver has set it up.
    pub(super) fn is_ready(&self) -> bool {
        self.queue.ready()
    }

    pub(super) fn state(&self) -> QueueState {
        self.queue.state()
    }

    /// How many chains the driver has made available so far, modulo 2^16.
    fn available(&self, memory: &Memory) -> Result<u16, RingError> {
        Ok(self.queue.avail_idx(memory, Ordering::Acquire)?.0)
    }

    /// As many chains as can wait in this queue.
    pub(super) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// The next chain that the driver made available.
    pub(super) fn take<'m>(&mut self, memory: &'m Memory) -> Result<Option<DescriptorChain<&'m Memory>>, RingError> {
        if self.queue.avail_idx(memory, Ordering::Acquire)?.0 == self.queue.next_avail() {
            return Ok(None);
        }
        // The iterator also ends at an entry that it cannot read. That must not look like an empty queue, or the device
        // would find the queue not empty when it wants to wait, for ever.
        let chain = self.queue.iter(memory)?.next().ok_or(RingError::Unreadable)?;
        Ok(Some(chain))
    }

    /// How many chains were taken so far, modulo 2^16.
    pub(super) fn taken(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Undoes the last `count` calls of [`Self::take`] that returned a chain.
    pub(super) fn give_back(&mut self, count: u16) {
        self.queue.set_next_avail(self.queue.next_avail().wrapping_sub(count));
    }

    /// Hands the chain `head` back to the driver, with `len` bytes written.
    pub(super) fn finish(&mut self, memory: &Memory, head: u16, len: u32) -> Result<(), RingError> {
        Ok(self.queue.add_used(memory, head, len)?)
    }

    /// Hands several chains (head, bytes written) back at once: a driver that sees one of them sees all.
    pub(super) fn finish_all(&mut self, memory: &Memory, chains: &[(u16, u32)]) -> Result<(), RingError> {
        let Some(((last, last_len), others)) = chains.split_last() else { return Ok(()) };
        let next = self.queue.next_used();
        let mut at = next;
        for (head, len) in others {
            if *head >= self.queue.size() {
                return Err(virtio_queue::Error::InvalidDescriptorIndex.into());
            }
            let element = u64::from(*head) | u64::from(*len) << 32;
            memory.write_obj(element.to_le(), self.used_element(at)?).map_err(virtio_queue::Error::GuestMemory)?;
            at = at.wrapping_add(1);
        }
        // The last one's index shows them all.
        self.queue.set_next_used(at);
        self.queue.add_used(memory, *last, *last_len)?;
        Ok(())
    }

    /// Where the used ring's element number `index` is: head and length, 32 bits each (virtio 1.2 section 2.7.8).
    fn used_element(&self, index: u16) -> Result<GuestAddress, RingError> {
        const HEADER: u64 = 4;
        const ELEMENT: u64 = 8;
        let offset = HEADER + u64::from(index % self.queue.size()) * ELEMENT;
        Ok(GuestAddress(self.queue.used_ring().checked_add(offset).ok_or(virtio_queue::Error::AddressOverflow)?))
    }

    /// How many chains were finished so far, modulo 2^16.
    pub(super) fn used_count(&self) -> u16 {
        self.queue.next_used()
    }

    /// Interrupts the driver if chains were finished since this was last called, and it wants to know.
    pub(super) fn interrupt(&mut self, memory: &Memory, interrupt: &Interrupt) -> Result<(), RingError> {
        let (before, now) = (self.signalled, self.queue.next_used());
        self.signalled = now;
        if before != now && self.is_awaited(memory, before, now)? {
            interrupt.used_buffer();
        }
        Ok(())
    }

    /// Whether the driver wants an interrupt for one of the chains from `before` to `now` (virtio 1.2 section 2.7.10).
    /// [`Queue::needs_notification`] answers the same, but counts [`Self::finish_all`] as one.
    fn is_awaited(&self, memory: &Memory, before: u16, now: u16) -> Result<bool, RingError> {
        if !self.queue.event_idx_enabled() {
            return Ok(true);
        }
        // The driver must see what was finished before the device reads how far it has seen.
        fence(Ordering::SeqCst);
        let offset = 4 + u64::from(self.queue.size()) * 2;
        let at = self.queue.avail_ring().checked_add(offset).ok_or(virtio_queue::Error::AddressOverflow)?;
        let event: u16 = memory.load(GuestAddress(at), Ordering::Relaxed).map_err(virtio_queue::Error::GuestMemory)?;
        Ok(now.wrapping_sub(u16::from_le(event)).wrapping_sub(1) < now.wrapping_sub(before))
    }

    /// Asks the driver for a notification of the next chain. True if one is there already and it may not come.
    pub(super) fn listen(&mut self, memory: &Memory) -> Result<bool, RingError> {
        Ok(self.queue.enable_notification(memory)?)
    }

    /// Asks the driver for a notification of the next chain after those that are available, taken or not. How many those
    /// are is returned.
    pub(super) fn listen_for_more(&mut self, memory: &Memory) -> Result<u16, RingError> {
        let available = self.available(memory)?;
        // What is asked for is counted from the next chain to take.
        let next = self.queue.next_avail();
        self.queue.set_next_avail(available);
        let asked = self.queue.enable_notification(memory);
        self.queue.set_next_avail(next);
        asked?;
        self.available(memory)
    }

    /// Asks the driver not to notify while this device looks by itself.
    pub(super) fn mute(&mut self, memory: &Memory) -> Result<(), RingError> {
        Ok(self.queue.disable_notification(memory)?)
    }
}
