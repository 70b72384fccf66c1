//! A virtqueue in use, with the habits both of this device's queues share.

use std::sync::atomic::Ordering;

use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueState, QueueT};

use super::super::{Interrupt, Memory};

/// The driver broke the queue itself: indices that cannot be, or rings that cannot be read. There is no way to go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum RingError {
    #[error("Cannot use the virtqueue")]
    Queue(#[from] virtio_queue::Error),
    #[error("Cannot read the available ring")]
    Unreadable,
}

/// One virtqueue.
pub(super) struct Ring {
    queue: Queue,
    /// Buffers were used since the driver was last told.
    used: bool,
}

impl Ring {
    pub(super) fn new(mut queue: Queue, event_idx: bool) -> Self {
        queue.set_event_idx(event_idx);
        Self { queue, used: false }
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

    /// Undoes the last `count` calls of [`Self::take`] that returned a chain.
    pub(super) fn give_back(&mut self, count: u16) {
        self.queue.set_next_avail(self.queue.next_avail().wrapping_sub(count));
    }

    /// Hands the chain `head` back to the driver, with `len` bytes written.
    pub(super) fn finish(&mut self, memory: &Memory, head: u16, len: u32) -> Result<(), RingError> {
        self.queue.add_used(memory, head, len)?;
        self.used = true;
        Ok(())
    }

    /// How many chains were finished so far, modulo 2^16.
    pub(super) fn used_count(&self) -> u16 {
        self.queue.next_used()
    }

    /// Tells the driver about used buffers, if there are any and it wants to know.
    pub(super) fn interrupt(&mut self, memory: &Memory, interrupt: &Interrupt) -> Result<(), RingError> {
        if std::mem::take(&mut self.used) && self.queue.needs_notification(memory)? {
            interrupt.used_buffer();
        }
        Ok(())
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
