//! Interrupt lines: which device has which, and how KVM routes them.
//!
//! The I/O APIC, local APICs and the old PIC are KVM's. The guest uses no PIC (hardware-reduced ACPI), and it must not see
//! one act: KVM's default routes deliver lines 0 to 15 to the PIC as well, whose output an uninitialised PIC would put on
//! the first CPU as vectors 0 to 7, which are exceptions. So the routes are replaced by ones to the I/O APIC only.
//!
//! All lines are edge-triggered: a device writes to its event, KVM delivers one interrupt, nothing has to be resampled.

use std::io;

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting,
    kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1, kvm_irq_routing_irqchip, kvm_irqchip,
};
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::layout::{FIRST_VIRTIO_GSI, GSI_COUNT};
use crate::snapshot::state::Interrupts;

#[derive(Debug, thiserror::Error)]
pub enum InterruptError {
    #[error("KVM cannot create its interrupt controllers")]
    Create(#[source] kvm_ioctls::Error),
    #[error("KVM rejects the interrupt routes")]
    Route(#[source] kvm_ioctls::Error),
    #[error("KVM does not report the state of its interrupt controllers")]
    Save(#[source] kvm_ioctls::Error),
    #[error("KVM rejects the state of its interrupt controllers")]
    Restore(#[source] kvm_ioctls::Error),
    #[error("Cannot create an event for an interrupt")]
    Event(#[source] io::Error),
    #[error("KVM does not connect or disconnect the notifications of the device at {base:#x}")]
    Notification {
        base: u32,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error("KVM does not connect interrupt {gsi}")]
    Connect {
        gsi: u32,
        #[source]
        source: kvm_ioctls::Error,
    },
}

/// Most virtio devices, for each has a line of its own.
pub const MAX_VIRTIO_DEVICES: usize = (GSI_COUNT - FIRST_VIRTIO_GSI) as usize;

/// Creates the controllers and their routes. Guest memory is registered before (see [`super::memory`]), vCPUs are created
/// after: a local APIC is made with its vCPU.
pub(crate) fn create(vm: &VmFd) -> Result<(), InterruptError> {
    vm.create_irq_chip().map_err(InterruptError::Create)?;
    let entries: Vec<_> = (0..GSI_COUNT)
        .map(|gsi| kvm_irq_routing_entry {
            gsi,
            type_: KVM_IRQ_ROUTING_IRQCHIP,
            u: kvm_irq_routing_entry__bindgen_ty_1 {
                irqchip: kvm_irq_routing_irqchip { irqchip: KVM_IRQCHIP_IOAPIC, pin: gsi },
            },
            ..Default::default()
        })
        .collect();
    let routing = KvmIrqRouting::from_entries(&entries)
        .map_err(|_| InterruptError::Route(kvm_ioctls::Error::new(libc::E2BIG)))?;
    vm.set_gsi_routing(&routing).map_err(InterruptError::Route)
}

/// An event that raises `gsi` when written to.
pub(crate) fn line(vm: &VmFd, gsi: u32) -> Result<EventFd, InterruptError> {
    let event = EventFd::new(EFD_NONBLOCK).map_err(InterruptError::Event)?;
    vm.register_irqfd(&event, gsi).map_err(|source| InterruptError::Connect { gsi, source })?;
    Ok(event)
}

/// The controllers that a machine shares; a local APIC belongs to its vCPU.
const CHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];

/// The controllers as they are. An interrupt on its way to them may be missing: devices raise theirs again.
pub(crate) fn save(vm: &VmFd) -> Result<Interrupts, InterruptError> {
    let chip = |chip_id| {
        let mut chip = kvm_irqchip { chip_id, ..Default::default() };
        vm.get_irqchip(&mut chip).map_err(InterruptError::Save)?;
        Ok(chip)
    };
    Ok(Interrupts { chips: CHIPS.into_iter().map(chip).collect::<Result<_, _>>()? })
}

pub(crate) fn restore(vm: &VmFd, interrupts: &Interrupts) -> Result<(), InterruptError> {
    for chip in &interrupts.chips {
        vm.set_irqchip(chip).map_err(InterruptError::Restore)?;
    }
    Ok(())
}
