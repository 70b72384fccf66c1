//! The places of virtio devices: a window of addresses, an interrupt line, and the events of its queues, which KVM raises
//! when the guest writes to the window's `QueueNotify`.
//!
//! KVM waits out a grace period for every event that it connects, so the places that every machine uses are made ready
//! before anybody waits for the machine.

use kvm_ioctls::{IoEventAddress, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::interrupts::{self, InterruptError};
use crate::devices::virtio::mmio::QUEUE_NOTIFY;
use crate::layout;

/// Most queues of a device.
const QUEUES: u32 = 3;

/// Places of the machines that nearly all are: a disk, network, vsock, rng and balloon.
const USUAL: usize = 5;

pub(super) struct MmioSlot {
    /// The window's address.
    pub(super) base: u32,
    pub(super) gsi: u32,
    /// Raises the interrupt.
    pub(super) line: EventFd,
    /// One for each queue.
    pub(super) notify: Vec<EventFd>,
}

impl MmioSlot {
    /// Place `index`, below [`interrupts::MAX_VIRTIO_DEVICES`].
    pub(super) fn new(vm: &VmFd, index: usize) -> Result<Self, InterruptError> {
        let index = u32::try_from(index).unwrap_or(u32::MAX).min(layout::GSI_COUNT - layout::FIRST_VIRTIO_GSI - 1);
        let gsi = layout::FIRST_VIRTIO_GSI + index;
        let base = layout::VIRTIO_MMIO + layout::VIRTIO_MMIO_WINDOW * index;
        let connect = |queue| {
            let event = EventFd::new(EFD_NONBLOCK).map_err(InterruptError::Event)?;
            let address = IoEventAddress::Mmio(u64::from(base) + QUEUE_NOTIFY);
            vm.register_ioevent(&event, &address, queue).map_err(|source| InterruptError::Connect { gsi, source })?;
            Ok(event)
        };
        let notify = (0..QUEUES).map(connect).collect::<Result<_, InterruptError>>()?;
        Ok(Self { base, gsi, line: interrupts::line(vm, gsi)?, notify })
    }

    /// The places that every machine has.
    pub(super) fn usual(vm: &VmFd) -> Result<Vec<Self>, InterruptError> {
        (0..USUAL).map(|index| Self::new(vm, index)).collect()
    }
}
