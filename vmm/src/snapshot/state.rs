//! A machine without its memory and disks.

use kvm_bindings::{kvm_clock_data, kvm_cpuid_entry2, kvm_irqchip};
use sandpiper_protocol::vmm::{DiskConfig, DiskLimits, MachineConfig, NetConfig};
use serde::{Deserialize, Serialize};

use super::format::{Content, Kind};
use super::{version3, version4};
use crate::devices::serial::ConsoleState;
use crate::devices::virtio::mmio::WindowState;
use crate::vcpu_state::VcpuState;

impl Content for State {
    const KIND: Kind = Kind::State;

    fn read(version: u32, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        match version {
            3 => postcard::take_from_bytes(bytes).map(|(state, rest): (version3::State, _)| (state.into(), rest)),
            4 => postcard::take_from_bytes(bytes).map(|(state, rest): (version4::State, _)| (state.into(), rest)),
            _ => postcard::take_from_bytes(bytes),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) config: Config,
    /// The CPU features of the host that it was booted on, which its vCPUs have been told of.
    pub(crate) features: Vec<kvm_cpuid_entry2>,
    /// What KVM could do there that the rest of this may rely on: numbers of capabilities, and what KVM says of them.
    pub(crate) capabilities: Vec<(u32, i32)>,
    pub(crate) interrupts: Interrupts,
    /// The guest's clock at the moment it stopped.
    pub(crate) clock: kvm_clock_data,
    pub(crate) vcpus: Vec<VcpuState>,
    /// The virtio devices, in their windows' order.
    pub(crate) windows: Vec<WindowState>,
    pub(crate) console: Option<ConsoleState>,
}

/// What it was booted with, but for what is the restore's to say. A type of its own, so that what agent and monitor say to
/// each other can change without a new format version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) vcpus: u8,
    pub(crate) memory_mib: u32,
    pub(crate) disks: Vec<DiskShape>,
    pub(crate) net: bool,
    pub(crate) console: bool,
    /// Block devices without a disk, behind all others.
    pub(crate) extra_disks: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskShape {
    pub(crate) serial: String,
    pub(crate) size: u64,
    pub(crate) read_only: bool,
}

impl Config {
    pub(crate) fn of(config: &MachineConfig, extra_disks: usize) -> Self {
        let MachineConfig { vcpus, memory_mib, kernel_args: _, disks, disk_limits: _, net, console } = config;
        let shape = |disk: &DiskConfig| {
            let DiskConfig { serial, size, layers: _, read_only } = disk.clone();
            DiskShape { serial, size, read_only }
        };
        let disks = disks.iter().map(shape).collect();
        let extra_disks = u8::try_from(extra_disks).unwrap_or(u8::MAX);
        Self { vcpus: *vcpus, memory_mib: *memory_mib, disks, net: net.is_some(), console: *console, extra_disks }
    }

    /// With what the restore says: the number of each disk's layers, limits, and the network.
    pub(crate) fn into_machine(self, layers: &[u32], disk_limits: DiskLimits, net: Option<NetConfig>) -> MachineConfig {
        let Self { vcpus, memory_mib, disks, net: _, console, extra_disks: _ } = self;
        let disk = |(disk, layers): (DiskShape, &u32)| {
            let DiskShape { serial, size, read_only } = disk;
            DiskConfig { serial, size, layers: *layers, read_only }
        };
        let disks = disks.into_iter().zip(layers).map(disk).collect();
        MachineConfig { vcpus, memory_mib, kernel_args: String::new(), disks, disk_limits, net, console }
    }
}

/// KVM's interrupt controllers.
#[derive(Serialize, Deserialize)]
pub(crate) struct Interrupts {
    pub(crate) chips: Vec<kvm_irqchip>,
}
