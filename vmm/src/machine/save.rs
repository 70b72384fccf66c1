//! Writing a machine down.
//!
//! 0. If it is asked for, memory is copied while the machine runs. What is written meanwhile is copied again, below.
//! 1. vCPUs stop between two instructions; devices after the request at hand.
//! 2. Each vCPU, the interrupt controllers, the clock and each device are read; then the pages that the guest has written.
//! 3. All of it goes to files, without waiting for a disk: that is the caller's to do, when the machine runs again.
//! 4. Disks get their new top layers, so that the layers below are of the same instant as the memory.

use std::fs::File;
use std::io;
use std::time::Instant;

use sandpiper_protocol::vmm::{ExitReason, SnapshotConfig, SnapshotStats, Then};

use super::interrupts::{self, InterruptError};
use super::prepare;
use super::vcpu::StartError;
use super::{Machine, Motion, ResumeError};
use crate::devices::virtio::block::PushError;
use crate::devices::virtio::mmio::{MmioWindow, WindowState, WindowStateError};
use crate::memory::layer_file::LayerFile;
use crate::memory::tracker::Tracker;
use crate::memory::working_set::WorkingSet;
use crate::memory::written::{Begun, Pagemap, SaveError};
use crate::snapshot::format::{self, FormatError};
use crate::snapshot::state::{Config, State};
use crate::vcpu_state::{VcpuState, VcpuStateError};

