//! A machine: memory, vCPUs, devices, and the kernel that it starts.
//!
//! ```text
//!   Parts ──[build]──▶ Built ──start──▶ Machine ──(the end is reported)──▶ dropped
//! ```
//!
//! * [`Parts`]: the descriptors that a machine is made of; nothing is opened by path.
//! * [`Built`]: everything is in place, no guest instruction has run.
//! * [`Machine`]: vCPUs run. It ends when something is reported to its [`Ending`]; dropping it stops what still runs:
//!   first the vCPUs, then the devices, so that after the drop nothing of the guest can reach a disk or a socket.
//!
//! The modules: [`layout`] says where things are, [`memory`], [`interrupts`], [`cpu`], [`acpi`] and [`boot`] each fill
//! their part, [`build`] puts them together in the order that KVM wants, [`vcpu`] runs it.

pub mod acpi;
pub mod boot;
pub mod build;
pub mod clock;
pub mod cpu;
pub mod ending;
pub mod interrupts;
pub mod layout;
pub mod memory;
pub mod vcpu;

pub use build::{BuildError, Built, Parts};
pub use ending::Ending;

use std::sync::Arc;

use kvm_ioctls::VmFd;

use crate::devices::virtio::Memory;
use crate::devices::virtio::mmio::MmioWindow;

/// A running machine. See the module's documentation for its life.
///
/// Fields are dropped in this order, and it matters: no vCPU runs when devices stop, no device runs when memory goes, and
/// KVM knows the memory no longer than it is mapped.
pub struct Machine {
    _vcpus: vcpu::Vcpus,
    _devices: Devices,
    _vm: VmFd,
    _memory: Memory,
}

/// The virtio devices, stopped when dropped.
pub(crate) struct Devices(Vec<Arc<MmioWindow>>);

impl Drop for Devices {
    fn drop(&mut self) {
        for window in &self.0 {
            window.stop();
        }
    }
}
