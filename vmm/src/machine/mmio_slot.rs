//! The places of virtio devices: a window of addresses, an interrupt line, and the events of its queues, which KVM raises
//! when the guest writes to the window's `QueueNotify`.
//!
//! KVM waits out a grace period for every event that it connects, so the places that every machine uses are made ready
//! before anybody waits for the machine. The last places are those of the extra disks: their events are connected only while
//! they have a disk.

use kvm_ioctls::{IoEventAddress, VmFd};
use sandpiper_protocol::vmm::EXTRA_DISKS;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::interrupts::{self, InterruptError, MAX_VIRTIO_DEVICES};
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
        let slot = Self::unconnected(vm, index, QUEUES)?;
        (0..QUEUES).zip(&slot.notify).try_for_each(|(queue, event)| connect(vm, slot.base, queue, event))?;
        Ok(slot)
    }

    /// A place whose notifications all come as writes to the window.
    fn unconnected(vm: &VmFd, index: usize, queues: u32) -> Result<Self, InterruptError> {
        let index = u32::try_from(index).unwrap_or(u32::MAX).min(layout::GSI_COUNT - layout::FIRST_VIRTIO_GSI - 1);
        let gsi = layout::FIRST_VIRTIO_GSI + index;
        let base = layout::VIRTIO_MMIO + layout::VIRTIO_MMIO_WINDOW * index;
        let notify = (0..queues)
            .map(|_| EventFd::new(EFD_NONBLOCK).map_err(InterruptError::Event))
            .collect::<Result<_, InterruptError>>()?;
        Ok(Self { base, gsi, line: interrupts::line(vm, gsi)?, notify })
    }

    /// The places that every machine has.
    pub(super) fn usual(vm: &VmFd) -> Result<Vec<Self>, InterruptError> {
        (0..USUAL).map(|index| Self::new(vm, index)).collect()
    }

    /// Those of the extra disks.
    pub(super) fn extra(vm: &VmFd) -> Result<Vec<Self>, InterruptError> {
        let first = MAX_VIRTIO_DEVICES - usize::from(EXTRA_DISKS);
        (first..MAX_VIRTIO_DEVICES).map(|index| Self::unconnected(vm, index, 1)).collect()
    }
}

/// Has KVM raise `event` when the guest notifies `queue` of the device whose window is at `base`.
pub(super) fn connect(vm: &VmFd, base: u32, queue: u32, event: &EventFd) -> Result<(), InterruptError> {
    vm.register_ioevent(event, &notify_address(base), queue)
        .map_err(|source| InterruptError::Notification { base, source })
}

/// Undoes [`connect`].
pub(super) fn disconnect(vm: &VmFd, base: u32, queue: u32, event: &EventFd) -> Result<(), InterruptError> {
    vm.unregister_ioevent(event, &notify_address(base), queue)
        .map_err(|source| InterruptError::Notification { base, source })
}

fn notify_address(base: u32) -> IoEventAddress {
    IoEventAddress::Mmio(u64::from(base) + QUEUE_NOTIFY)
}
