//! The device's loop, one turn at a time, so that tests and fuzzers can take the turns themselves.
//!
//! A device that goes on in another process than the one its driver knew has none of the connections that the guest
//! believes in. It says so first (`VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`), and takes and sends nothing else until the driver
//! has posted a new buffer for events: Linux does so after it has reset its sockets, so none of the connections that are
//! made from then on is hit by that reset.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::QueueState;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::super::ring::{Ring, RingError};
use super::super::slices::Direction;
use super::super::worker::{Work, log_failure};
use super::super::{Activation, ActiveQueue, Interrupt, Memory};
use super::Backend;
use super::muxer::{FIRST_ID, Muxer, Served};
use super::packet::Buffer;
use crate::jail::Role;

/// What an event is about, where it is no connection.
const KILL: u64 = 0;
const RECEIVE: u64 = 1;
const TRANSMIT: u64 = 2;
const LISTENER: u64 = 3;
const EVENT: u64 = 4;
const _: () = assert!(EVENT < FIRST_ID);

/// `struct virtio_vsock_event` with id `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`.
const TRANSPORT_RESET: [u8; EVENT_LENGTH as usize] = [0; EVENT_LENGTH as usize];
const EVENT_LENGTH: u32 = 4;

/// Events handled, and clients accepted, in one turn.
const TURN_EVENTS: usize = 64;

/// How long the listener is left alone after it could not be accepted from, for want of descriptors for instance.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Whether a turn waits for something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Wait,
    Poll,
}

/// What comes after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Continue,
    Stop,
}

/// Everything the device's thread works with.
pub struct Worker {
    backend: Backend,
    memory: Memory,
    /// Packets to the guest.
    receive: Ring,
    receive_notify: EventFd,
    /// Packets from the guest.
    transmit: Ring,
    transmit_notify: EventFd,
    event: Ring,
    event_notify: EventFd,
    interrupt: Interrupt,
    epoll: Epoll,
    muxer: Muxer,
    /// The last turn left work behind.
    busy: bool,
    /// The guest broke a queue: nothing to do but wait for the reset.
    broken: bool,
    accept_again: Option<Instant>,
    news: News,
}

/// What the driver has to hear before anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    None,
    /// All its connections are gone.
    Reset,
    /// It was told; once it has made more buffers available than these, it has acted upon it.
    Told {
        available: u16,
    },
}

impl Work for Worker {
    const ROLE: Role = Role::Vsock;

    fn run(&mut self, stop: &EventFd) {
        let watch = EpollEvent::new(EventSet::IN, KILL);
        if self.epoll.ctl(ControlOperation::Add, stop.as_raw_fd(), watch).is_err() {
            return self.interrupt.needs_reset();
        }
        // Whatever the driver did while this did not run.
        self.busy = true;
        while self.turn(Pace::Wait) == Turn::Continue {}
        let _ = self.epoll.ctl(ControlOperation::Delete, stop.as_raw_fd(), watch);
    }
}

