//! The thread that serves a running block device.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::BlockQueue;
use crate::devices::virtio::{ActivateError, ActiveQueue, Interrupt, Memory};
use crate::disk::Disk;

/// What wakes the thread.
const NOTIFY: u64 = 0;
const STOP: u64 = 1;

/// A running thread. It owns the disk until [`Worker::stop`].
pub(super) struct Worker {
    thread: JoinHandle<Option<Disk>>,
    stop_event: EventFd,
    stop_flag: Arc<AtomicBool>,
}

/// All that the thread works with.
struct Service {
    requests: BlockQueue,
    memory: Memory,
    active: ActiveQueue,
    interrupt: Interrupt,
    epoll: Epoll,
    /// Open for as long as it is watched.
    _stop_event: EventFd,
}

impl Worker {
    /// Starts the thread; gives the requests' side back if that fails.
    pub(super) fn start(
        requests: BlockQueue,
        memory: Memory,
        active: ActiveQueue,
        interrupt: Interrupt,
    ) -> Result<Self, (ActivateError, BlockQueue)> {
        let (epoll, stop_event, watched) = match watch(&active.notify) {
            Ok(events) => events,
            Err(error) => return Err((ActivateError::Events(error), requests)),
        };
        // The thread gets its work once it exists: what a closure owns is gone if the thread cannot be started.
        let (hand_over, work) = mpsc::sync_channel::<Service>(1);
        let spawned = thread::Builder::new().name("block".into()).spawn(move || work.recv().ok().map(serve));
        let thread = match spawned {
            Ok(thread) => thread,
            Err(error) => return Err((ActivateError::Thread(error), requests)),
        };
        let stop_flag = requests.stop_flag();
        let service = Service { requests, memory, active, interrupt, epoll, _stop_event: watched };
        match hand_over.send(service) {
            Ok(()) => Ok(Self { thread, stop_event, stop_flag }),
            Err(mpsc::SendError(service)) => {
                Err((ActivateError::Thread(io::Error::other("the thread ended at once")), service.requests))
            }
        }
    }

    /// Waits for the request at hand, ends the thread and returns the disk; `None` if the thread panicked.
    pub(super) fn stop(self) -> Option<Disk> {
        self.stop_flag.store(true, Ordering::Relaxed);
        // Fails only if the counter is full, and then the thread is being woken anyway.
        let _ = self.stop_event.write(1);
        self.thread.join().ok().flatten()
    }
}

/// An epoll of the queue's notification and of a new event to stop by, which comes twice: to raise and to watch.
fn watch(notify: &EventFd) -> io::Result<(Epoll, EventFd, EventFd)> {
    let stop = EventFd::new(EFD_NONBLOCK)?;
    let watched = stop.try_clone()?;
    let epoll = Epoll::new()?;
    epoll.ctl(ControlOperation::Add, notify.as_raw_fd(), EpollEvent::new(EventSet::IN, NOTIFY))?;
    epoll.ctl(ControlOperation::Add, watched.as_raw_fd(), EpollEvent::new(EventSet::IN, STOP))?;
    Ok((epoll, stop, watched))
}

/// The thread's life: serves the queue until it is told to stop.
fn serve(mut service: Service) -> Disk {
    // What the driver made available before the thread existed may have been notified to nobody.
    let mut trusted = service.drain();
    let mut events = [EpollEvent::default(); 2];
    'waiting: loop {
        let count = match service.epoll.wait(-1, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Not with a valid epoll. Without it there is no way to be told of anything again.
            Err(_) => {
                service.interrupt.needs_reset();
                break;
            }
        };
        for event in events.iter().take(count) {
            match event.data() {
                STOP => break 'waiting,
                _ => {
                    // Non-blocking or not, the event is readable and nobody else reads it.
                    let _ = service.active.notify.read();
                    if trusted {
                        trusted = service.drain();
                    }
                }
            }
        }
    }
    service.requests.into_disk()
}

impl Service {
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
