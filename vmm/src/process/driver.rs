//! The state driver: the one thread that changes what the machine is.
//!
//! It waits for four things, with one epoll: a new control connection, a packet on one, news of the disks, the machine's end.
//! They are handled one after another, so there is never a question of what happens to a `Stop` during a `Boot`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::vmm::{
    DiskEvent, Event, ExitReason, ExitRecord, Fault, FaultCode, MachineConfig, MachineState, MonitorMessage, Packet,
    Reply, Request, RequestMessage, RestoreConfig, Shape, SnapshotConfig, Timings,
};
use serde::Deserialize;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Options;
use super::control::{ConnectionId, Control, Received};
use super::link::{AgentLink, EventSlot, Openings};
use crate::devices::virtio::block::Health;
use crate::exit::ExitLatch;
use crate::machine::build::{self, BuildError};
use crate::machine::clock::monotonic_us;
use crate::machine::restore::{self, Snapshot};
use crate::machine::{
    AttachDiskError, DetachDiskError, Machine, Motion, Parts, Prepared, SlotError, SnapshotError, SnapshotFiles,
};
use crate::memory::layer_file::LayerFile;
use crate::memory::tracker::Tracker;
use crate::memory::written::Pagemap;

/// What an epoll event is about; connections are numbered from [`FIRST_CONNECTION`] on.
const LISTENER: u64 = 0;
const ENDED: u64 = 1;
const DISKS: u64 = 2;
const FIRST_CONNECTION: u64 = 3;

/// How long after a request the heap is trimmed: until then a guest that was started has the processors, and the memory map, to itself.
const TRIM_AFTER: Duration = Duration::from_secs(2);

