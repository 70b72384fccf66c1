//! Putting a machine together.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, Kvm, VcpuFd, VmFd};
use sandpiper_protocol::guest::GUEST_CID;
use sandpiper_protocol::vmm::{DiskConfig, MachineConfig};

use super::acpi::{self, AcpiError, VirtioWindow};
use super::boot::{self, BootError};
use super::cpu::{self, CpuError};
use super::interrupts::{self, InterruptError, MAX_VIRTIO_DEVICES};
use super::memory::{self, MemoryError};
use super::vcpu::{Buses, StartError, Vcpus};
use super::{Devices, Ending, Machine, layout};
use crate::devices::power::{AcpiPower, KeyboardController};
use crate::devices::pvpanic::PvPanic;
use crate::devices::serial::Console;
use crate::devices::virtio::block::Block;
use crate::devices::virtio::mmio::{MmioWindow, QUEUE_NOTIFY};
use crate::devices::virtio::rng::Rng;
use crate::devices::virtio::vsock::{GuestConnections, Vsock};
use crate::devices::virtio::{Interrupt, Memory, VirtioDevice};
use crate::disk::{Disk, OpenDiskError};

/// What a machine is made of, besides its configuration.
pub struct Parts {
    pub kernel: File,
    /// The layers of each disk of the configuration, bottom first.
    pub disks: Vec<Vec<File>>,
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
    #[error("Cannot make the events of device {device}")]
    DeviceEvents {
        device: usize,
        #[source]
        source: io::Error,
    },
    #[error("KVM does not connect the notifications of device {device}")]
    Notify {
        device: usize,
        #[source]
        source: kvm_ioctls::Error,
    },
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
            | Self::Boot(_)
            | Self::Memory(MemoryError::TooLarge { .. }) => true,
            Self::CreateVm(_)
            | Self::CreateVcpu { .. }
            | Self::Memory(_)
            | Self::Interrupts(_)
            | Self::Cpu(_)
            | Self::Acpi(_)
            | Self::DeviceEvents { .. }
            | Self::Notify { .. }
            | Self::Start(_) => false,
        }
    }
}

const MAX_VCPUS: u8 = 64;
const MIN_MEMORY_MIB: u32 = 32;
/// Half a TiB: below the addresses that some hosts reserve near 1 TiB.
const MAX_MEMORY_MIB: u32 = 512 * 1024;
/// All virtio devices but vsock and rng.
const MAX_DISKS: usize = MAX_VIRTIO_DEVICES - 2;
/// `VIRTIO_BLK_ID_BYTES`.
const MAX_SERIAL: usize = 20;

/// A machine in place, before its first instruction.
pub struct Built {
    vcpus: Vec<VcpuFd>,
    buses: Buses,
    devices: Devices,
    vm: VmFd,
    memory: Memory,
    ending: Ending,
}

impl Built {
    /// Builds the machine that `config` describes from `parts`. Its end is reported to `ending`.
    ///
    /// The order is KVM's: memory before the interrupt controllers (see [`memory::register`]), those before the vCPUs.
    pub fn build(kvm: &Kvm, config: &MachineConfig, mut parts: Parts, ending: Ending) -> Result<Self, BuildError> {
        check(config)?;
        let memory = memory::allocate(config.memory_mib)?;
        let entry = boot::load_kernel(&memory, &mut parts.kernel, config.memory_mib)?;
        boot::write_parameters(&memory, config)?;
        cpu::write_boot_tables(&memory)?;

        let vm = kvm.create_vm().map_err(BuildError::CreateVm)?;
        vm.set_tss_address(layout::KVM_TSS).map_err(BuildError::CreateVm)?;
        memory::register(&vm, &memory)?;
        interrupts::create(&vm)?;
        let vcpus = create_vcpus(kvm, &vm, config.vcpus, entry)?;

        let mut buses = Buses::default();
        attach_ports(&mut buses, &vm, parts.console, &ending)?;
        let virtio = virtio_devices(config, parts.disks, parts.vsock, parts.guest_connections)?;
        let (devices, windows) = attach_virtio(&mut buses, &vm, &memory, virtio)?;
        acpi::write(&memory, &acpi::Contents { vcpus: config.vcpus, console: config.console, virtio: &windows })?;
        Ok(Self { vcpus, buses, devices, vm, memory, ending })
    }

    /// Lets the vCPUs run. Returns the time at which the first one entered the guest.
    pub fn start(self) -> Result<(Machine, u64), BuildError> {
        let (vcpus, first_instruction_us) = Vcpus::start(self.vcpus, Arc::new(self.buses), self.ending)?;
        let machine = Machine { _vcpus: vcpus, _devices: self.devices, _vm: self.vm, _memory: self.memory };
        Ok((machine, first_instruction_us))
    }
}

