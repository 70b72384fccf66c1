//! What the thread of a running balloon does.

use std::io;
use std::time::Instant;

use vmm_sys_util::epoll::Epoll;

use super::{VIRTIO_BALLOON_F_REPORTING, pages};
use crate::devices::virtio::{self, Activation, Interrupt, Memory, Next, Ring, RingError, rings};
use crate::jail::Role;

/// All that the thread works with.
pub struct Service {
    memory: Memory,
    lanes: [Lane; 3],
    interrupt: Interrupt,
}

/// A queue and what its chains are for.
struct Lane {
    purpose: Purpose,
    ring: Ring,
    /// The driver uses it.
    in_use: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Inflate,
    Deflate,
    Report,
}

impl virtio::Service for Service {
    const ROLE: Role = Role::Balloon;
    type Error = RingError;

    fn queues(&self) -> impl Iterator<Item = &Ring> {
        self.lanes.iter().map(|lane| &lane.ring)
    }

    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn process(&mut self, _epoll: &Epoll, _now: Instant) -> Result<Next, RingError> {
        self.answer()
    }
}

impl Service {
    /// # Errors
    ///
    /// The activation is not that of a balloon.
    pub fn new(activation: Activation) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, .. } = activation;
        let [inflate, deflate, report] = rings(queues, features)?;
        let reporting = features & (1 << VIRTIO_BALLOON_F_REPORTING) != 0;
        let lane = |purpose, ring: Ring, accepted| Lane { purpose, in_use: accepted && ring.is_ready(), ring };
        let lanes = [
            lane(Purpose::Inflate, inflate, true),
            lane(Purpose::Deflate, deflate, true),
            lane(Purpose::Report, report, reporting),
        ];
        Ok(Self { memory, lanes, interrupt })
    }

    /// Answers a chain of each queue that has one: a driver waits for each chain before its next anyway. [`Next::Now`] if
    /// there may be more, for which no notification will come.
    ///
    /// # Errors
    ///
    /// The driver corrupted a queue.
    pub fn answer(&mut self) -> Result<Next, RingError> {
        let mut next = Next::Notified;
        for lane in self.lanes.iter_mut().filter(|lane| lane.in_use) {
            next = next.min(lane.answer(&self.memory, &self.interrupt)?);
        }
        Ok(next)
    }
}

impl Lane {
    fn answer(&mut self, memory: &Memory, interrupt: &Interrupt) -> Result<Next, RingError> {
        let Some(chain) = self.ring.take(memory)? else {
            return Ok(if self.ring.listen(memory)? { Next::Now } else { Next::Notified });
        };
        let head = chain.head_index();
        match self.purpose {
            Purpose::Inflate => pages::inflate(memory, chain),
            Purpose::Deflate => {}
            Purpose::Report => pages::report(memory, chain),
        }
        // Only now: from here on the driver may use a reported page again.
        self.ring.finish(memory, head, 0)?;
        self.ring.interrupt(memory, interrupt)?;
        Ok(Next::Now)
    }
}