/// The monitor itself cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("Cannot create the machine's events")]
    Events(#[source] io::Error),
    #[error("Cannot watch the control socket")]
    Watch(#[source] io::Error),
    #[error("Cannot wait for events")]
    Wait(#[source] io::Error),
}

pub(crate) struct Driver {
    epoll: Epoll,
    control: Control,
    kvm: Kvm,
    exit: ExitLatch,
    disk_health: Health,
    events: EventSlot,
    guest_init_us: Arc<AtomicU64>,
    timings: Timings,
    pagemap: Option<Pagemap>,
    tracker: Option<Tracker>,
    prepared: Option<Prepared>,
    machine: Option<Machine>,
    /// When what requests have left free of the heap is given back.
    trim_at: Option<Instant>,
}

impl Driver {
    pub(crate) fn new(options: Options) -> Result<Self, DriverError> {
        let Options { control, kvm, pagemap, tracker, process_start_us, .. } = options;
        let exit = ExitLatch::new().map_err(DriverError::Events)?;
        let disk_health = Health::new().map_err(DriverError::Events)?;
        let epoll = Epoll::new().map_err(DriverError::Watch)?;
        let watch = |fd, what| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, what));
        watch(control.as_raw_fd(), LISTENER).map_err(DriverError::Watch)?;
        watch(exit.event().as_raw_fd(), ENDED).map_err(DriverError::Watch)?;
        watch(disk_health.event().as_raw_fd(), DISKS).map_err(DriverError::Watch)?;
        let events = EventSlot::default();
        Ok(Self {
            epoll,
            control: Control::new(control, events.clone(), FIRST_CONNECTION),
            kvm,
            exit,
            disk_health,
            events,
            guest_init_us: Arc::default(),
            timings: Timings { process_start_us, ..Timings::default() },
            pagemap: pagemap.map(Pagemap::new),
            tracker,
            prepared: None,
            machine: None,
            trim_at: None,
        })
    }

    /// Serves until the machine ended, and returns how.
    pub(crate) fn run(mut self) -> Result<ExitRecord, DriverError> {
        let mut ready = [EpollEvent::default(); 16];
        loop {
            let count = match self.epoll.wait(self.timeout(), &mut ready) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(DriverError::Wait(error)),
            };
            self.control.wake(&self.epoll, LISTENER).map_err(DriverError::Watch)?;
            self.trim_heap();
            for event in &ready[..count] {
                match event.data() {
                    LISTENER => self.control.accept(&self.epoll, LISTENER).map_err(DriverError::Watch)?,
                    ENDED => {}
                    DISKS => self.attend_to_disks(),
                    connection => self.serve(connection),
                }
            }
            if let Some(record) = self.exit.record().cloned() {
                // Stops vCPUs and devices; when this returns the guest touches nothing any more.
                self.machine = None;
                return Ok(record);
            }
        }
    }

    /// Holds the machine while the host has no room for what it writes, and tells the agent what became of its disks.
    fn attend_to_disks(&mut self) {
        // Readable, and read by nobody else.
        let _ = self.disk_health.event().read();
        if let Some((failure, total)) = self.disk_health.take_failure() {
            self.events.send(Event::Disk(DiskEvent::Failed { failure, total }), None);
        }
        let Some(machine) = &mut self.machine else { return };
        match (self.disk_health.waiting(), machine.motion()) {
            (Some(failure), Motion::Running) => {
                machine.hold();
                self.events.send(Event::Disk(DiskEvent::Full(failure)), None);
            }
            // If it cannot go on, its end has been reported.
            (None, Motion::Held) if machine.release().is_ok() => {
                self.events.send(Event::Disk(DiskEvent::Room), None);
            }
            _ => {}
        }
    }

    /// Handles one packet of a connection. More of them are found by the next wait.
    fn serve(&mut self, connection: ConnectionId) {
        let (id, result) = match self.control.receive(connection) {
            Received::Packet(packet) => match understand(&packet) {
                Ok(message) => (message.id, self.handle(message.request, packet.fds)),
                Err((id, fault)) => (id, Err(fault)),
            },
            Received::Unreadable(error) => (0, Err(fault(FaultCode::Malformed, error.to_string()))),
            Received::Nothing | Received::Closed => return,
        };
        if !matches!(result, Ok(Reply::Status { .. })) {
            self.trim_at = Some(Instant::now() + TRIM_AFTER);
        }
        self.control.reply(connection, &MonitorMessage::Reply { id, result });
    }

    /// Milliseconds until there is something to do without an event, for `epoll_wait`.
    fn timeout(&self) -> i32 {
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_millis() + 1;
        let timeout = [self.control.paused_until(), self.trim_at].into_iter().flatten().min().map(left);
        timeout.map_or(-1, |left| i32::try_from(left).unwrap_or(i32::MAX))
    }

    /// Gives the kernel back what is free of the heap. The state that a machine is made of takes several times what stays of it,
    /// and every monitor has a heap of its own.
    fn trim_heap(&mut self) {
        if self.trim_at.is_some_and(|at| at <= Instant::now()) {
            self.trim_at = None;
            #[cfg(target_env = "gnu")]
            // SAFETY: malloc_trim takes a number, and locks what it trims.
            unsafe {
                libc::malloc_trim(0);
            }
        }
    }

    fn handle(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<Reply, Fault> {
        let mut fds = Descriptors::new(fds);
        match request {
            Request::Prepare(shape) => self.prepare(shape, fds),
            Request::Boot(config) => self.boot(&config, fds),
            Request::Restore(config) => self.restore(&config, fds),
            Request::CopyMemory { name, above, least_bytes, past_cache } => {
                let layer = fds.file()?;
                fds.finish()?;
                self.copy_memory(LayerFile::new(&layer, past_cache), name, above, least_bytes)
            }
            Request::Snapshot(config) => self.snapshot(config, fds),
            Request::Resume => {
                fds.finish()?;
                self.machine()?.resume().map_err(|error| fault(FaultCode::Host, chain(&error)))?;
                Ok(Reply::Resumed)
            }
            Request::PushLayer { disk } => {
                let layer = fds.file()?;
                fds.finish()?;
                let disk = usize::try_from(disk).unwrap_or(usize::MAX);
                self.machine()?.push_layer(disk, layer).map_err(|error| fault(FaultCode::BadConfig, chain(&error)))?;
                Ok(Reply::LayerPushed)
            }
            Request::AttachDisk { slot, disk, limits } => {
                let layers = fds.files(disk.layers)?;
                fds.finish()?;
                self.machine()?.attach_disk(slot, &disk, limits, layers).map_err(|error| attach_fault(&error))?;
                Ok(Reply::DiskAttached)
            }
            Request::DetachDisk { slot } => {
                fds.finish()?;
                self.machine()?.detach_disk(slot).map_err(|error| detach_fault(&error))?;
                Ok(Reply::DiskDetached)
            }
            Request::NoteTouched => {
                fds.finish()?;
                let (machine, pagemap) = self.machine_and_pagemap()?;
                machine.note_touched(pagemap).map_err(|error| fault(FaultCode::Host, chain(&error)))?;
                Ok(Reply::TouchedNoted)
            }
            Request::SaveWorkingSet => {
                let file = fds.file()?;
                fds.finish()?;
                let (machine, pagemap) = self.machine_and_pagemap()?;
                machine.save_working_set(&file, pagemap).map_err(|error| fault(FaultCode::Host, chain(&error)))?;
                Ok(Reply::WorkingSetSaved)
            }
            Request::Status => Ok(Reply::Status { state: self.state(), timings: self.timings() }),
            Request::Stop => {
                self.exit.report(ExitReason::Stopped, "The agent asked for it");
                Ok(Reply::Stopping)
            }
        }
    }

    fn state(&self) -> MachineState {
        match (&self.machine, &self.prepared) {
            (Some(machine), _) => match machine.motion() {
                Motion::Running => MachineState::Running,
                Motion::Held => MachineState::Held,
                Motion::Paused => MachineState::Paused,
            },
            (None, Some(_)) => MachineState::Prepared,
            (None, None) => MachineState::Waiting,
        }
    }

    fn prepare(&mut self, shape: Shape, fds: Descriptors) -> Result<Reply, Fault> {
        fds.finish()?;
        self.check_empty()?;
        self.prepared = None;
        self.prepared = Some(Prepared::new(&self.kvm, shape, &self.exit).map_err(|error| refused(&error))?);
        Ok(Reply::Prepared)
    }

    fn boot(&mut self, config: &MachineConfig, mut fds: Descriptors) -> Result<Reply, Fault> {
        let boot_request_us = monotonic_us();
        self.check_empty()?;
        let kernel = fds.file()?;
        let layers: Vec<u32> = config.disks.iter().map(|disk| disk.layers).collect();
        let parts = self.parts(&layers, config.net.is_some(), config.console, fds)?;
        let shape = build::shape(config);
        let prepared = self.prepared.take().filter(|prepared| prepared.shape() == shape);
        let prepared = prepared.map_or_else(|| Prepared::new(&self.kvm, shape, &self.exit), Ok);
        let machine = prepared.and_then(|prepared| build::boot(prepared, config, kernel, parts, &self.exit));
        self.start(machine.map_err(|error| refused(&error))?, boot_request_us)?;
        Ok(Reply::Booted(self.timings()))
    }

    fn restore(&mut self, config: &RestoreConfig, mut fds: Descriptors) -> Result<Reply, Fault> {
        let boot_request_us = monotonic_us();
        self.check_empty()?;
        let snapshot = Snapshot {
            state: fds.file()?,
            memory: fds.files(config.memory_layers)?,
            working_set: config.working_set.then(|| fds.file()).transpose()?,
        };
        let parts = self.parts(&config.disk_layers, config.net.is_some(), config.console, fds)?;
        let restored = restore::restore(&self.kvm, self.prepared.take(), config, snapshot, parts, &self.exit);
        let machine = restored.map_err(|error| {
            fault(if error.is_snapshot() { FaultCode::BadSnapshot } else { FaultCode::Host }, chain(&error))
        })?;
        if config.tells_touched {
            self.tell_touched(&machine);
        }
        self.start(machine, boot_request_us)?;
        Ok(Reply::Restored(self.timings()))
    }

    /// Nothing depends on it: without, a working set has pages that nobody needs.
    fn tell_touched(&self, machine: &Machine) {
        if let Some(tracker) = &self.tracker
            && let Err(error) = machine.tell_touched(tracker)
        {
            eprintln!("sandpiper-vmm: the working set will have more pages than the guest touches: {error}");
        }
    }

    fn start(&mut self, mut machine: Machine, boot_request_us: u64) -> Result<(), Fault> {
        let first_instruction_us = machine.run().map_err(|error| fault(FaultCode::Host, chain(&error)))?;
        self.machine = Some(machine);
        self.timings = Timings { boot_request_us, first_instruction_us, ..self.timings };
        Ok(())
    }

    fn copy_memory(
        &mut self,
        layer: LayerFile<'_>,
        name: Option<String>,
        above: Option<String>,
        least_bytes: u64,
    ) -> Result<Reply, Fault> {
        let no_tracker = || fault(FaultCode::Host, "This host's kernel does not note what is written (userfaultfd)");
        let tracker = self.tracker.take().ok_or_else(no_tracker)?;
        let copied = self.machine_and_pagemap().and_then(|(machine, pagemap)| {
            if least_bytes > 0 {
                let written = machine.written_bytes(pagemap).map_err(|error| fault(FaultCode::Host, chain(&error)))?;
                if written < least_bytes {
                    return Ok(Reply::LittleMemory);
                }
            }
            let copied = machine.copy_memory(layer, name, above, pagemap, &tracker);
            let copied = copied.map(|above| Reply::MemoryCopied { above });
            copied.map_err(|error| {
                let is_paused = matches!(error, SnapshotError::Paused);
                fault(if is_paused { FaultCode::InvalidState } else { FaultCode::Host }, chain(&error))
            })
        });
        self.tracker = Some(tracker);
        copied
    }

    fn snapshot(&mut self, config: SnapshotConfig, mut fds: Descriptors) -> Result<Reply, Fault> {
        let files = SnapshotFiles { state: fds.file()?, memory: fds.file()?, layers: fds.remaining() };
        let (machine, pagemap) = self.machine_and_pagemap()?;
        let stats = machine.snapshot(config, files, pagemap).map_err(|error| {
            let code = match &error {
                SnapshotError::Paused | SnapshotError::Attached { .. } => FaultCode::InvalidState,
                SnapshotError::Layers { .. } => FaultCode::Malformed,
                _ => FaultCode::Host,
            };
            fault(code, chain(&error))
        })?;
        Ok(Reply::Snapshot(stats))
    }

    fn check_empty(&self) -> Result<(), Fault> {
        match self.machine {
            Some(_) => Err(fault(FaultCode::InvalidState, "There is a machine already")),
            None => Ok(()),
        }
    }

    fn machine(&mut self) -> Result<&mut Machine, Fault> {
        self.machine.as_mut().ok_or_else(no_machine)
    }

    fn machine_and_pagemap(&mut self) -> Result<(&mut Machine, &Pagemap), Fault> {
        let machine = self.machine.as_mut().ok_or_else(no_machine)?;
        let no_pagemap = || fault(FaultCode::Host, "This monitor was started without access to /proc/self/pagemap");
        Ok((machine, self.pagemap.as_ref().ok_or_else(no_pagemap)?))
    }

    /// What is behind the devices, which all remaining descriptors are.
    fn parts(&self, layers: &[u32], net: bool, console: bool, mut fds: Descriptors) -> Result<Parts, Fault> {
        let link = AgentLink {
            events: self.events.clone(),
            guest_init_us: Arc::clone(&self.guest_init_us),
            openings: Openings::default(),
        };
        let parts = Parts {
            disks: layers.iter().map(|count| fds.files(*count)).collect::<Result<_, _>>()?,
            disk_health: self.disk_health.clone(),
            vsock: UnixListener::from(fds.next()?),
            tap: net.then(|| fds.file()).transpose()?,
            guest_connections: Box::new(link),
            console: console.then(|| fds.file()).transpose()?,
        };
        fds.finish()?;
        Ok(parts)
    }

    fn timings(&self) -> Timings {
        Timings { guest_init_us: self.guest_init_us.load(Ordering::Relaxed), ..self.timings }
    }
}

