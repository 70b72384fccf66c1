//! What the thread of a running block device does.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use virtio_queue::QueueState;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::BlockQueue;
use crate::devices::virtio::worker::Work;
use crate::devices::virtio::{ActiveQueue, Interrupt, Memory};
use crate::jail::Role;

/// What wakes the thread.
const NOTIFY: u64 = 0;
const STOP: u64 = 1;

/// All that the thread works with.
pub(super) struct Service {
    pub(super) requests: BlockQueue,
    pub(super) memory: Memory,
    pub(super) active: ActiveQueue,
    pub(super) interrupt: Interrupt,
}

impl Work for Service {
    const ROLE: Role = Role::Block;

    /// Serves the queue until it is told to stop; requests in the queue are left there then.
    fn run(&mut self, stop: &EventFd) {
        if self.serve(stop).is_err() {
            // Without events there is no way to be told of anything.
            self.interrupt.needs_reset();
        }
    }
}

impl Service {
    pub(super) fn queue_state(&self) -> QueueState {
        self.active.queue.state()
    }

    fn serve(&mut self, stop: &EventFd) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, self.active.notify.as_raw_fd(), EpollEvent::new(EventSet::IN, NOTIFY))?;
        epoll.ctl(ControlOperation::Add, stop.as_raw_fd(), EpollEvent::new(EventSet::IN, STOP))?;
        // What the driver made available before the thread existed may have been notified to nobody.
        let mut trusted = self.drain();
        let mut events = [EpollEvent::default(); 2];
        loop {
            let count = match epoll.wait(-1, &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for event in events.iter().take(count) {
                if event.data() == STOP {
                    return Ok(());
                }
                // Non-blocking or not, the event is readable and nobody else reads it.
                let _ = self.active.notify.read();
                if trusted {
                    trusted = self.drain();
                }
            }
        }
    }

    /// Completes everything available; false once the queue cannot be trusted any more.
    fn drain(&mut self) -> bool {
        let stop = self.requests.stop_flag();
        while !stop.load(Ordering::Relaxed) {
            match self.requests.process(&self.memory, &mut self.active.queue) {
                Ok(batch) => {
                    if batch.notify {
                        self.interrupt.used_buffer();
                    }
                    if !batch.more {
                        break;
                    }
                }
                Err(_) => {
                    self.interrupt.needs_reset();
                    return false;
                }
            }
        }
        true
    }
}
