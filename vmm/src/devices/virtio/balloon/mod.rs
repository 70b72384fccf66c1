//! The balloon (virtio 1.2 section 5.5): memory that the guest does not use goes back to the host.
//!
//! ```text
//!   queue 0  inflate    lists of page numbers: the driver does without these pages until it deflates
//!   queue 1  deflate    lists of page numbers: it uses them again, which the device need not know
//!   queue 2  reporting  pages that happen to be free; the driver may use them again once the chain is answered
//! ```
//!
//! It is there for the third queue: Linux reports what its programs freed within seconds, so that a sandbox occupies,
//! and its snapshot holds, what is in use and not all that ever was. The device asks for no page by itself (`num_pages`
//! is 0), so a driver has nothing to inflate for; it works all the same.
//!
//! Queues are numbered as Linux does it, only those that exist counting (`init_vqs` of
//! `drivers/virtio/virtio_balloon.c` with `vm_find_vqs` of `virtio_mmio.c`); in virtio 1.2 reporting is number 4.
//!
//! # What is in a page that was given back
//! It is dropped (`MADV_DONTNEED`), and guest memory is private: a page of a machine that was booted reads as zeros
//! afterwards, one of a machine that was restored as in the layer of its snapshot that is mapped there. Either is the
//! guest's own, and virtio promises a driver nothing about it without `VIRTIO_BALLOON_F_PAGE_POISON`, which is not on
//! offer. (A Linux that relies on the contents of free pages, by `init_on_free` or page poisoning, then accepts no
//! reporting.) For the same reason chains are answered with a length of 0: no page is said to have been written, with
//! zeros for example.
//!
//! # What a guest can do with it
//! Lose its own memory, all of it if it likes; a page is dropped only where a whole one lies in guest memory. What one
//! chain makes the device do is bounded (see `pages`), and chains are answered one at a time with a look in between at
//! whether to stop.

mod pages;
#[cfg(test)]
mod tests;
mod worker;

use virtio_bindings::virtio_ids::VIRTIO_ID_BALLOON;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueState;

pub use self::worker::Service;
use super::worker::Threaded;
use super::{ActivateError, Activation, VirtioDevice, copy_config};

/// Linux refuses to report through a queue of less than 32 (`PAGE_REPORTING_CAPACITY`), without indirect descriptors.
const QUEUE_SIZES: [u16; 3] = [64; 3];

/// Feature bits, virtio 1.2 section 5.5.3. The second: a driver may take pages back rather than run out of memory.
const VIRTIO_BALLOON_F_DEFLATE_ON_OOM: u32 = 2;
const VIRTIO_BALLOON_F_REPORTING: u32 = 5;

/// `num_pages` and `actual`; what would follow belongs to features that are not on offer.
const CONFIG_SIZE: usize = 8;

/// The device.
#[derive(Default)]
pub struct Balloon {
    /// How many pages of 4 KiB the driver says that it does without; kept for it, nothing depends on it.
    actual: u32,
    thread: Threaded<Service>,
}

impl Balloon {
    pub fn new() -> Self {
        Self::default()
    }

    fn config(&self) -> [u8; CONFIG_SIZE] {
        let mut config = [0; CONFIG_SIZE];
        config[4..].copy_from_slice(&self.actual.to_le_bytes());
        config
    }
}

impl VirtioDevice for Balloon {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BALLOON
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// Reporting is the driver's choice.
    fn required_queues(&self) -> usize {
        2
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_BALLOON_F_DEFLATE_ON_OOM
            | 1 << VIRTIO_BALLOON_F_REPORTING
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&self.config(), offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let mut config = self.config();
        let rest = usize::try_from(offset).ok().and_then(|offset| config.get_mut(offset..)).unwrap_or_default();
        for (to, from) in rest.iter_mut().zip(data) {
            *to = *from;
        }
        // `num_pages` is not the driver's to write.
        let [_, _, _, _, actual @ ..] = config;
        self.actual = u32::from_le_bytes(actual);
    }

    fn save_config(&self) -> Vec<u8> {
        self.actual.to_le_bytes().into()
    }

    fn restore_config(&mut self, saved: &[u8]) {
        if let Ok(actual) = saved.try_into() {
            self.actual = u32::from_le_bytes(actual);
        }
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        self.thread.activate(|| Service::new(activation))
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        self.thread.suspend()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        self.thread.resume()
    }

    fn reset(&mut self) {
        self.thread.reset();
        self.actual = 0;
    }
}
