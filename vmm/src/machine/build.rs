//! Putting a machine together: what booting and restoring have in common, and booting.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use kvm_ioctls::VmFd;
use sandpiper_protocol::guest::GUEST_CID;
use sandpiper_protocol::vmm::{DiskConfig, EXTRA_DISKS, MachineConfig, Shape};

use super::acpi::{self, AcpiError, VirtioWindow};
use super::boot::{self, BootError};
use super::cpu::{self, CpuError};
use super::extra_disks::{Doorbell, ExtraDisk};
use super::interrupts::{self, InterruptError, MAX_VIRTIO_DEVICES};
use super::mmio_slot::MmioSlot;
use super::prepare::Prepared;
use super::vcpu::{Buses, StartError};
use super::{Devices, Machine};
use crate::devices::power::{AcpiPower, KeyboardController};
use crate::devices::pvpanic::PvPanic;
use crate::devices::serial::{Console, ConsoleState};
use crate::devices::virtio::balloon::Balloon;
use crate::devices::virtio::block::{Block, Health};
use crate::devices::virtio::mmio::MmioWindow;
use crate::devices::virtio::net::{Net, Tap};
use crate::devices::virtio::rng::Rng;
use crate::devices::virtio::vsock::{GuestConnections, Vsock};
use crate::devices::virtio::{Interrupt, Memory, VirtioDevice};
use crate::devices::vmgenid::{NewIdError, VmGenId};
use crate::disk::{Disk, OpenDiskError};
use crate::exit::ExitLatch;
use crate::layout;
use crate::memory::MemoryError;
use crate::memory::image::Image;

/// What is behind a machine's devices.
pub struct Parts {
    /// The layers of each disk of the configuration, bottom first.
    pub disks: Vec<Vec<File>>,
    /// Told of the host's failures to read and write them.
    pub disk_health: Health,
    /// What the network device's frames pass through, if the configuration has one.
    pub tap: Option<File>,
    /// Clients of the guest's vsock ports connect here.
    pub vsock: UnixListener,
    /// Told of the guest's connections to the host.
    pub guest_connections: Box<dyn GuestConnections>,
    /// Where the console's output goes, if the configuration has one.
    pub console: Option<File>,
}

