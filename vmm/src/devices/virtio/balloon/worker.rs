//! What the thread of a running balloon does, one turn at a time, so that tests and fuzzers can take the turns themselves.

use std::io;
use std::os::fd::AsRawFd;

use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{QueueOwnedT, QueueState, QueueT};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::{QUEUE_SIZES, VIRTIO_BALLOON_F_REPORTING, pages};
use crate::devices::virtio::worker::{Work, log_failure};
use crate::devices::virtio::{Activation, ActiveQueue, Interrupt, Memory};
use crate::jail::Role;

/// What wakes the thread: this, or the queue of this number.
const STOP: u64 = u64::MAX;

/// All that the thread works with.
pub struct Service {
    memory: Memory,
    lanes: Vec<Lane>,
    interrupt: Interrupt,
}

/// A queue and what its chains are for.
struct Lane {
    purpose: Purpose,
    active: ActiveQueue,
    /// The driver has set it up.
    in_use: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Inflate,
    Deflate,
    Report,
}

/// The driver corrupted a queue, or the host has no events for the thread.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("The driver corrupted a queue")]
    Queue(#[from] virtio_queue::Error),
    #[error("Cannot create or wait for the thread's events")]
    Events(#[from] io::Error),
}

impl Work for Service {
    const ROLE: Role = Role::Balloon;

    /// Until `stop`, or until the guest breaks a queue.
    fn run(&mut self, stop: &EventFd) {
        if let Err(error) = self.serve(stop) {
            log_failure("balloon", &error);
            self.interrupt.needs_reset();
        }
    }
}

impl Service {
    /// # Errors
    ///
    /// The activation is not that of a balloon.
    pub fn new(activation: Activation) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, .. } = activation;
        if queues.len() != QUEUE_SIZES.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a balloon has three queues"));
        }
        let purposes = [Purpose::Inflate, Purpose::Deflate, Purpose::Report];
        let lanes = purposes
            .into_iter()
            .zip(queues)
            .map(|(purpose, mut active)| {
                active.queue.set_event_idx(features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0);
                let accepted = purpose != Purpose::Report || features & (1 << VIRTIO_BALLOON_F_REPORTING) != 0;
                let in_use = accepted && active.queue.ready();
                Lane { purpose, active, in_use }
            })
            .collect();
        Ok(Self { memory, lanes, interrupt })
    }

    pub(super) fn queue_states(&self) -> Vec<QueueState> {
        self.lanes.iter().map(|lane| lane.active.queue.state()).collect()
    }

    fn serve(&mut self, stop: &EventFd) -> Result<(), Broken> {
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, stop.as_raw_fd(), EpollEvent::new(EventSet::IN, STOP))?;
        for (number, lane) in (0..).zip(&self.lanes) {
            let event = EpollEvent::new(EventSet::IN, number);
            epoll.ctl(ControlOperation::Add, lane.active.notify.as_raw_fd(), event)?;
        }
        let mut events = [EpollEvent::default(); 1 + QUEUE_SIZES.len()];
        loop {
            // Looking comes first: what was there before the thread may have been notified to nobody.
            let timeout = if self.turn()? { 0 } else { -1 };
            let count = match epoll.wait(timeout, &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error.into()),
            };
            for event in events.iter().take(count) {
                if event.data() == STOP {
                    return Ok(());
                }
                let lane = usize::try_from(event.data()).ok().and_then(|number| self.lanes.get(number));
                // Readable, and read by nobody else.
                let _ = lane.map(|lane| lane.active.notify.read());
            }
        }
    }

    /// Answers a chain of each queue that has one: a driver waits for each chain before its next anyway. True if there
    /// may be more, for which no notification will come.
    ///
    /// # Errors
    ///
    /// The driver corrupted a queue.
    pub fn turn(&mut self) -> Result<bool, Broken> {
        let mut more = false;
        for lane in self.lanes.iter_mut().filter(|lane| lane.in_use) {
            more |= lane.answer(&self.memory, &self.interrupt)?;
        }
        Ok(more)
    }
}

impl Lane {
    fn answer(&mut self, memory: &Memory, interrupt: &Interrupt) -> Result<bool, Broken> {
        let queue = &mut self.active.queue;
        let Some(chain) = queue.iter(memory)?.next() else { return Ok(queue.enable_notification(memory)?) };
        let head = chain.head_index();
        match self.purpose {
            Purpose::Inflate => pages::inflate(memory, chain),
            Purpose::Deflate => {}
            Purpose::Report => pages::report(memory, chain),
        }
        // Only now: from here on the driver may use a reported page again.
        queue.add_used(memory, head, 0)?;
        if queue.needs_notification(memory)? {
            interrupt.used_buffer();
        }
        Ok(true)
    }
}