/// The request in a packet, or what to answer instead and to which id.
pub(super) fn understand(packet: &Packet) -> Result<RequestMessage, (u64, Fault)> {
    /// As much of a request as is needed to answer it.
    #[derive(Deserialize)]
    struct Envelope {
        id: u64,
    }
    serde_json::from_slice(&packet.bytes).map_err(|error| {
        let id = serde_json::from_slice(&packet.bytes).map_or(0, |envelope: Envelope| envelope.id);
        (id, fault(FaultCode::Malformed, format!("Not a request: {error}")))
    })
}

/// The descriptors of a request, which are taken in the order that the protocol names.
struct Descriptors {
    given: usize,
    remaining: std::vec::IntoIter<OwnedFd>,
}

impl Descriptors {
    fn new(fds: Vec<OwnedFd>) -> Self {
        Self { given: fds.len(), remaining: fds.into_iter() }
    }

    fn next(&mut self) -> Result<OwnedFd, Fault> {
        let given = self.given;
        self.remaining.next().ok_or_else(|| {
            fault(FaultCode::Malformed, format!("This request takes more than the {given} descriptors it came with"))
        })
    }

    fn file(&mut self) -> Result<File, Fault> {
        self.next().map(File::from)
    }

    fn files(&mut self, count: u32) -> Result<Vec<File>, Fault> {
        // One by one, so that a count from outside allocates nothing.
        (0..count).map(|_| self.file()).collect()
    }

