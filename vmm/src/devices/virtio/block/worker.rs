//! What the thread of a running block device does.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use virtio_queue::QueueState;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::{BlockQueue, Next, QueueError};
use crate::devices::virtio::bucket::milliseconds_until;
use crate::devices::virtio::worker::{Work, log_failure};
use crate::devices::virtio::{ActiveQueue, Interrupt, Memory};
use crate::jail::Role;

/// What wakes the thread.
const NOTIFY: u64 = 0;
const STOP: u64 = 1;

/// Milliseconds between two looks at whether the host has room again.
const ROOM_CHECK: i32 = 500;

/// Why the device cannot go on.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("Cannot create or wait for the thread's events")]
    Events(#[source] io::Error),
}

/// All that the thread works with.
pub(super) struct Service {
    pub(super) requests: BlockQueue,
    pub(super) memory: Memory,
    pub(super) active: ActiveQueue,
    pub(super) interrupt: Interrupt,
}

impl Work for Service {
    const ROLE: Role = Role::Block;

    /// Serves the queue until it is told to stop, or until it cannot be trusted any more; requests in the queue are left
    /// there then.
    fn run(&mut self, stop: &EventFd) {
        if let Err(error) = self.serve(stop) {
            log_failure("block", &error);
            self.interrupt.needs_reset();
        }
    }
}

impl Service {
    pub(super) fn queue_state(&self) -> QueueState {
        self.active.queue.state()
    }

    fn serve(&mut self, stop: &EventFd) -> Result<(), Broken> {
        let epoll = self.watch(stop).map_err(Broken::Events)?;
        let mut events = [EpollEvent::default(); 2];
        let mut waiting = None;
        loop {
            // What the driver made available before the thread existed may have been notified to nobody.
            let timeout = match self.drain()? {
                Next::Room(failure) => {
                    waiting.get_or_insert_with(|| self.requests.health().wait_for_room(failure));
                    ROOM_CHECK
                }
                Next::At(time) => {
                    waiting = None;
                    milliseconds_until(time)
                }
                Next::Now | Next::Notified => {
                    waiting = None;
                    -1
                }
            };
            let count = match epoll.wait(timeout, &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(Broken::Events(error)),
            };
            for event in events.iter().take(count) {
                if event.data() == STOP {
                    return Ok(());
                }
                // Non-blocking or not, the event is readable and nobody else reads it.
                let _ = self.active.notify.read();
            }
        }
    }

    fn watch(&self, stop: &EventFd) -> io::Result<Epoll> {
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, self.active.notify.as_raw_fd(), EpollEvent::new(EventSet::IN, NOTIFY))?;
        epoll.ctl(ControlOperation::Add, stop.as_raw_fd(), EpollEvent::new(EventSet::IN, STOP))?;
        Ok(epoll)
    }

    /// Completes what can be completed now. [`Next::Now`] only if it was told to stop.
    fn drain(&mut self) -> Result<Next, QueueError> {
        let stop = self.requests.stop_flag();
        loop {
            let batch = self.requests.process(&self.memory, &mut self.active.queue)?;
            if batch.notify {
                self.interrupt.used_buffer();
            }
            if batch.next != Next::Now || stop.load(Ordering::Relaxed) {
                return Ok(batch.next);
            }
        }
    }
}
