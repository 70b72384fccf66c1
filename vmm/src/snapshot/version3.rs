//! A state as format version 3 had it: with the configuration as agent and monitor spoke of it then, and without a word of KVM.

use kvm_bindings::{kvm_clock_data, kvm_cpuid_entry2};
use serde::Deserialize;

use super::state::{self, Config, DiskShape, Interrupts};
use crate::devices::serial::ConsoleState;
use crate::devices::virtio::mmio::WindowState;
use crate::vcpu_state::VcpuState;

#[derive(Deserialize)]
pub(super) struct State {
    config: MachineConfig,
    features: Vec<kvm_cpuid_entry2>,
    interrupts: Interrupts,
    clock: kvm_clock_data,
    vcpus: Vec<VcpuState>,
    windows: Vec<WindowState>,
    console: Option<ConsoleState>,
}

#[derive(Deserialize)]
struct MachineConfig {
    vcpus: u8,
    memory_mib: u32,
    _kernel_args: String,
    disks: Vec<DiskConfig>,
    net: Option<NetConfig>,
    console: bool,
}

#[derive(Deserialize)]
struct DiskConfig {
    serial: String,
    size: u64,
    _layers: u32,
    read_only: bool,
}

#[derive(Deserialize)]
struct NetConfig {
    _mac: [u8; 6],
    _bytes_per_second: Option<u64>,
    _packets_per_second: Option<u64>,
}

impl From<State> for state::State {
    fn from(state: State) -> Self {
        let State { config, features, interrupts, clock, vcpus, windows, console } = state;
        let disk = |disk: DiskConfig| DiskShape { serial: disk.serial, size: disk.size, read_only: disk.read_only };
        let config = Config {
            vcpus: config.vcpus,
            memory_mib: config.memory_mib,
            disks: config.disks.into_iter().map(disk).collect(),
            net: config.net.is_some(),
            console: config.console,
            extra_disks: 0,
        };
        Self { config, features, capabilities: Vec::new(), interrupts, clock, vcpus, windows, console }
    }
}
