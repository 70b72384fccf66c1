//! Making a machine one that was written down.
//!
//! Everything read here was written by a monitor, and is checked all the same: a file may be damaged, and its checksum may
//! be somebody's who can calculate one. What does not fit is refused before the guest runs.

use std::convert::Infallible;
use std::fs::File;
use std::sync::Arc;

use kvm_bindings::{CpuId, kvm_clock_data, kvm_cpuid_entry2};
use kvm_ioctls::Kvm;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::vmm::{EXTRA_DISKS, MachineConfig, RestoreConfig};

use super::build::{self, BuildError, Parts};
use super::interrupts::{self, InterruptError};
use super::prepare::Prepared;
use super::vcpu::StartError;
use super::{Machine, cpu};
use crate::devices::virtio::mmio::WindowStateError;
use crate::exit::ExitLatch;
use crate::jail::{self, Role};
use crate::memory;
use crate::memory::image::{Image, ImageError};
use crate::memory::working_set::{Fetch, WorkingSet};
use crate::snapshot::format::{self, FormatError};
use crate::snapshot::state::{Config, State};
use crate::vcpu_state::{VcpuState, VcpuStateError};

/// Why a snapshot does not become a machine.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    State(#[from] FormatError),
    #[error("The snapshot's machine has {theirs} {what}, {ours} were given")]
    Mismatch { what: &'static str, theirs: usize, ours: usize },
    #[error(
        "The snapshot's machine has {theirs} slots for disks; this monitor restores machines with {EXTRA_DISKS}, and older ones without"
    )]
    Slots { theirs: u8 },
    #[error("The snapshot is inconsistent: {what}")]
    Inconsistent { what: &'static str },
    #[error(
        "The snapshot's guest uses CPU features that this host does not have (CPUID {function:#x}, register {register}, bits {bits:#x})"
    )]
    CpuFeatures { function: u32, register: usize, bits: u32 },
    #[error("The snapshot needs KVM's capability {capability} with {theirs:#x}; this host's has {ours:#x}")]
    Capability { capability: u32, theirs: i32, ours: i32 },
    #[error(transparent)]
    Memory(#[from] ImageError),
    #[error(transparent)]
    Vcpu(#[from] VcpuStateError),
    #[error(transparent)]
    Device(#[from] WindowStateError),
    #[error(transparent)]
    Interrupts(#[from] InterruptError),
    #[error("KVM rejects the guest's clock")]
    Clock(#[source] kvm_ioctls::Error),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl RestoreError {
    /// Whether the snapshot is at fault, or does not fit this host; not a passing trouble of the host's.
    pub fn is_snapshot(&self) -> bool {
        match self {
            Self::State(error) => error.is_file(),
            Self::Inconsistent { .. }
            | Self::Mismatch { .. }
            | Self::Slots { .. }
            | Self::CpuFeatures { .. }
            | Self::Capability { .. }
            | Self::Memory(ImageError::NotAFile { .. } | ImageError::Length { .. })
            | Self::Vcpu(_)
            | Self::Device(WindowStateError::OtherDevice { .. } | WindowStateError::Invalid { .. })
            | Self::Interrupts(InterruptError::Restore(_))
            | Self::Clock(_) => true,
            Self::Build(error) => error.is_config(),
            Self::Memory(_) | Self::Device(_) | Self::Interrupts(_) | Self::Start(_) => false,
        }
    }
}

/// A snapshot's files, besides the disks.
pub struct Snapshot {
    pub state: File,
    /// Bottom first.
    pub memory: Vec<File>,
    pub working_set: Option<File>,
}

/// Makes the machine of `snapshot`, out of `prepared` if that has its shape. It stands where it stood; its devices start
/// when it runs.
///
/// # Errors
/// The snapshot cannot be read, is not valid, or needs more of KVM than this host has; `config` or `parts` do not fit
/// it; or KVM refuses a step.
pub fn restore(
    kvm: &Kvm,
    prepared: Option<Prepared>,
    config: &RestoreConfig,
    snapshot: Snapshot,
    parts: Parts,
    exit: &ExitLatch,
) -> Result<Machine, RestoreError> {
    let state: State = format::read(&snapshot.state)?;
    let machine = check(&state, config)?;
    let shape = build::shape(&machine);
    let mut prepared = match prepared.filter(|prepared| prepared.shape() == shape) {
        Some(prepared) => prepared,
        None => Prepared::new(kvm, shape, exit)?,
    };
    set_features(&mut prepared, &state.features)?;
    check_capabilities(&prepared, &state.capabilities)?;
    let image = Image::open(snapshot.memory, memory::length(&prepared.memory))?;
    image.map(&prepared.memory)?;
    let fetch = snapshot.working_set.as_ref().and_then(|file| fetch(&prepared, file));

    interrupts::restore(&prepared.vm, &state.interrupts)?;
    let extra_disks = state.config.extra_disks;
    let attached = build::attach(&mut prepared, &machine, extra_disks, parts, state.console.as_ref(), exit)?;
    let mut vcpus = state.vcpus.into_iter();
    let written = prepared.vcpus.each(|_| {
        let state = vcpus.next();
        // There are as many states as vCPUs.
        Box::new(move |vcpu| state.map_or(Ok(()), |state: VcpuState| state.write(vcpu)))
    })?;
    written.into_iter().collect::<Result<(), _>>()?;
    // It goes on from where it stood, as if no time had passed: the guest is told the hour by the agent.
    let clock = kvm_clock_data { clock: state.clock.clock, ..Default::default() };
    prepared.vm.set_clock(&clock).map_err(RestoreError::Clock)?;

    for (window, state) in attached.devices.windows().zip(&state.windows) {
        window.restore(state)?;
    }
    if !config.disk_sizes.is_empty() {
        for disk in &attached.devices.disks {
            // The driver asks for the size anew.
            let Ok(()) = disk.reconfigure(|_| Ok::<(), Infallible>(()));
        }
    }
    attached.generation_id.write_new(&prepared.memory).map_err(BuildError::from)?;
    attached.generation_id.notify();
    // As late as possible: most of it is there by now.
    if let Some(fetch) = fetch {
        prepared.vcpus.each(|id| {
            let (memory, fetch) = (prepared.memory.clone(), Arc::clone(&fetch));
            Box::new(move |vcpu| {
                if id == 0 {
                    fetch.enter(&memory, vcpu);
                }
            })
        })?;
    }
    Ok(Machine::new(prepared, machine, image, attached, exit.clone()))
}

/// The machine that a restore makes of `state`, if the two fit.
fn check(state: &State, config: &RestoreConfig) -> Result<MachineConfig, RestoreError> {
    let mismatch = |what, theirs, ours| Err(RestoreError::Mismatch { what, theirs, ours });
    let Config { disks, net, vcpus, console, extra_disks, .. } = &state.config;
    if ![0, EXTRA_DISKS].contains(extra_disks) {
        return Err(RestoreError::Slots { theirs: *extra_disks });
    }
    if disks.len() != config.disk_layers.len() {
        return mismatch("disks", disks.len(), config.disk_layers.len());
    }
    if *net != config.net.is_some() {
        return mismatch("network devices", usize::from(*net), usize::from(config.net.is_some()));
    }
    if *console != config.console {
        return mismatch("consoles", usize::from(*console), usize::from(config.console));
    }
    if usize::from(*vcpus) != state.vcpus.len() {
        return Err(RestoreError::Inconsistent { what: "it has another number of vCPUs than it says" });
    }
    if state.console.is_some() != *console {
        return Err(RestoreError::Inconsistent { what: "it has a console and no state of it, or the other way round" });
    }
    if disks.iter().any(|disk| disk.size == 0) {
        return Err(RestoreError::Inconsistent { what: "a disk has no size" });
    }
    if !config.disk_sizes.is_empty() && config.disk_sizes.len() != disks.len() {
        return mismatch("disks", disks.len(), config.disk_sizes.len());
    }
    let mut machine = state.config.clone().into_machine(&config.disk_layers, config.disk_limits, config.net);
    for (disk, size) in machine.disks.iter_mut().zip(&config.disk_sizes) {
        disk.size = *size;
    }
    build::check(&machine)?;
    if state.windows.len() != build::window_count(&machine, *extra_disks) {
        return Err(RestoreError::Inconsistent { what: "it has another number of devices than it says" });
    }
    Ok(machine)
}

/// Gives the vCPUs the features that the guest has seen, where they are not the host's.
fn set_features(prepared: &mut Prepared, theirs: &[kvm_cpuid_entry2]) -> Result<(), RestoreError> {
    if theirs == prepared.features.as_slice() {
        return Ok(());
    }
    check_features(theirs, &prepared.features)?;
    let too_many = |_| RestoreError::Inconsistent { what: "it has more CPU features than there are" };
    prepared.features = CpuId::from_entries(theirs).map_err(too_many)?;
    let count = prepared.shape.vcpus;
    let results = prepared.vcpus.each(|id| {
        let features = prepared.features.clone();
        Box::new(move |vcpu| cpu::set_features(vcpu, u8::try_from(id).unwrap_or(u8::MAX), count, &features))
    })?;
    Ok(results.into_iter().collect::<Result<(), _>>().map_err(BuildError::from)?)
}

/// Whether this host's KVM can do what the snapshot's could.
fn check_capabilities(prepared: &Prepared, theirs: &[(u32, i32)]) -> Result<(), RestoreError> {
    for &(capability, theirs) in theirs {
        let ours = prepared.capability(capability);
        if theirs & !ours != 0 {
            return Err(RestoreError::Capability { capability, theirs, ours });
        }
    }
    Ok(())
}

/// Whether every feature that the guest was told of is one of this host's. A guest has looked once and will not look again.
fn check_features(theirs: &[kvm_cpuid_entry2], ours: &CpuId) -> Result<(), RestoreError> {
    /// Leaves that are sets of features, and which registers of them (eax, ebx, ecx, edx) are.
    const FEATURES: [(u32, u32, [bool; 4]); 11] = [
        (0x1, 0, [false, false, true, true]),
        (0x7, 0, [false, true, true, true]),
        (0x7, 1, [true, false, false, true]),
        (0x7, 2, [false, false, false, true]),
        (0xd, 0, [true, false, false, true]),
        (0xd, 1, [true, false, true, true]),
        // KVM's own.
        (0x4000_0001, 0, [true, false, false, false]),
        (0x8000_0001, 0, [false, false, true, true]),
        (0x8000_0007, 0, [false, false, false, true]),
        (0x8000_0008, 0, [false, true, false, false]),
        (0x8000_0021, 0, [true, false, false, false]),
    ];
    let leaf = |leaves: &[kvm_cpuid_entry2], function, index| {
        let found =
            leaves.iter().find(|leaf| leaf.function == function && (leaf.index == index || leaf.flags & 1 == 0));
        found.map_or([0; 4], |leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
    };
    for (function, index, registers) in FEATURES {
        let (wanted, here) = (leaf(theirs, function, index), leaf(ours.as_slice(), function, index));
        for register in 0..4 {
            let bits = wanted[register] & !here[register];
            if registers[register] && bits != 0 {
                return Err(RestoreError::CpuFeatures { function, register, bits });
            }
        }
    }
    Ok(())
}

/// Has a thread fetch the working set while the rest of the machine is put together, and beyond. Nothing depends on it: the
/// guest goes on without one that is damaged, only more slowly.
fn fetch(prepared: &Prepared, file: &File) -> Option<Arc<Fetch>> {
    match format::read::<WorkingSet>(file) {
        Ok(set) => {
            let (memory, fetch) = (prepared.memory.clone(), Arc::new(Fetch::new(set)));
            let populating = Arc::clone(&fetch);
            jail::assign(Role::Prefetch, move || populating.populate(&memory)).ok().map(|_| fetch)
        }
        Err(error) => {
            eprintln!(
                "sandpiper-vmm: restoring without the working set, so the guest's first requests are slower: {}",
                error_chain::chain(&error)
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use sandpiper_protocol::vmm::{DiskLimits, NetConfig, NetLimits};

    use super::*;
    use crate::snapshot::golden;

    /// Of each format version, without its console.
    fn machines() -> impl Iterator<Item = (u32, State)> {
        golden::states().map(|(version, mut state)| {
            (state.config.console, state.console) = (false, None);
            (version, state)
        })
    }

    fn config_for(state: &State) -> RestoreConfig {
        let net = NetConfig { mac: [2, 0, 0, 0, 0, 1], limits: NetLimits::default() };
        RestoreConfig {
            memory_layers: 1,
            working_set: false,
            tells_touched: false,
            disk_layers: vec![1; state.config.disks.len()],
            disk_sizes: Vec::new(),
            disk_limits: DiskLimits::default(),
            net: state.config.net.then_some(net),
            console: state.config.console,
        }
    }

    #[test]
    fn a_machine_of_an_older_monitor_has_no_slots_and_is_restored_without() {
        for (version, state) in machines() {
            assert_eq!(state.config.extra_disks > 0, version >= 5, "version {version}");
            check(&state, &config_for(&state)).unwrap();
        }
    }

    #[test]
    fn a_machine_with_other_devices_is_refused() {
        let (_, mut state) = machines().last().unwrap();
        let error = |state: &State| check(state, &config_for(state)).unwrap_err();
        state.config.extra_disks = 3;
        assert!(matches!(error(&state), RestoreError::Slots { theirs: 3 }));
        state.config.extra_disks = 0;
        assert!(matches!(error(&state), RestoreError::Inconsistent { .. }));
        state.config.extra_disks = EXTRA_DISKS;
        state.windows.pop();
        assert!(matches!(error(&state), RestoreError::Inconsistent { .. }));
    }

    #[test]
    fn a_machine_gets_disks_of_other_sizes_in_the_place_of_its_own() {
        let (_, state) = machines().last().unwrap();
        let theirs: Vec<_> = state.config.disks.iter().map(|disk| disk.size).collect();
        let sizes = |config: &RestoreConfig| {
            let machine = check(&state, config).unwrap();
            machine.disks.iter().map(|disk| disk.size).collect::<Vec<_>>()
        };
        let mut config = config_for(&state);
        assert_eq!(sizes(&config), theirs);

        config.disk_sizes = theirs.iter().map(|size| size + 4096).collect();
        assert_eq!(sizes(&config), config.disk_sizes);

        config.disk_sizes.push(4096);
        assert!(matches!(check(&state, &config), Err(RestoreError::Mismatch { what: "disks", .. })));
    }
}
