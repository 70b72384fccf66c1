//! What the thread of a running vsock device does.
//!
//! A device that goes on in another process than the one its driver knew has none of the connections that the guest
//! believes in. It says so first (`VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`), and takes and sends nothing else until the driver
//! has posted a new buffer for events: Linux does so after it has reset its sockets, so none of the connections that are
//! made from then on is hit by that reset.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Backend;
use super::muxer::{FIRST_ID, Muxer, Served};
use super::packet::Buffer;
use crate::devices::virtio::event_loop::fail;
use crate::devices::virtio::slices::Direction;
use crate::devices::virtio::{self, Activation, FIRST_SOURCE, Interrupt, Memory, Next, Ring, RingError, rings};
use crate::jail::Role;

/// The event that a client wants to be accepted. All others are of connections.
const LISTENER: u64 = FIRST_SOURCE;
const _: () = assert!(LISTENER < FIRST_ID);

/// `struct virtio_vsock_event` with id `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`.
const TRANSPORT_RESET: [u8; EVENT_LENGTH as usize] = [0; EVENT_LENGTH as usize];
const EVENT_LENGTH: u32 = 4;

/// Most clients that are accepted before the queues are looked at again.
const CLIENTS_PER_BATCH: usize = 64;

/// How long the listener is left alone after it could not be accepted from, for want of descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// All that the thread works with.
pub struct Service {
    backend: Backend,
    memory: Memory,
    /// Packets to the guest.
    receive: Ring,
    /// Packets from the guest.
    transmit: Ring,
    event: Ring,
    interrupt: Interrupt,
    muxer: Muxer,
    /// The guest broke a queue: nothing to do but refuse clients until the reset.
    broken: bool,
    accept_again: Option<Instant>,
    transport_reset: TransportReset,
}

/// Whether the driver has yet to hear that all its connections are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransportReset {
    None,
    Due,
    /// Once the driver has made more buffers available than these, it has acted upon it.
    Sent {
        available: u16,
    },
}

impl virtio::Service for Service {
    const ROLE: Role = Role::Vsock;
    type Error = RingError;

    fn queues(&self) -> impl Iterator<Item = &Ring> {
        [&self.receive, &self.transmit, &self.event].into_iter()
    }

    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        let events = if self.transport_reset == TransportReset::None { EventSet::IN } else { EventSet::empty() };
        epoll.ctl(ControlOperation::Add, self.backend.listener.as_raw_fd(), EpollEvent::new(events, LISTENER))
    }

    fn event(&mut self, epoll: &Epoll, id: u64, events: EventSet, now: Instant) -> Result<(), RingError> {
        match id {
            LISTENER => self.accept(epoll, now),
            connection => self.muxer.host_event(epoll, connection, events, now),
        }
        Ok(())
    }

    /// A queue that is broken ends all connections but not the thread: clients are refused instead of left waiting.
    fn process(&mut self, epoll: &Epoll, now: Instant) -> Result<Next, RingError> {
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
            self.watch_listener(epoll, EventSet::IN);
        }
        self.muxer.expire(epoll, now);
        if !self.broken {
            match self.serve_queues(epoll, now) {
                Ok(true) => return Ok(Next::Now),
                Ok(false) => {}
                Err(error) => {
                    self.broken = true;
                    self.muxer.shut(epoll);
                    fail(self, &error);
                }
            }
        }
        let deadline = [self.muxer.next_deadline(), self.accept_again].into_iter().flatten().min();
        Ok(deadline.map_or(Next::Notified, Next::At))
    }
}