/// Where a snapshot goes: empty files, open for reading and writing.
pub struct SnapshotFiles {
    pub state: File,
    pub memory: File,
    /// New layers for the disks that are written to, in their order; none without [`SnapshotConfig::push_layers`].
    pub layers: Vec<File>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("The machine is paused already")]
    Paused,
    #[error("The machine has disks in its slots ({slots:?}), and a snapshot has none: detach them first")]
    Attached { slots: Vec<u8> },
    #[error("{expected} disks need a new layer, {given} were given")]
    Layers { expected: usize, given: usize },
    #[error(transparent)]
    Vcpu(#[from] VcpuStateError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Interrupts(#[from] InterruptError),
    #[error("KVM does not report the guest's clock")]
    Clock(#[source] kvm_ioctls::Error),
    #[error(transparent)]
    Device(#[from] WindowStateError),
    #[error(transparent)]
    Memory(#[from] SaveError),
    #[error(transparent)]
    State(#[from] FormatError),
    #[error("A disk rejected its new layer")]
    Push(#[from] PushError),
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

impl Machine {
    /// How much of its memory the machine has written since it was restored or booted.
    ///
    /// # Errors
    /// The pages cannot be found.
    pub fn written_bytes(&self, pagemap: &Pagemap) -> Result<u64, SnapshotError> {
        let touched = pagemap.touched(&self.memory).map_err(SaveError::Find)?;
        Ok(touched
            .iter()
            .filter(|touched| touched.written)
            .map(|touched| touched.range.end - touched.range.start)
            .sum())
    }

    /// Begins the memory layer of the next snapshot, an empty file, while the machine runs. It is called `name`, and lies right
    /// above the one called `above` if that returns true: if the last snapshot is in that one. Otherwise it lies above those that
    /// the machine was restored from.
    ///
    /// # Errors
    /// The machine is paused, or `layer` is not empty or cannot be written, or the kernel does not note what is written.
    pub fn copy_memory(
        &mut self,
        layer: LayerFile<'_>,
        name: Option<String>,
        above: Option<String>,
        pagemap: &Pagemap,
        tracker: &Tracker,
    ) -> Result<bool, SnapshotError> {
        if self.motion == Motion::Paused {
            return Err(SnapshotError::Paused);
        }
        self.begun = None;
        // From here on what is noted is what was written since this layer was begun.
        let last = self.written_in.take();
        let is_above = last.is_some() && last == above;
        let below = (!is_above).then_some(&self.image);
        self.begun = Some((pagemap.begin(tracker, &self.memory, below, layer)?, name));
        Ok(is_above)
    }

    /// Writes a running machine to `files`. When that fails it runs on. Of one that is held, the request that waits is
    /// written as not yet seen by its disk, and is done again when the machine goes on.
    ///
    /// # Errors
    /// The machine is paused already, or has an extra disk; a file is not empty or cannot be written, or a disk refuses its new layer.
    pub fn snapshot(
        &mut self,
        config: SnapshotConfig,
        files: SnapshotFiles,
        pagemap: &Pagemap,
    ) -> Result<SnapshotStats, SnapshotError> {
        if self.motion == Motion::Paused {
            return Err(SnapshotError::Paused);
        }
        let slots = self.taken_slots();
        if !slots.is_empty() {
            return Err(SnapshotError::Attached { slots });
        }
        let written_to: Vec<usize> =
            (0..self.config.disks.len()).filter(|disk| !self.config.disks[*disk].read_only).collect();
        let expected = if config.push_layers { written_to.len() } else { 0 };
        if files.layers.len() != expected {
            return Err(SnapshotError::Layers { expected, given: files.layers.len() });
        }

        let begun = self.begun.take().filter(|(begun, _)| begun.is_of(&files.memory));
        self.written_in = None;
        let stopped_at = Instant::now();
        self.vcpus.pause();
        self.motion = Motion::Paused;
        let result = self
            .write_down(&files, config.past_cache, begun.as_ref().map(|(begun, _)| begun), pagemap)
            .and_then(|stats| {
                self.push_layers(&written_to, files.layers)?;
                Ok(stats)
            });
        let result = match (result, config.then) {
            (Ok(stats), Then::Pause) => Ok(stats),
            (result, _) => self.resume().map_err(SnapshotError::from).and(result),
        };
        if result.is_ok() {
            self.written_in = begun.and_then(|(_, name)| name);
        }
        let stopped_us = u64::try_from(stopped_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        result.map(|stats| SnapshotStats { stopped_us, ..stats })
    }

    fn write_down(
        &self,
        files: &SnapshotFiles,
        past_cache: bool,
        begun: Option<&Begun>,
        pagemap: &Pagemap,
    ) -> Result<SnapshotStats, SnapshotError> {
        // Devices first: what one has just done for the guest is an interrupt of it.
        let windows = self.devices.windows().map(MmioWindow::suspend).collect::<Result<Vec<WindowState>, _>>()?;
        let vcpus = self.vcpus.each(|_| {
            let msrs = self.msrs.clone();
            Box::new(move |vcpu| VcpuState::read(vcpu, &msrs))
        })?;
        let state = State {
            config: Config::of(&self.config, self.devices.extra_disks.len()),
            features: self.features.as_slice().to_vec(),
            capabilities: prepare::capabilities(&self.vm),
            interrupts: interrupts::save(&self.vm)?,
            clock: self.vm.get_clock().map_err(SnapshotError::Clock)?,
            vcpus: vcpus.into_iter().collect::<Result<_, _>>()?,
            windows,
            console: self.console.as_ref().map(|console| console.state()),
        };
        let layer = LayerFile::new(&files.memory, past_cache);
        let memory_bytes = match begun {
            Some(begun) => pagemap.finish(begun, &self.memory, layer)?,
            None => pagemap.save(&self.memory, &self.image, layer)?,
        };
        let state_bytes = format::write(&files.state, &state)?;
        Ok(SnapshotStats { state_bytes, memory_bytes, stopped_us: 0 })
    }

    fn push_layers(&self, disks: &[usize], layers: Vec<File>) -> Result<(), SnapshotError> {
        for (count, (disk, layer)) in disks.iter().zip(layers).enumerate() {
            if let Err(error) = self.push_layer(*disk, layer) {
                if count > 0 {
                    // Some disks have their new layer and some have not: no answer would be true.
                    let message = "Only some of the disks took a new layer";
                    self.exit.report(ExitReason::Failed, message);
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Has a machine that was just restored, and does not run yet, map only what it touches.
    ///
    /// # Errors
    /// The kernel maps more: what is touched is found, with others beside it.
    pub fn tell_touched(&self, tracker: &Tracker) -> io::Result<()> {
        tracker.follow(&self.memory)
    }

    /// Notes which pages this process has mapped by now, for the working set.
    ///
    /// # Errors
    /// The pages cannot be found.
    pub fn note_touched(&mut self, pagemap: &Pagemap) -> Result<(), SnapshotError> {
        self.touched = Some(pagemap.touched(&self.memory).map_err(SaveError::Find)?);
        Ok(())
    }

    /// Writes which pages this process has mapped to `file`, those first that were noted.
    ///
    /// # Errors
    /// The pages cannot be found, or `file` is not empty or cannot be written.
    pub fn save_working_set(&self, file: &File, pagemap: &Pagemap) -> Result<(), SnapshotError> {
        let touched = pagemap.touched(&self.memory).map_err(SaveError::Find)?;
        let set = match &self.touched {
            Some(first) => WorkingSet::new(first).then(&touched),
            None => WorkingSet::new(&touched),
        };
        format::write(file, &set)?;
        Ok(())
    }
}
