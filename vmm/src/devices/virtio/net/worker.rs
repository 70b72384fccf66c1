//! What the thread of a running network device does, one turn at a time, so that tests and fuzzers can take the turns
//! themselves.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use sandpiper_protocol::vmm::NetLimits;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::QueueState;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::header::Offloads;
use super::limits::Limits;
use super::receive::Receive;
use super::tap::Tap;
use super::transmit::Transmit;
use crate::devices::virtio::bucket::milliseconds_until;
use crate::devices::virtio::ring::{Ring, RingError};
use crate::devices::virtio::worker::{Work, log_failure};
use crate::devices::virtio::{Activation, Interrupt, Memory};
use crate::jail::Role;

/// What wakes the thread.
const STOP: u64 = 0;
const TAP: u64 = 1;
const NOTIFY: u64 = 2;

/// Frames in each direction between two looks at the events, and at whether the driver wants an interrupt.
pub(super) const FRAMES_PER_TURN: usize = 64;

/// All that the thread works with.
pub struct Service {
    tap: Tap,
    memory: Memory,
    receive: Receive,
    transmit: Transmit,
    /// Of both queues.
    notify: [EventFd; 2],
    interrupt: Interrupt,
    offloads: Offloads,
}

/// When there is something to do again, the earliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    Now,
    At(Instant),
    /// When an event says so.
    Notified,
}

/// Why the device cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("The tap is gone")]
    Tap(#[source] io::Error),
    #[error("Cannot create or wait for the thread's events")]
    Events(#[source] io::Error),
}

impl Work for Service {
    const ROLE: Role = Role::Net;

    /// Until `stop`, until the guest breaks a queue, or until the tap is gone.
    fn run(&mut self, stop: &EventFd) {
        if let Err(error) = self.serve(stop) {
            log_failure("network", &error);
            self.interrupt.needs_reset();
        }
    }
}

impl Service {
    /// The work of an activated device on `tap`, within `limits`.
    ///
    /// # Errors
    /// `InvalidInput` unless `activation` has two queues.
    pub fn new(tap: Tap, limits: NetLimits, activation: Activation) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, .. } = activation;
        let Ok([receive, transmit]) = <[_; 2]>::try_from(queues) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a network device has two queues"));
        };
        let has = |bit: u32| features & (1 << bit) != 0;
        let offloads = Offloads::new(features);
        let ring = |queue| Ring::new(queue, has(VIRTIO_RING_F_EVENT_IDX));
        Ok(Self {
            tap,
            memory,
            receive: Receive::new(ring(receive.queue), offloads, Limits::new(limits), has(VIRTIO_NET_F_MRG_RXBUF)),
            transmit: Transmit::new(ring(transmit.queue), offloads, Limits::new(limits)),
            notify: [receive.notify, transmit.notify],
            interrupt,
            offloads,
        })
    }

    /// The queues as they stand, in the device's order.
    pub(super) fn queue_states(&self) -> Vec<QueueState> {
        vec![self.receive.queue_state(), self.transmit.queue_state()]
    }

    /// Tells that the tap may have something to read.
    pub fn readable(&mut self) {
        self.receive.readable();
    }

    /// Moves what there is to move, and may be moved at the time `now`. A bounded amount of work.
    ///
    /// # Errors
    /// The driver has corrupted a queue, or the tap is gone: the device must stop.
    pub fn turn(&mut self, now: Instant) -> Result<Next, Broken> {
        let sent = self.transmit.turn(&self.tap, &self.memory, &self.interrupt, now)?;
        let received = self.receive.turn(&self.tap, &self.memory, &self.interrupt, now)?;
        Ok(sent.min(received))
    }

    fn serve(&mut self, stop: &EventFd) -> Result<(), Broken> {
        self.tap.set_offloads(self.offloads.of_tap()).map_err(Broken::Tap)?;
        let epoll = self.watch(stop).map_err(Broken::Events)?;
        let mut events = [EpollEvent::default(); 4];
        // What happened while this did not run may have been told to nobody.
        self.readable();
        loop {
            let next = self.turn(Instant::now())?;
            let count = match epoll.wait(timeout(next), &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(Broken::Events(error)),
            };
            for event in events.iter().take(count) {
                match event.data() {
                    STOP => return Ok(()),
                    // Its device is being deleted, which is told this once: a read may still find it empty (`tun_detach_all`
                    // of `drivers/net/tun.c` wakes its readers first).
                    TAP if event.event_set().contains(EventSet::ERROR) => {
                        return Err(Broken::Tap(io::Error::from_raw_os_error(libc::EBADFD)));
                    }
                    TAP => self.readable(),
                    queue => {
                        let queue = usize::try_from(queue - NOTIFY).ok().and_then(|index| self.notify.get(index));
                        // Readable, and read by nobody else; the queues are looked at in every turn.
                        let _ = queue.map(EventFd::read);
                    }
                }
            }
        }
    }

    /// The tap only tells when it becomes readable: while a guest has no room, or has had its share, that it still is would
    /// be no news.
    fn watch(&self, stop: &EventFd) -> io::Result<Epoll> {
        let epoll = Epoll::new()?;
        let add = |fd, events, id| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, id));
        add(stop.as_raw_fd(), EventSet::IN, STOP)?;
        add(self.tap.as_raw_fd(), EventSet::IN | EventSet::EDGE_TRIGGERED, TAP)?;
        for (id, notify) in (NOTIFY..).zip(&self.notify) {
            add(notify.as_raw_fd(), EventSet::IN, id)?;
        }
        Ok(epoll)
    }
}

/// Milliseconds for `epoll_wait`, -1 for ever.
fn timeout(next: Next) -> i32 {
    match next {
        Next::Now => 0,
        Next::Notified => -1,
        Next::At(time) => milliseconds_until(time),
    }
}
