//! What the thread of a running block device does.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::Epoll;

use super::health::Waiting;
use super::{BlockQueue, LAST_REQUESTS, QueueError, Status};
use crate::devices::virtio::event_loop::fail;
use crate::devices::virtio::{self, Interrupt, Memory, Next, Ring};
use crate::jail::Role;

/// Between two looks at whether the host has room again.
const ROOM_CHECK: Duration = Duration::from_millis(500);

/// All that the thread works with.
pub(super) struct Service {
    requests: BlockQueue,
    memory: Memory,
    ring: Ring,
    interrupt: Interrupt,
    /// While the host has no room for a request and the thread runs.
    waiting: Option<Waiting>,
}

impl virtio::Service for Service {
    const ROLE: Role = Role::Block;
    type Error = QueueError;

    fn queues(&self) -> impl Iterator<Item = &Ring> {
        [&self.ring].into_iter()
    }

    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn name(&self) -> String {
        format!("block {}", self.requests.index())
    }

    /// Completes what can be completed now, a batch after the other unless the thread is to stop.
    fn process(&mut self, _epoll: &Epoll, _now: Instant) -> Result<Next, QueueError> {
        let stop = self.requests.stop_flag();
        let status = loop {
            let status = self.requests.process(&self.memory, &mut self.ring)?;
            self.ring.interrupt(&self.memory, &self.interrupt)?;
            if status != Status::More || stop.load(Ordering::Relaxed) {
                break status;
            }
        };
        if let Status::NoRoom(failure) = status {
            self.waiting.get_or_insert_with(|| self.requests.health().wait_for_room(failure));
            return Ok(Next::At(Instant::now() + ROOM_CHECK));
        }
        self.waiting = None;
        Ok(match status {
            Status::Limited(time) => Next::At(time),
            // There is more only if the thread is to stop, for which it waits.
            Status::More | Status::Empty | Status::NoRoom(_) => Next::Notified,
        })
    }

    fn end(&mut self) {
        self.waiting = None;
    }
}

impl Service {
    pub(super) fn new(requests: BlockQueue, memory: Memory, ring: Ring, interrupt: Interrupt) -> Self {
        Self { requests, memory, ring, interrupt, waiting: None }
    }

    pub(super) fn requests_mut(&mut self) -> &mut BlockQueue {
        &mut self.requests
    }

    pub(super) fn into_requests(self) -> BlockQueue {
        self.requests
    }

    /// Completes what is in the queue, as much as it holds. False if the driver has added more meanwhile. For a device whose
    /// thread does not run.
    pub(super) fn process_all(&mut self) -> bool {
        let status = self.requests.process_all(&self.memory, &mut self.ring).and_then(|status| {
            self.ring.interrupt(&self.memory, &self.interrupt)?;
            Ok(status)
        });
        match status {
            Ok(status) => status != Status::More,
            Err(error) => {
                fail(self, &error);
                true
            }
        }
    }

    /// Takes the disk out, after what the driver has under way; the rest fails. False if the driver has added more meanwhile.
    pub(super) fn remove(&mut self) -> bool {
        let deadline = Instant::now() + LAST_REQUESTS;
        match self.requests.remove(&self.memory, &mut self.ring, deadline) {
            Ok(()) => self.process_all(),
            Err(error) => {
                fail(self, &error);
                true
            }
        }
    }
}
