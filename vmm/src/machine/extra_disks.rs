//! The disks that come and go: a machine has places for [`EXTRA_DISKS`] more than it was booted with.
//!
//! The guest sees a block device in each from the beginning, of no size while it has no disk, so a machine that uses none is
//! written down and restored as one that will. A snapshot has no disk in any of them.
//!
//! An empty slot costs a window and an interrupt line. Its notifications come as writes to the window, for there is nothing to
//! be notified of; while there is a disk KVM raises the event of its queue, as for every other device.

use std::fs::File;
use std::sync::Arc;

use kvm_ioctls::VmFd;
use sandpiper_protocol::vmm::{DiskConfig, DiskLimits, EXTRA_DISKS};
use vmm_sys_util::eventfd::EventFd;

use super::build::{MAX_SERIAL, is_serial};
use super::interrupts::InterruptError;
use super::mmio_slot::{self, MmioSlot};
use super::{Machine, Motion};
use crate::devices::virtio::block::{self, Backend, Block};
use crate::devices::virtio::mmio::MmioWindow;
use crate::disk::{Disk, OpenDiskError};

/// Why a machine got no disk. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum AttachDiskError {
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error("Slot {slot} has a disk already: detach it first")]
    Taken { slot: u8 },
    #[error("The serial number of the disk is not 1 to {MAX_SERIAL} printable ASCII characters")]
    Serial,
    #[error("The disk cannot be opened")]
    Open(#[from] OpenDiskError),
    #[error(transparent)]
    Notifications(#[from] InterruptError),
    #[error(transparent)]
    Device(#[from] block::AttachError),
}

/// Why a disk could not be taken out of a machine.
#[derive(Debug, thiserror::Error)]
pub enum DetachDiskError {
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error(transparent)]
    Notifications(#[from] InterruptError),
    #[error(transparent)]
    Device(#[from] block::DetachError),
}

/// A machine has no such slot for a disk.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error("There is no slot {slot}: they are numbered from 0, and there are {EXTRA_DISKS}")]
    Unknown { slot: u8 },
    #[error(
        "This machine has no slots for disks, because it was booted by a monitor that had none: stop it and boot it again from its root disk"
    )]
    None,
}

/// A slot for a disk.
pub(super) struct ExtraDisk {
    window: Arc<MmioWindow<Block>>,
    doorbell: Doorbell,
}

impl ExtraDisk {
    pub(super) fn new(window: Arc<MmioWindow<Block>>, doorbell: Doorbell) -> Self {
        Self { window, doorbell }
    }

    fn is_empty(&self) -> bool {
        self.window.with_device(|block| block.is_empty())
    }

    fn attach(&self, vm: &VmFd, backend: Backend, stay: bool) -> Result<(), AttachDiskError> {
        self.doorbell.connect(vm)?;
        self.window.reconfigure(|block| block.attach(backend, stay)).map_err(|error| {
            // What the guest asks of a device without a disk need not be quick, only answered.
            let _ = self.doorbell.disconnect(vm);
            error.into()
        })
    }

    fn detach(&self, vm: &VmFd, stay: bool) -> Result<(), DetachDiskError> {
        // First, so that whatever the device does not see when it looks at its queue for the last time comes as a write.
        self.doorbell.disconnect(vm)?;
        Ok(self.window.reconfigure(|block| block.detach(stay))?)
    }
}

/// How the guest notifies the one queue of a disk.
pub(super) struct Doorbell {
    /// Of the window.
    base: u32,
    event: EventFd,
}

impl Doorbell {
    pub(super) fn of(mmio: &MmioSlot) -> Result<Self, InterruptError> {
        let event = mmio.notify[0].try_clone().map_err(InterruptError::Event)?;
        Ok(Self { base: mmio.base, event })
    }

    fn connect(&self, vm: &VmFd) -> Result<(), InterruptError> {
        mmio_slot::connect(vm, self.base, 0, &self.event)
    }

    fn disconnect(&self, vm: &VmFd) -> Result<(), InterruptError> {
        mmio_slot::disconnect(vm, self.base, 0, &self.event)
    }
}

impl Machine {
    /// Puts a disk into a slot that is empty, and tells the guest. `layers` are its files, bottom first.
    ///
    /// # Errors
    /// There is no such slot, or it is taken; the disk cannot be opened; KVM or the host refuses what it takes.
    pub fn attach_disk(
        &self,
        slot: u8,
        disk: &DiskConfig,
        limits: DiskLimits,
        layers: Vec<File>,
    ) -> Result<(), AttachDiskError> {
        let device = self.slot(slot)?;
        if !device.is_empty() {
            return Err(AttachDiskError::Taken { slot });
        }
        if !is_serial(&disk.serial) {
            return Err(AttachDiskError::Serial);
        }
        let stack = Disk::open(layers, disk.size, disk.read_only)?;
        device.attach(&self.vm, Backend::new(stack, &disk.serial, limits), self.motion == Motion::Paused)
    }

    /// Takes the disk out of a slot and closes its layers; without effect on one that is empty. What the guest has under way is
    /// carried out before; later requests fail.
    ///
    /// # Errors
    /// There is no such slot, or the device cannot go on without its disk.
    pub fn detach_disk(&self, slot: u8) -> Result<(), DetachDiskError> {
        let device = self.slot(slot)?;
        if device.is_empty() { Ok(()) } else { device.detach(&self.vm, self.motion == Motion::Paused) }
    }

    /// The slots that have a disk.
    pub(super) fn taken_slots(&self) -> Vec<u8> {
        (0..).zip(&self.devices.extra_disks).filter(|(_, device)| !device.is_empty()).map(|(slot, _)| slot).collect()
    }

    fn slot(&self, slot: u8) -> Result<&ExtraDisk, SlotError> {
        find(&self.devices.extra_disks, slot)
    }
}

fn find(places: &[ExtraDisk], slot: u8) -> Result<&ExtraDisk, SlotError> {
    let none = if places.is_empty() { SlotError::None } else { SlotError::Unknown { slot } };
    places.get(usize::from(slot)).ok_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_an_older_monitor_takes_no_disk_and_says_what_to_do() {
        let refused = find(&[], 0).map(drop).unwrap_err();
        assert!(refused.to_string().ends_with("stop it and boot it again from its root disk"), "{refused}");
    }
}
