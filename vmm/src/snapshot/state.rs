//! A machine without its memory and disks.

use kvm_bindings::{kvm_clock_data, kvm_cpuid_entry2, kvm_irqchip};
use sandpiper_protocol::vmm::MachineConfig;
use serde::{Deserialize, Serialize};

use crate::devices::serial::ConsoleState;
use crate::devices::virtio::mmio::WindowState;
use crate::machine::vcpu_state::VcpuState;

#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    /// What it was booted with. The number of a disk's layers and all of `net` but whether it is there are not used: those
    /// are the restore's.
    pub(crate) config: MachineConfig,
    /// The CPU features of the host that it was booted on, which its vCPUs have been told of.
    pub(crate) features: Vec<kvm_cpuid_entry2>,
    pub(crate) interrupts: Interrupts,
    /// The guest's clock at the moment it stopped.
    pub(crate) clock: kvm_clock_data,
    pub(crate) vcpus: Vec<VcpuState>,
    /// The virtio devices, in their windows' order.
    pub(crate) windows: Vec<WindowState>,
    pub(crate) console: Option<ConsoleState>,
}

/// KVM's interrupt controllers.
#[derive(Serialize, Deserialize)]
pub(crate) struct Interrupts {
    pub(crate) chips: Vec<kvm_irqchip>,
}
