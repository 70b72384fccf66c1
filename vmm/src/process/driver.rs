//! The state driver: the one thread that changes what the machine is.
//!
//! It waits for three things, with one epoll: a new control connection, a packet on one, the machine's end. Requests are
//! handled one after another, so there is never a question of what happens to a `Stop` during a `Boot`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_ioctls::Kvm;
use sandpiper_protocol::vmm::{
    ExitReason, ExitRecord, Fault, FaultCode, MachineConfig, MachineState, MonitorMessage, Packet, Reply, Request,
    RequestMessage, Timings,
};
use serde::Deserialize;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::chain;
use super::control::{ConnectionId, Control, Received};
use super::link::{AgentLink, EventSlot};
use crate::machine::clock::monotonic_us;
use crate::machine::{Built, Ending, Machine, Parts};

/// What an epoll event is about; connections are numbered from [`FIRST_CONNECTION`] on.
const LISTENER: u64 = 0;
const ENDED: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// The monitor itself cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("Cannot make the event that tells the machine's end")]
    Ending(#[source] io::Error),
    #[error("Cannot watch the control socket")]
    Watch(#[source] io::Error),
    #[error("Cannot wait for events")]
    Wait(#[source] io::Error),
    #[error("The control socket takes no connections")]
    Accept(#[source] io::Error),
}

pub(crate) struct Driver {
    epoll: Epoll,
    control: Control,
    kvm: Kvm,
    ending: Ending,
    events: EventSlot,
    guest_init_us: Arc<AtomicU64>,
    timings: Timings,
    machine: Option<Machine>,
}

impl Driver {
    pub(crate) fn new(control: OwnedFd, kvm: Kvm, process_start_us: u64) -> Result<Self, DriverError> {
        let ending = Ending::new().map_err(DriverError::Ending)?;
        let epoll = Epoll::new().map_err(DriverError::Watch)?;
        let watch = |fd, what| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, what));
        watch(control.as_raw_fd(), LISTENER).map_err(DriverError::Watch)?;
        watch(ending.event().as_raw_fd(), ENDED).map_err(DriverError::Watch)?;
        let events = EventSlot::default();
        Ok(Self {
            epoll,
            control: Control::new(control, events.clone(), FIRST_CONNECTION),
            kvm,
            ending,
            events,
            guest_init_us: Arc::default(),
            timings: Timings { process_start_us, ..Timings::default() },
            machine: None,
        })
    }

    /// Serves until the machine ended, and returns how.
    pub(crate) fn run(mut self) -> Result<ExitRecord, DriverError> {
        let mut ready = [EpollEvent::default(); 16];
        loop {
            let count = match self.epoll.wait(-1, &mut ready) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(DriverError::Wait(error)),
            };
            for event in &ready[..count] {
                match event.data() {
                    LISTENER => self.control.accept(&self.epoll).map_err(DriverError::Accept)?,
                    ENDED => {}
                    connection => self.serve(connection),
                }
            }
            if let Some(record) = self.ending.record().cloned() {
                // Stops vCPUs and devices; when this returns the guest touches nothing any more.
                self.machine = None;
                return Ok(record);
            }
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
        self.control.reply(connection, &MonitorMessage::Reply { id, result });
    }

    fn handle(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<Reply, Fault> {
        match request {
            Request::Boot(config) => self.boot(&config, fds),
            Request::Status => {
                let state = if self.machine.is_some() { MachineState::Running } else { MachineState::Waiting };
                Ok(Reply::Status { state, timings: self.timings() })
            }
            Request::Stop => {
                self.ending.report(ExitReason::Stopped, "The agent asked for it");
                Ok(Reply::Stopping)
            }
        }
    }

    fn boot(&mut self, config: &MachineConfig, fds: Vec<OwnedFd>) -> Result<Reply, Fault> {
        let boot_request_us = monotonic_us();
        if self.machine.is_some() {
            return Err(fault(FaultCode::InvalidState, "The machine runs already"));
        }
        let link = AgentLink { events: self.events.clone(), guest_init_us: Arc::clone(&self.guest_init_us) };
        let parts = sort_out(config, fds, link)?;
        let built = Built::build(&self.kvm, config, parts, self.ending.clone()).and_then(Built::start);
        let (machine, first_instruction_us) = built.map_err(|error| {
            fault(if error.is_config() { FaultCode::BadConfig } else { FaultCode::Host }, chain(&error))
        })?;
        self.machine = Some(machine);
        self.timings = Timings { boot_request_us, first_instruction_us, ..self.timings };
        Ok(Reply::Booted(self.timings()))
    }

    fn timings(&self) -> Timings {
        Timings { guest_init_us: self.guest_init_us.load(Ordering::Relaxed), ..self.timings }
    }
}

/// The request in a packet, or what to answer instead and to which id.
fn understand(packet: &Packet) -> Result<RequestMessage, (u64, Fault)> {
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

/// Gives each descriptor its meaning; see [`Request::Boot`] for their order.
fn sort_out(config: &MachineConfig, fds: Vec<OwnedFd>, link: AgentLink) -> Result<Parts, Fault> {
    let layers = config.disks.iter().fold(0u64, |sum, disk| sum + u64::from(disk.layers));
    let expected = layers + 2 + u64::from(config.console);
    let given = fds.len();
    if expected != given as u64 {
        return Err(fault(FaultCode::Malformed, format!("This machine takes {expected} descriptors, not {given}")));
    }
    let missing = || fault(FaultCode::Malformed, "A descriptor is missing");
    let mut fds = fds.into_iter();
    let kernel = File::from(fds.next().ok_or_else(missing)?);
    let disks = config
        .disks
        .iter()
        .map(|disk| fds.by_ref().take(usize::try_from(disk.layers).unwrap_or(usize::MAX)).map(File::from).collect())
        .collect();
    let vsock = UnixListener::from(fds.next().ok_or_else(missing)?);
    let console = fds.next().map(File::from);
    Ok(Parts { kernel, disks, vsock, guest_connections: Box::new(link), console })
}

fn fault(code: FaultCode, message: impl Into<String>) -> Fault {
    Fault { code, message: message.into() }
}