impl Worker {
    /// The work of an activated device. `next_host_port` is [`Self::next_host_port`] of the device that this one goes
    /// on from.
    ///
    /// # Errors
    /// `InvalidInput` unless `activation` has three queues; otherwise the events cannot be watched.
    pub fn new(backend: Backend, activation: Activation, next_host_port: Option<u32>) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, restored } = activation;
        let mut queues = queues.into_iter();
        let (Some(receive), Some(transmit), Some(event)) = (queues.next(), queues.next(), queues.next()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a vsock device has three queues"));
        };
        backend.listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        let watch = |fd, events, id| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, id));
        watch(receive.notify.as_raw_fd(), EventSet::IN, RECEIVE)?;
        watch(transmit.notify.as_raw_fd(), EventSet::IN, TRANSMIT)?;
        watch(event.notify.as_raw_fd(), EventSet::IN, EVENT)?;
        let accepting = if restored { EventSet::empty() } else { EventSet::IN };
        watch(backend.listener.as_raw_fd(), accepting, LISTENER)?;
        let event_idx = features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let ring = |active: ActiveQueue| (Ring::new(active.queue, event_idx), active.notify);
        let (receive, receive_notify) = ring(receive);
        let (transmit, transmit_notify) = ring(transmit);
        let (event, event_notify) = ring(event);
        let muxer = Muxer::new(backend.guest_cid, next_host_port);
        Ok(Self {
            backend,
            memory,
            receive,
            receive_notify,
            transmit,
            transmit_notify,
            event,
            event_notify,
            interrupt,
            epoll,
            muxer,
            // The driver may have filled its queues before the notifications were watched.
            busy: true,
            broken: false,
            accept_again: None,
            news: if restored { News::Reset } else { News::None },
        })
    }

    /// Where a device that goes on from this one has to go on with its ports: see [`super`].
    pub fn next_host_port(&self) -> u32 {
        self.muxer.next_host_port()
    }

    /// The queues as they stand, in the device's order.
    pub fn queue_states(&self) -> Vec<QueueState> {
        [&self.receive, &self.transmit, &self.event].map(Ring::state).to_vec()
    }

    /// Handles what has happened, after waiting for it if `pace` says so. A bounded amount of work.
    pub fn turn(&mut self, pace: Pace) -> Turn {
        let mut events = [EpollEvent::default(); TURN_EVENTS];
        let count = match self.epoll.wait(self.timeout(pace), &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            // Not one of the documented errors can occur with a descriptor and a buffer of our own. Spinning would be worse.
            Err(error) => {
                log_failure("vsock", &error);
                return Turn::Stop;
            }
        };
        let now = Instant::now();
        for event in &events[..count] {
            match event.data() {
                KILL => return Turn::Stop,
                // The queues are looked at in every turn.
                RECEIVE => drop(self.receive_notify.read()),
                TRANSMIT => drop(self.transmit_notify.read()),
                EVENT => drop(self.event_notify.read()),
                LISTENER => self.accept(now),
                id => self.muxer.host_event(&self.epoll, id, event.event_set(), now),
            }
        }
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
            self.watch_listener(EventSet::IN);
        }
        self.muxer.expire(&self.epoll, now);
        self.busy = false;
        if !self.broken {
            match self.process(now) {
                Ok(busy) => self.busy = busy,
                Err(error) => {
                    log_failure("vsock", &error);
                    self.broken = true;
                    self.muxer.shut(&self.epoll);
                    self.interrupt.needs_reset();
                }
            }
        }
        Turn::Continue
    }

    /// Whether the last turn left work behind, so that the next one will not wait.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Milliseconds for `epoll_wait`, -1 for ever.
    fn timeout(&self, pace: Pace) -> i32 {
        if self.busy || pace == Pace::Poll {
            return 0;
        }
        let next = [self.muxer.next_deadline(), self.accept_again].into_iter().flatten().min();
        let Some(next) = next else { return -1 };
        // Rounded up: waking early would mean waking again.
        let wait = next.saturating_duration_since(Instant::now()).as_millis() + 1;
        i32::try_from(wait).unwrap_or(i32::MAX)
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..TURN_EVENTS {
            match self.backend.listener.accept() {
                Ok((stream, _)) => self.muxer.accept(&self.epoll, stream, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.watch_listener(EventSet::empty());
                        self.accept_again = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                },
            }
        }
    }

    fn watch_listener(&self, events: EventSet) {
        let event = EpollEvent::new(events, LISTENER);
        // It was added in `new`, so there is nothing that can fail.
        let _ = self.epoll.ctl(ControlOperation::Modify, self.backend.listener.as_raw_fd(), event);
    }

    /// Tells the driver what it has to hear first. True once it has acted upon it.
    fn tell_news(&mut self) -> Result<bool, RingError> {
        if self.news == News::Reset {
            // A driver that has posted no buffer for events has not come so far as to have a connection.
            let Some(chain) = self.event.take(&self.memory)? else { return Ok(self.forget_news()) };
            let head = chain.head_index();
            let place = chain.writable().find(|buffer| buffer.len() >= EVENT_LENGTH).map(|buffer| buffer.addr());
            let written = place.is_some_and(|at: GuestAddress| self.memory.write_slice(&TRANSPORT_RESET, at).is_ok());
            self.news = News::Told { available: self.event.listen_for_more(&self.memory)? };
            self.event.finish(&self.memory, head, if written { EVENT_LENGTH } else { 0 })?;
            self.event.interrupt(&self.memory, &self.interrupt)?;
        }
        let News::Told { available } = self.news else { return Ok(true) };
        Ok(self.event.listen_for_more(&self.memory)? != available && self.forget_news())
    }

    fn forget_news(&mut self) -> bool {
        self.news = News::None;
        self.watch_listener(EventSet::IN);
        true
    }

    /// The queues. True if there is more to do.
    fn process(&mut self, now: Instant) -> Result<bool, RingError> {
        if self.news != News::None && !self.tell_news()? {
            return Ok(false);
        }
        self.transmit.mute(&self.memory)?;
        let emptied = self.take_packets(now)?;
        let served = self.muxer.serve(&self.epoll, &mut self.receive, &self.memory, now)?;
        self.transmit.interrupt(&self.memory, &self.interrupt)?;
        self.receive.interrupt(&self.memory, &self.interrupt)?;
        // Nobody notifies before `listen`, and what came before it is work for the next turn.
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
    fn take_packets(&mut self, now: Instant) -> Result<bool, RingError> {
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
                self.muxer.packet(&self.epoll, &header, buffer.data, guest_connections.as_mut(), now);
            }
            self.transmit.finish(&self.memory, head, 0)?;
        }
        Ok(false)
    }
}