fn check(config: &MachineConfig) -> Result<(), BuildError> {
    if !(1..=MAX_VCPUS).contains(&config.vcpus) {
        return Err(BuildError::Vcpus(config.vcpus));
    }
    if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&config.memory_mib) {
        return Err(BuildError::MemorySize(config.memory_mib));
    }
    if config.disks.len() > MAX_DISKS {
        return Err(BuildError::Disks(config.disks.len()));
    }
    for (disk, DiskConfig { serial, .. }) in config.disks.iter().enumerate() {
        if !(1..=MAX_SERIAL).contains(&serial.len()) || !serial.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BuildError::DiskSerial { disk });
        }
    }
    Ok(())
}

fn create_vcpus(kvm: &Kvm, vm: &VmFd, count: u8, entry: u64) -> Result<Vec<VcpuFd>, BuildError> {
    let supported = cpu::supported(kvm)?;
    let mut vcpus = Vec::with_capacity(usize::from(count));
    for id in 0..count {
        let vcpu = vm.create_vcpu(u64::from(id)).map_err(|source| BuildError::CreateVcpu { id, source })?;
        cpu::configure(&vcpu, id, count, &supported)?;
        if id == 0 {
            cpu::enter_at(&vcpu, entry)?;
        }
        vcpus.push(vcpu);
    }
    Ok(vcpus)
}

/// What is in port space: the ways to end, the panic port, and the console if there is one.
fn attach_ports(buses: &mut Buses, vm: &VmFd, console: Option<File>, ending: &Ending) -> Result<(), BuildError> {
    let mut panic_line = None;
    if let Some(file) = console {
        let console = Arc::new(Console::new(interrupts::line(vm, Console::GSI)?, file));
        panic_line = Some(console.panic_line());
        buses.port.insert(u64::from(Console::PORT), u64::from(Console::LENGTH), console);
    }
    buses.port.insert(u64::from(KeyboardController::PORT), 1, Arc::new(KeyboardController::new(ending.clone())));
    buses.port.insert(u64::from(PvPanic::PORT), 1, Arc::new(PvPanic::new(ending.clone(), panic_line)));
    let power = Arc::new(AcpiPower::new(ending.clone()));
    buses.port.insert(u64::from(AcpiPower::BASE), u64::from(AcpiPower::LENGTH), power);
    Ok(())
}

/// The virtio devices in the order in which the guest finds them: disks first, so that the first is its `vda`.
fn virtio_devices(
    config: &MachineConfig,
    layers: Vec<Vec<File>>,
    vsock: UnixListener,
    guest_connections: Box<dyn GuestConnections>,
) -> Result<Vec<Box<dyn VirtioDevice>>, BuildError> {
    let mut devices: Vec<Box<dyn VirtioDevice>> = Vec::with_capacity(config.disks.len() + 2);
    for (index, (disk, layers)) in config.disks.iter().zip(layers).enumerate() {
        let stack = Disk::open(layers, disk.size, disk.read_only)
            .map_err(|source| BuildError::OpenDisk { disk: index, source })?;
        devices.push(Box::new(Block::new(stack, &disk.serial)));
    }
    devices.push(Box::new(Vsock::new(GUEST_CID, vsock, guest_connections)));
    devices.push(Box::new(Rng::new()));
    Ok(devices)
}

/// Gives each device a window, a line and the events of its queues.
fn attach_virtio(
    buses: &mut Buses,
    vm: &VmFd,
    memory: &Memory,
    virtio: Vec<Box<dyn VirtioDevice>>,
) -> Result<(Devices, Vec<VirtioWindow>), BuildError> {
    let mut windows = Vec::with_capacity(virtio.len());
    let mut devices = Devices(Vec::with_capacity(virtio.len()));
    let gsis = layout::FIRST_VIRTIO_GSI..layout::GSI_COUNT;
    for (device, (virtio, gsi)) in virtio.into_iter().zip(gsis).enumerate() {
        let base = layout::VIRTIO_MMIO + layout::VIRTIO_MMIO_WINDOW * (gsi - layout::FIRST_VIRTIO_GSI);
        let interrupt = Interrupt::new(interrupts::line(vm, gsi)?);
        let window = MmioWindow::new(virtio, memory.clone(), interrupt)
            .map_err(|source| BuildError::DeviceEvents { device, source })?;
        let events = window.notify_events().map_err(|source| BuildError::DeviceEvents { device, source })?;
        for (queue, event) in (0u32..).zip(&events) {
            vm.register_ioevent(event, &IoEventAddress::Mmio(u64::from(base) + QUEUE_NOTIFY), queue)
                .map_err(|source| BuildError::Notify { device, source })?;
        }
        let window = Arc::new(window);
        buses.mmio.insert(u64::from(base), u64::from(layout::VIRTIO_MMIO_WINDOW), Arc::clone(&window) as _);
        devices.0.push(window);
        windows.push(VirtioWindow { base, gsi });
    }
    Ok((devices, windows))
}
