//! A machine: memory, vCPUs, devices, and how it comes to be.
//!
//! ```text
//!                        boot                             snapshot
//!   Shape ──▶ Prepared ─────────▶ Machine, paused ◀──────────────────▶ files
//!                 └──── restore ────▶  │    ▲
//!                                   run▼    │pause
//!                                Machine, running ──(the end is reported)──▶ dropped
//! ```
//!
//! * [`Prepared`]: what depends on the shape only; no guest instruction has run.
//! * [`Parts`]: the descriptors behind its devices; nothing is opened by path.
//! * [`Machine`]: it stands still until [`Machine::run`], and again while it is held: the host has no room for what it
//!   wrote. It ends when something is reported to its [`ExitLatch`]; dropping it stops what still runs: first the vCPUs,
//!   then the devices, so that after the drop nothing of the guest can reach a disk or a socket.
//!
//! The modules: [`layout`](crate::layout) says where things are; [`prepare`], [`build`] and [`restore`] put a machine together, with what
//! [`interrupts`], [`cpu`], [`acpi`] and [`boot`] know; [`vcpu`] runs it, [`extra_disks`] has disks come and go; [`save`] writes it down, and [`vcpu_state`](crate::vcpu_state) its
//! vCPUs.

pub mod acpi;
pub mod boot;
pub mod build;
pub mod clock;
pub mod cpu;
pub mod extra_disks;
pub mod interrupts;
mod mmio_slot;
pub mod prepare;
pub mod restore;
pub mod save;
pub mod vcpu;

pub use build::{BuildError, Parts};
pub use extra_disks::{AttachDiskError, DetachDiskError, SlotError};
pub use prepare::Prepared;
pub use restore::RestoreError;
pub use save::{SnapshotError, SnapshotFiles};

use std::fs::File;
use std::sync::Arc;

use kvm_bindings::CpuId;
use kvm_ioctls::VmFd;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::vmm::{ExitReason, MachineConfig};
use vmm_sys_util::eventfd::EventFd;

use self::build::Attached;
use self::extra_disks::ExtraDisk;
use self::vcpu::{Buses, StartError, Vcpus};
use crate::devices::serial::Console;
use crate::devices::virtio::block::{Block, PushError};
use crate::devices::virtio::mmio::{MmioWindow, WindowStateError};
use crate::devices::virtio::{ActivateError, Memory};
use crate::exit::ExitLatch;
use crate::memory::image::Image;
use crate::memory::written::{Begun, Touched};

/// A machine. See the module's documentation for its life.
///
/// Fields are dropped in this order, and it matters: no vCPU runs when devices stop, no device runs when memory goes, and
/// KVM knows the memory no longer than it is mapped.
pub struct Machine {
    vcpus: Vcpus,
    devices: Devices,
    vm: VmFd,
    memory: Memory,
    buses: Arc<Buses>,
    console: Option<Arc<Console>>,
    /// What its memory was before it wrote to it.
    image: Image,
    /// KVM waits for other work to end before it takes a line out of the machine, as it does when the line is closed.
    _generation_line: EventFd,
    /// The memory layer of the next snapshot, and its name.
    begun: Option<(Begun, Option<String>)>,
    /// Name of the layer in which all memory was last written down, since which it is noted what is written.
    written_in: Option<String>,
    /// What was touched when that was noted, for the working set.
    touched: Option<Vec<Touched>>,
    config: MachineConfig,
    /// The features of the host that it was booted on.
    features: CpuId,
    /// The model-specific registers that KVM can save.
    msrs: Vec<u32>,
    motion: Motion,
    exit: ExitLatch,
}

/// Whether a machine moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// vCPUs and devices run.
    Running,
    /// Devices run, vCPUs do not.
    Held,
    Paused,
}

/// Why a machine does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Vcpus(#[from] StartError),
    #[error(transparent)]
    Device(#[from] WindowStateError),
}