    fn remaining(self) -> Vec<File> {
        self.remaining.map(File::from).collect()
    }

    /// That was all.
    fn finish(self) -> Result<(), Fault> {
        let (given, surplus) = (self.given, self.remaining.len());
        if surplus == 0 {
            return Ok(());
        }
        let expected = given - surplus;
        Err(fault(FaultCode::Malformed, format!("This request takes {expected} descriptors, not {given}")))
    }
}

fn attach_fault(error: &AttachDiskError) -> Fault {
    let code = match error {
        AttachDiskError::Slot(error) => slot_code(error),
        AttachDiskError::Taken { .. } => FaultCode::InvalidState,
        AttachDiskError::Serial | AttachDiskError::Open(_) => FaultCode::BadConfig,
        AttachDiskError::Notifications(_) | AttachDiskError::Device(_) => FaultCode::Host,
    };
    fault(code, chain(error))
}

fn detach_fault(error: &DetachDiskError) -> Fault {
    let code = match error {
        DetachDiskError::Slot(error) => slot_code(error),
        DetachDiskError::Notifications(_) | DetachDiskError::Device(_) => FaultCode::Host,
    };
    fault(code, chain(error))
}

fn slot_code(error: &SlotError) -> FaultCode {
    match error {
        SlotError::Unknown { .. } => FaultCode::BadConfig,
        SlotError::None => FaultCode::InvalidState,
    }
}

fn refused(error: &BuildError) -> Fault {
    fault(if error.is_config() { FaultCode::BadConfig } else { FaultCode::Host }, chain(error))
}

fn no_machine() -> Fault {
    fault(FaultCode::InvalidState, "There is no machine yet")
}

fn fault(code: FaultCode, message: impl Into<String>) -> Fault {
    Fault { code, message: message.into() }
}
