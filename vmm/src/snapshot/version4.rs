//! A state as format version 4 had it: of a machine without extra disks.

use kvm_bindings::{kvm_clock_data, kvm_cpuid_entry2};
use serde::Deserialize;

use super::state::{self, DiskShape, Interrupts};
use crate::devices::serial::ConsoleState;
use crate::devices::virtio::mmio::WindowState;
use crate::vcpu_state::VcpuState;

#[derive(Deserialize)]
pub(super) struct State {
    config: Config,
    features: Vec<kvm_cpuid_entry2>,
    capabilities: Vec<(u32, i32)>,
    interrupts: Interrupts,
    clock: kvm_clock_data,
    vcpus: Vec<VcpuState>,
    windows: Vec<WindowState>,
    console: Option<ConsoleState>,
}

#[derive(Deserialize)]
struct Config {
    vcpus: u8,
    memory_mib: u32,
    disks: Vec<DiskShape>,
    net: bool,
    console: bool,
}

impl From<State> for state::State {
    fn from(state: State) -> Self {
        let State { config, features, capabilities, interrupts, clock, vcpus, windows, console } = state;
        let Config { vcpus: count, memory_mib, disks, net, console: has_console } = config;
        let config = state::Config { vcpus: count, memory_mib, disks, net, console: has_console, extra_disks: 0 };
        Self { config, features, capabilities, interrupts, clock, vcpus, windows, console }
    }
}