/// Why a paused machine does not go on. Its end has been reported.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    #[error("Cannot resume a device")]
    Device(#[source] ActivateError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Machine {
    fn new(prepared: Prepared, config: MachineConfig, image: Image, attached: Attached, exit: ExitLatch) -> Self {
        Self {
            vcpus: prepared.vcpus,
            devices: attached.devices,
            vm: prepared.vm,
            memory: prepared.memory,
            buses: Arc::new(attached.buses),
            console: attached.console,
            image,
            _generation_line: prepared.generation_line,
            begun: None,
            written_in: None,
            touched: None,
            config,
            features: prepared.features,
            msrs: prepared.msrs,
            motion: Motion::Paused,
            exit,
        }
    }

    pub fn motion(&self) -> Motion {
        self.motion
    }

    /// Guest memory, for whoever looks from the host's side.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Lets it run. Returns the time at which the first vCPU entered the guest.
    ///
    /// # Errors
    /// A vCPU or a device cannot be started. The machine is of no use then.
    pub fn run(&mut self) -> Result<u64, RunError> {
        let entered = self.vcpus.run(&self.buses)?;
        self.motion = Motion::Running;
        // After the vCPUs: starting a thread for each takes longer than they do until they want something.
        for window in self.devices.windows() {
            window.start()?;
        }
        Ok(entered)
    }

    /// Stops the vCPUs of a running machine, and nothing else, until [`Self::release`].
    pub fn hold(&mut self) {
        if self.motion == Motion::Running {
            self.vcpus.pause();
            self.motion = Motion::Held;
        }
    }

    /// Lets a machine go on that is held; without effect on others.
    ///
    /// # Errors
    /// A vCPU cannot go on: the machine's end is reported.
    pub fn release(&mut self) -> Result<(), ResumeError> {
        if self.motion != Motion::Held {
            return Ok(());
        }
        let released = self.start_again();
        self.end_unless(released)
    }

    /// Lets a machine go on that was paused for a snapshot; without effect on others.
    ///
    /// # Errors
    /// A device or a vCPU cannot go on: the machine's end is reported.
    pub fn resume(&mut self) -> Result<(), ResumeError> {
        if self.motion != Motion::Paused {
            return Ok(());
        }
        let resumed = self.devices.windows().try_for_each(|window| window.resume().map_err(ResumeError::Device));
        let resumed = resumed.and_then(|()| self.start_again());
        self.end_unless(resumed)
    }

    fn start_again(&mut self) -> Result<(), ResumeError> {
        // Tells the guest's watchdogs that it was not they who slept. One whose kernel uses no KVM clock cannot be told.
        self.vcpus.each(|_| Box::new(|vcpu| vcpu.kvmclock_ctrl().is_ok()))?;
        self.run()?;
        Ok(())
    }

    fn end_unless(&self, went_on: Result<(), ResumeError>) -> Result<(), ResumeError> {
        if let Err(error) = &went_on {
            self.exit.report(ExitReason::Failed, format!("The machine cannot go on: {}", error_chain::chain(error)));
        }
        went_on
    }

    /// Puts `file` on top of a disk, in the order of the configuration.
    ///
    /// # Errors
    /// There is no such disk, or as [`Block::push_layer`].
    pub fn push_layer(&self, disk: usize, file: File) -> Result<(), PushError> {
        let window = self.devices.disks.get(disk).ok_or(PushError::NotADisk)?;
        window.with_device(|block| block.push_layer(file, self.motion == Motion::Paused))
    }
}

/// The virtio devices, stopped when dropped.
#[derive(Default)]
pub(crate) struct Devices {
    /// In the order in which the guest finds them.
    all: Vec<Arc<MmioWindow>>,
    /// Those of the configuration.
    disks: Vec<Arc<MmioWindow<Block>>>,
    /// By slot: all, or none in a machine of a monitor that had none.
    extra_disks: Vec<ExtraDisk>,
}

impl Devices {
    fn windows(&self) -> impl Iterator<Item = &MmioWindow> {
        self.all.iter().map(|window| &**window)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for window in &self.all {
            window.stop();
        }
    }
}
