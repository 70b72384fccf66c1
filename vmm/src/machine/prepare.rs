//! What of a machine depends on its shape only, made before anybody knows what it will be.
//!
//! A monitor that waits for work has done this already: descriptors, memory, interrupt controllers, vCPU threads and those of devices
//! are there, so that a restore is left with what is the snapshot's own.

use kvm_bindings::{CpuId, kvm_enable_cap};
use kvm_ioctls::{Cap, Kvm, VmFd};
use sandpiper_protocol::vmm::Shape;
use vmm_sys_util::eventfd::EventFd;

use super::build::{BuildError, MAX_MEMORY_MIB, MAX_VCPUS, MIN_MEMORY_MIB};
use super::mmio_slot::MmioSlot;
use super::vcpu::Vcpus;
use super::{cpu, interrupts};
use crate::devices::virtio::Memory;
use crate::devices::vmgenid::VmGenId;
use crate::exit::ExitLatch;
use crate::jail::{self, Role};
use crate::memory;
use crate::{layout, vcpu_state};

/// A machine without a content.
pub struct Prepared {
    pub(super) shape: Shape,
    // Dropped in this order: vCPUs, the machine in KVM, memory; see `Machine`.
    pub(super) vcpus: Vcpus,
    pub(super) vm: VmFd,
    /// As [`memory::allocate`] makes it; nobody has touched it.
    pub(super) memory: Memory,
    /// Ready places for devices, the first ones.
    pub(super) slots: Vec<MmioSlot>,
    /// Those of the extra disks.
    pub(super) extra_slots: Vec<MmioSlot>,
    /// Raises the generation id's interrupt.
    pub(super) generation_line: EventFd,
    /// The features that KVM offers on this host, which the vCPUs have.
    pub(super) features: CpuId,
    /// The model-specific registers that KVM can save, also those that it does not list.
    pub(super) msrs: Vec<u32>,
}

impl Prepared {
    /// Makes a machine of `shape`; its end, should it come, is reported to `exit`.
    ///
    /// The order is KVM's: memory before the interrupt controllers (see [`memory::register`]), those before the vCPUs.
    ///
    /// # Errors
    /// The shape is outside of the limits, the host lacks memory for it, or KVM refuses a step.
    pub fn new(kvm: &Kvm, shape: Shape, exit: &ExitLatch) -> Result<Self, BuildError> {
        check(shape)?;
        let vm = kvm.create_vm().map_err(BuildError::CreateVm)?;
        turn_off_counters(&vm);
        vm.set_tss_address(layout::KVM_TSS).map_err(BuildError::CreateVm)?;
        // More than a page only with features that a process must ask for; saving a vCPU relies on it.
        if kvm.check_extension_int(Cap::Xsave2) > 4096 {
            return Err(BuildError::ExtendedState);
        }
        let memory = memory::allocate(shape.memory_mib)?;
        memory::register(&vm, &memory)?;
        interrupts::create(&vm)?;
        let vcpus = (0..shape.vcpus)
            .map(|id| vm.create_vcpu(u64::from(id)).map_err(|source| BuildError::CreateVcpu { id, source }))
            .collect::<Result<_, _>>()?;
        let vcpus = Vcpus::spawn(vcpus, exit)?;
        let features = cpu::supported(kvm)?;
        for result in vcpus.each(|id| {
            let features = features.clone();
            Box::new(move |vcpu| cpu::set_features(vcpu, u8::try_from(id).unwrap_or(u8::MAX), shape.vcpus, &features))
        })? {
            result?;
        }
        jail::start_ahead(&[Role::Prefetch, Role::Vsock, Role::Block, Role::Net, Role::Rng, Role::Balloon]);
        let (slots, extra_slots) = (MmioSlot::usual(&vm)?, MmioSlot::extra(&vm)?);
        let generation_line = interrupts::line(&vm, VmGenId::GSI)?;
        let mut msrs = kvm.get_msr_index_list().map_err(BuildError::Registers)?.as_slice().to_vec();
        msrs.extend(
            vcpus.each(|_| Box::new(|vcpu| vcpu_state::unlisted_msrs(vcpu)))?.into_iter().next().unwrap_or_default(),
        );
        Ok(Self { shape, vcpus, vm, memory, slots, extra_slots, generation_line, features, msrs })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// What KVM says of a capability.
    pub(super) fn capability(&self, capability: u32) -> i32 {
        self.vm.check_extension_raw(capability.into())
    }
}

/// Those that what is saved of a machine may rely on, and what KVM says of them: yes, flags, or a number.
pub(super) fn capabilities(vm: &VmFd) -> Vec<(u32, i32)> {
    const RELIED_ON: [u32; 9] = [
        kvm_bindings::KVM_CAP_MCE,
        kvm_bindings::KVM_CAP_ADJUST_CLOCK,
        kvm_bindings::KVM_CAP_VCPU_EVENTS,
        kvm_bindings::KVM_CAP_DEBUGREGS,
        kvm_bindings::KVM_CAP_XSAVE,
        kvm_bindings::KVM_CAP_XCRS,
        kvm_bindings::KVM_CAP_TSC_DEADLINE_TIMER,
        kvm_bindings::KVM_CAP_EXCEPTION_PAYLOAD,
        kvm_bindings::KVM_CAP_X86_TRIPLE_FAULT_EVENT,
    ];
    RELIED_ON.map(|capability| (capability, vm.check_extension_raw(capability.into()))).to_vec()
}

/// Takes the performance counters from the machine, where KVM knows how (Linux 5.18): a guest could watch others by them. Its
/// CPUID does not have them anyway, see [`cpu::set_features`].
fn turn_off_counters(vm: &VmFd) {
    let args = [u64::from(kvm_bindings::KVM_PMU_CAP_DISABLE), 0, 0, 0];
    let off = kvm_enable_cap { cap: kvm_bindings::KVM_CAP_PMU_CAPABILITY, args, ..Default::default() };
    // An older KVM refuses.
    let _ = vm.enable_cap(&off);
}

fn check(shape: Shape) -> Result<(), BuildError> {
    if !(1..=MAX_VCPUS).contains(&shape.vcpus) {
        return Err(BuildError::Vcpus(shape.vcpus));
    }
    if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&shape.memory_mib) {
        return Err(BuildError::MemorySize(shape.memory_mib));
    }
    Ok(())
}