impl Service {
    /// The service of an activated device. `next_host_port` is [`Self::next_host_port`] of the device that this one goes
    /// on from.
    ///
    /// # Errors
    /// `InvalidInput` unless `activation` has three queues; otherwise the listener cannot be made non-blocking.
    pub fn new(backend: Backend, activation: Activation, next_host_port: Option<u32>) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, restored } = activation;
        let [receive, transmit, event] = rings(queues, features)?;
        backend.listener.set_nonblocking(true)?;
        let muxer = Muxer::new(backend.guest_cid, next_host_port);
        Ok(Self {
            backend,
            memory,
            receive,
            transmit,
            event,
            interrupt,
            muxer,
            broken: false,
            accept_again: None,
            transport_reset: if restored { TransportReset::Due } else { TransportReset::None },
        })
    }

    /// Where a device that goes on from this one has to go on with its ports: see [`super`].
    pub fn next_host_port(&self) -> u32 {
        self.muxer.next_host_port()
    }

    fn accept(&mut self, epoll: &Epoll, now: Instant) {
        for _ in 0..CLIENTS_PER_BATCH {
            match self.backend.listener.accept() {
                Ok((stream, _)) => self.muxer.accept(epoll, stream, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.watch_listener(epoll, EventSet::empty());
                        self.accept_again = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                },
            }
        }
    }

    fn watch_listener(&self, epoll: &Epoll, events: EventSet) {
        let event = EpollEvent::new(events, LISTENER);
        // It was added in `watch`, so there is nothing that can fail.
        let _ = epoll.ctl(ControlOperation::Modify, self.backend.listener.as_raw_fd(), event);
    }

    /// Tells the driver of the reset if that is due. True once it has acted upon it.
    fn reset_transport(&mut self, epoll: &Epoll) -> Result<bool, RingError> {
        if self.transport_reset == TransportReset::Due {
            // A driver that has posted no buffer for events has not come so far as to have a connection.
            let Some(chain) = self.event.take(&self.memory)? else { return Ok(self.end_transport_reset(epoll)) };
            let head = chain.head_index();
            let room = chain.writable().find(|buffer| buffer.len() >= EVENT_LENGTH).map(|buffer| buffer.addr());
            let written = room.is_some_and(|at: GuestAddress| self.memory.write_slice(&TRANSPORT_RESET, at).is_ok());
            self.transport_reset = TransportReset::Sent { available: self.event.listen_for_more(&self.memory)? };
            self.event.finish(&self.memory, head, if written { EVENT_LENGTH } else { 0 })?;
            self.event.interrupt(&self.memory, &self.interrupt)?;
        }
        let TransportReset::Sent { available } = self.transport_reset else { return Ok(true) };
        Ok(self.event.listen_for_more(&self.memory)? != available && self.end_transport_reset(epoll))
    }

    fn end_transport_reset(&mut self, epoll: &Epoll) -> bool {
        self.transport_reset = TransportReset::None;
        self.watch_listener(epoll, EventSet::IN);
        true
    }

    /// Packets in both directions. True if there is more to do.
    fn serve_queues(&mut self, epoll: &Epoll, now: Instant) -> Result<bool, RingError> {
        if self.transport_reset != TransportReset::None && !self.reset_transport(epoll)? {
            return Ok(false);
        }
        self.transmit.mute(&self.memory)?;
        let emptied = self.take_packets(epoll, now)?;
        let served = self.muxer.serve(epoll, &mut self.receive, &self.memory, now)?;
        self.transmit.interrupt(&self.memory, &self.interrupt)?;
        self.receive.interrupt(&self.memory, &self.interrupt)?;
        // Nobody notifies before `listen`, and what came before it is work for the next batch.
        let mut busy = match served {
            Served::All => false,
            Served::Starved => self.receive.listen(&self.memory)?,
            Served::Some => true,
        };
        // Clogged, the guest's receive buffers are what is waited for.
        if !self.muxer.is_clogged() {
            busy |= !emptied || self.transmit.listen(&self.memory)?;
        }
        Ok(busy)
    }

    /// Packets from the guest. False if some may be left.
    fn take_packets(&mut self, epoll: &Epoll, now: Instant) -> Result<bool, RingError> {
        let mut guest_connections = self.backend.guest_connections.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..self.transmit.size() {
            if self.muxer.is_clogged() {
                return Ok(false);
            }
            let Some(chain) = self.transmit.take(&self.memory)? else { return Ok(true) };
            let head = chain.head_index();
            // What is no packet has no sender to answer to.
            if let Ok(buffer) = Buffer::new(&self.memory, chain, Direction::FromGuest) {
                let header = buffer.read_header();
                self.muxer.packet(epoll, &header, buffer.data, guest_connections.as_mut(), now);
            }
            self.transmit.finish(&self.memory, head, 0)?;
        }
        Ok(false)
    }
}