/// Why a machine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("A machine has 1 to {MAX_VCPUS} vCPUs, not {0}")]
    Vcpus(u8),
    #[error("A machine has {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB} MiB of memory, not {0}")]
    MemorySize(u32),
    #[error("A machine has at most {MAX_DISKS} disks, not {0}")]
    Disks(usize),
    #[error("The serial number of disk {disk} is not 1 to {MAX_SERIAL} printable ASCII characters")]
    DiskSerial { disk: usize },
    #[error("Disk {disk} cannot be opened")]
    OpenDisk {
        disk: usize,
        #[source]
        source: OpenDiskError,
    },
    #[error("The tap cannot be used")]
    Tap(#[source] io::Error),
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error("KVM cannot create a machine")]
    CreateVm(#[source] kvm_ioctls::Error),
    #[error("KVM cannot create vCPU {id}")]
    CreateVcpu {
        id: u8,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Interrupts(#[from] InterruptError),
    #[error(transparent)]
    Cpu(#[from] CpuError),
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    #[error("KVM does not report which registers it can save")]
    Registers(#[source] kvm_ioctls::Error),
    #[error("The state of this host's vCPUs exceeds what a snapshot can hold")]
    ExtendedState,
    #[error("Cannot restore the console")]
    Console(#[source] io::Error),
    #[error(transparent)]
    GenerationId(#[from] NewIdError),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl BuildError {
    /// Whether the configuration or its files are at fault, and not this host.
    pub fn is_config(&self) -> bool {
        match self {
            Self::Vcpus(_)
            | Self::MemorySize(_)
            | Self::Disks(_)
            | Self::DiskSerial { .. }
            | Self::OpenDisk { .. }
            | Self::Tap(_)
            | Self::Boot(_)
            | Self::Memory(MemoryError::TooLarge { .. }) => true,
            Self::CreateVm(_)
            | Self::CreateVcpu { .. }
            | Self::Memory(_)
            | Self::Interrupts(_)
            | Self::Cpu(_)
            | Self::Acpi(_)
            | Self::Registers(_)
            | Self::ExtendedState
            | Self::Console(_)
            | Self::GenerationId(_)
            | Self::Start(_) => false,
        }
    }
}

pub(super) const MAX_VCPUS: u8 = 64;
pub(super) const MIN_MEMORY_MIB: u32 = 32;
/// Half a TiB: below the addresses that some hosts reserve near 1 TiB.
pub(super) const MAX_MEMORY_MIB: u32 = 512 * 1024;
/// All virtio devices but network, vsock, rng and balloon, and the extra disks.
const MAX_DISKS: usize = MAX_VIRTIO_DEVICES - 4 - EXTRA_DISKS as usize;
/// `VIRTIO_BLK_ID_BYTES`.
pub(super) const MAX_SERIAL: usize = 20;

/// The shape of a machine with this configuration.
pub fn shape(config: &MachineConfig) -> Shape {
    Shape { vcpus: config.vcpus, memory_mib: config.memory_mib }
}

/// How many windows a machine with this configuration has: one for each disk, for network if it has it, vsock, rng and
/// balloon, and for each extra disk.
pub(super) fn window_count(config: &MachineConfig, extra_disks: u8) -> usize {
    config.disks.len() + usize::from(config.net.is_some()) + 3 + usize::from(extra_disks)
}

/// Makes of `prepared` the machine that `config` describes, with `kernel` in its memory. It stands before its first
/// instruction.
///
/// # Errors
/// The configuration is not valid, the kernel does not fit, a descriptor of `parts` cannot be used, or KVM refuses a
/// step.
pub fn boot(
    mut prepared: Prepared,
    config: &MachineConfig,
    mut kernel: File,
    parts: Parts,
    exit: &ExitLatch,
) -> Result<Machine, BuildError> {
    check(config)?;
    let entry = boot::load_kernel(&prepared.memory, &mut kernel, config.memory_mib)?;
    boot::write_parameters(&prepared.memory, config)?;
    cpu::write_boot_tables(&prepared.memory)?;
    configure_vcpus(&prepared, entry)?;
    let attached = attach(&mut prepared, config, EXTRA_DISKS, parts, None, exit)?;
    let contents = acpi::Contents { vcpus: config.vcpus, console: config.console, virtio: &attached.windows };
    acpi::write(&prepared.memory, &contents)?;
    attached.generation_id.write_new(&prepared.memory)?;
    Ok(Machine::new(prepared, config.clone(), Image::default(), attached, exit.clone()))
}

pub(super) fn check(config: &MachineConfig) -> Result<(), BuildError> {
    if config.disks.len() > MAX_DISKS {
        return Err(BuildError::Disks(config.disks.len()));
    }
    for (disk, DiskConfig { serial, .. }) in config.disks.iter().enumerate() {
        if !is_serial(serial) {
            return Err(BuildError::DiskSerial { disk });
        }
    }
    Ok(())
}

/// Whether a disk can have this serial number.
pub(super) fn is_serial(serial: &str) -> bool {
    (1..=MAX_SERIAL).contains(&serial.len()) && serial.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Gives each vCPU its registers, and the first one the kernel's entry.
fn configure_vcpus(prepared: &Prepared, entry: u64) -> Result<(), BuildError> {
    let configured = prepared.vcpus.each(|id| {
        let features = prepared.features.clone();
        Box::new(move |vcpu| {
            let id = u8::try_from(id).unwrap_or(u8::MAX);
            cpu::configure(vcpu, id, &features)?;
            if id == 0 { cpu::enter_at(vcpu, entry) } else { Ok(()) }
        })
    })?;
    Ok(configured.into_iter().collect::<Result<(), CpuError>>()?)
}

/// The devices of a machine, in their places.
pub(super) struct Attached {
    pub(super) buses: Buses,
    pub(super) devices: Devices,
    pub(super) windows: Vec<VirtioWindow>,
    pub(super) console: Option<Arc<Console>>,
    pub(super) generation_id: VmGenId,
}

/// Makes the devices that `config` describes and, behind them, `extra_disks` without a disk; the guest finds the virtio ones
/// in their order, so that the first disk is its `vda`, and the extra ones follow the last. The console goes on from `console`
/// if that is given.
pub(super) fn attach(
    prepared: &mut Prepared,
    config: &MachineConfig,
    extra_disks: u8,
    parts: Parts,
    console: Option<&ConsoleState>,
    exit: &ExitLatch,
) -> Result<Attached, BuildError> {
    let mut buses = Buses::default();
    let Parts { disks, disk_health, tap, vsock, guest_connections, console: file } = parts;
    let console = file.map(|file| make_console(&prepared.vm, file, console)).transpose()?;
    attach_ports(&mut buses, console.clone(), exit);

    let generation_id = VmGenId::new(prepared.generation_line.try_clone().map_err(InterruptError::Event)?);
    let extra_slots = std::mem::take(&mut prepared.extra_slots);
    let mut virtio = VirtioPlaces::new(buses, prepared);
    for (index, (disk, layers)) in config.disks.iter().zip(disks).enumerate() {
        let stack = Disk::open(layers, disk.size, disk.read_only)
            .map_err(|source| BuildError::OpenDisk { disk: index, source })?;
        let block = Block::new(stack, config.disk_limits, &disk.serial, disk_number(index), disk_health.clone());
        let window = virtio.next(block)?;
        virtio.devices.disks.push(window);
    }
    if let (Some(net), Some(tap)) = (&config.net, tap) {
        virtio.next(Net::new(net, Tap::new(tap).map_err(BuildError::Tap)?))?;
    }
    virtio.next(Vsock::new(GUEST_CID, vsock, guest_connections))?;
    virtio.next(Rng::new())?;
    virtio.next(Balloon::new())?;
    for (slot, place) in extra_slots.into_iter().take(extra_disks.into()).enumerate() {
        let block = Block::empty(disk_number(config.disks.len() + slot), disk_health.clone());
        let doorbell = Doorbell::of(&place)?;
        let window = virtio.put(block, place);
        virtio.devices.extra_disks.push(ExtraDisk::new(window, doorbell));
    }
    let VirtioPlaces { buses, devices, windows, .. } = virtio;
    Ok(Attached { buses, devices, windows, console, generation_id })
}

fn disk_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn make_console(vm: &VmFd, file: File, state: Option<&ConsoleState>) -> Result<Arc<Console>, BuildError> {
    let line = interrupts::line(vm, Console::GSI)?;
    Ok(Arc::new(match state {
        Some(state) => Console::restore(line, file, state).map_err(BuildError::Console)?,
        None => Console::new(line, file),
    }))
}

/// What is in port space: the ways to end, the panic port, and the console if there is one.
fn attach_ports(buses: &mut Buses, console: Option<Arc<Console>>, exit: &ExitLatch) {
    let panic_line = console.as_ref().map(|console| console.panic_line());
    if let Some(console) = console {
        buses.port.insert(u64::from(Console::PORT), u64::from(Console::LENGTH), console);
    }
    buses.port.insert(u64::from(KeyboardController::PORT), 1, Arc::new(KeyboardController::new(exit.clone())));
    buses.port.insert(u64::from(PvPanic::PORT), 1, Arc::new(PvPanic::new(exit.clone(), panic_line)));
    let power = Arc::new(AcpiPower::new(exit.clone()));
    buses.port.insert(u64::from(AcpiPower::BASE), u64::from(AcpiPower::LENGTH), power);
}

/// Gives virtio devices their places, one after another.
struct VirtioPlaces<'a> {
    buses: Buses,
    vm: &'a VmFd,
    memory: &'a Memory,
    ready: std::vec::Drain<'a, MmioSlot>,
    devices: Devices,
    windows: Vec<VirtioWindow>,
}

impl<'a> VirtioPlaces<'a> {
    fn new(buses: Buses, prepared: &'a mut Prepared) -> Self {
        let Prepared { vm, memory, slots, .. } = prepared;
        let (devices, windows) = (Devices::default(), Vec::new());
        Self { buses, vm, memory, ready: slots.drain(..), devices, windows }
    }

    /// Puts `device` where the next one belongs.
    fn next<D: VirtioDevice + 'static>(&mut self, device: D) -> Result<Arc<MmioWindow<D>>, BuildError> {
        let slot = match self.ready.next() {
            Some(slot) => slot,
            None => MmioSlot::new(self.vm, self.windows.len())?,
        };
        Ok(self.put(device, slot))
    }

    fn put<D: VirtioDevice + 'static>(&mut self, device: D, slot: MmioSlot) -> Arc<MmioWindow<D>> {
        let MmioSlot { base, gsi, line, notify } = slot;
        let window = Arc::new(MmioWindow::new(device, self.memory.clone(), Interrupt::new(line), notify));
        self.buses.mmio.insert(u64::from(base), u64::from(layout::VIRTIO_MMIO_WINDOW), Arc::clone(&window) as _);
        self.devices.all.push(Arc::clone(&window) as _);
        self.windows.push(VirtioWindow { base, gsi });
        window
    }
}
