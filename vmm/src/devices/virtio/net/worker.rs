//! What the thread of a running network device does.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use sandpiper_protocol::vmm::NetLimits;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::header::Offloads;
use super::limits::Limits;
use super::receive::Receive;
use super::tap::Tap;
use super::transmit::Transmit;

use crate::devices::virtio::{self, Activation, FIRST_SOURCE, Interrupt, Memory, Next, Ring, RingError, rings};
use crate::jail::Role;

/// The event that the tap has a frame.
const TAP: u64 = FIRST_SOURCE;

/// Frames in each direction between two looks at the events, and at whether the driver wants an interrupt.
pub(super) const FRAMES_PER_BATCH: usize = 64;

/// All that the thread works with.
pub struct Service {
    tap: Tap,
    memory: Memory,
    receive: Receive,
    transmit: Transmit,
    interrupt: Interrupt,
    offloads: Offloads,
}

/// Why the device cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("The tap is gone")]
    Tap(#[source] io::Error),
}

impl virtio::Service for Service {
    const ROLE: Role = Role::Net;
    type Error = NetError;

    fn queues(&self) -> impl Iterator<Item = &Ring> {
        [self.receive.ring(), self.transmit.ring()].into_iter()
    }

    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// The tap only tells when it becomes readable: while a guest has no room, or has had its share, that it still is would
    /// be no news.
    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, TAP);
        epoll.ctl(ControlOperation::Add, self.tap.as_raw_fd(), event)
    }

    fn begin(&mut self) -> Result<(), NetError> {
        self.tap.set_offloads(self.offloads.of_tap()).map_err(NetError::Tap)?;
        // That it became readable may have been told to nobody.
        self.readable();
        Ok(())
    }

    fn event(&mut self, _epoll: &Epoll, _tap: u64, events: EventSet, _now: Instant) -> Result<(), NetError> {
        // Its device is being deleted, which is told this once: a read may still find it empty (`tun_detach_all` of
        // `drivers/net/tun.c` wakes its readers first).
        if events.contains(EventSet::ERROR) {
            return Err(NetError::Tap(io::Error::from_raw_os_error(libc::EBADFD)));
        }
        self.readable();
        Ok(())
    }

    fn process(&mut self, _epoll: &Epoll, now: Instant) -> Result<Next, NetError> {
        self.transfer(now)
    }
}

impl Service {
    /// The service of an activated device on `tap`, within `limits`.
    ///
    /// # Errors
    /// `InvalidInput` unless `activation` has two queues.
    pub fn new(tap: Tap, limits: NetLimits, activation: Activation) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, .. } = activation;
        let [receive, transmit] = rings(queues, features)?;
        let offloads = Offloads::new(features);
        let mergeable = features & (1 << VIRTIO_NET_F_MRG_RXBUF) != 0;
        Ok(Self {
            tap,
            memory,
            receive: Receive::new(receive, offloads, Limits::new(limits), mergeable),
            transmit: Transmit::new(transmit, offloads, Limits::new(limits)),
            interrupt,
            offloads,
        })
    }

    /// Tells that the tap may have something to read.
    pub fn readable(&mut self) {
        self.receive.readable();
    }

    /// Moves the frames that there are, and that may be moved at the time `now`: at most [`FRAMES_PER_BATCH`] in each
    /// direction.
    ///
    /// # Errors
    /// The driver has corrupted a queue, or the tap is gone: the device must stop.
    pub fn transfer(&mut self, now: Instant) -> Result<Next, NetError> {
        let sent = self.transmit.transfer(&self.tap, &self.memory, &self.interrupt, now)?;
        let received = self.receive.transfer(&self.tap, &self.memory, &self.interrupt, now)?;
        Ok(sent.min(received))
    }
}
