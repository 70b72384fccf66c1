//! The thread of a device, which can be stopped and started again without losing what it works with.
//!
//! ```text
//!   start ──▶ running ──park──▶ parked ──unpark──▶ running ──stop──▶ (the service is given back)
//!                                   ▲
//!                     parked ───────┘
//! ```

use std::io;
use std::sync::mpsc;

use virtio_queue::QueueState;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ActivateError;
use super::event_loop::{EventLoop, Service};
use crate::jail;

/// The thread of a device that has one from its activation to its reset.
pub(super) struct Threaded<S: Service>(Option<Worker<S>>);

impl<S: Service> Default for Threaded<S> {
    /// Of a device that is not active.
    fn default() -> Self {
        Self(None)
    }
}

impl<S: Service> Threaded<S> {
    /// Starts the thread on what `service` makes, after the one before has ended.
    pub(super) fn activate(&mut self, service: impl FnOnce() -> io::Result<S>) -> Result<(), ActivateError> {
        self.reset();
        let service = service().map_err(ActivateError::Events)?;
        self.0 = Some(Worker::start(service).map_err(|(error, _)| error)?);
        Ok(())
    }

    /// Stops the thread and returns what it works with. `None` if the device is not active, or its thread has panicked.
    pub(super) fn park(&mut self) -> Option<&mut S> {
        self.0.as_mut()?.park()
    }

    /// As [`Self::park`], and returns the queues as they stand.
    pub(super) fn suspend(&mut self) -> Vec<QueueState> {
        self.park().map(|service| service.queue_states()).unwrap_or_default()
    }

    /// Starts the thread again, if the device is active.
    pub(super) fn resume(&mut self) -> Result<(), ActivateError> {
        self.0.as_mut().map_or(Ok(()), Worker::unpark)
    }

    /// Ends the thread and drops what it works with.
    pub(super) fn reset(&mut self) {
        self.0 = None;
    }
}

/// A device's service and, at times, the thread that runs it. Stopped when dropped.
pub(super) struct Worker<S: Service> {
    stop: EventFd,
    state: State<S>,
}

/// Gives its loop back when it ends; `None` if it never got it.
type Thread<S> = jail::Task<Option<EventLoop<S>>>;

enum State<S> {
    Running(Thread<S>),
    Parked(EventLoop<S>),
    /// The thread panicked and took its service with it. Not reached unless a device has a bug.
    Lost,
}

impl<S: Service> Worker<S> {
    /// Starts a thread that runs `service`, which comes back if that fails.
    pub(super) fn start(service: S) -> Result<Self, (ActivateError, S)> {
        let stop = match EventFd::new(EFD_NONBLOCK) {
            Ok(stop) => stop,
            Err(error) => return Err((ActivateError::Events(error), service)),
        };
        match launch(EventLoop::new(service), &stop) {
            Ok(thread) => Ok(Self { stop, state: State::Running(thread) }),
            Err((error, event_loop)) => Err((error, event_loop.into_service())),
        }
    }

    /// Holds on to `service`, without a thread. It comes back if that fails.
    pub(super) fn parked(service: S) -> Result<Self, (ActivateError, S)> {
        match EventFd::new(EFD_NONBLOCK) {
            Ok(stop) => Ok(Self { stop, state: State::Parked(EventLoop::new(service)) }),
            Err(error) => Err((ActivateError::Events(error), service)),
        }
    }

    /// Waits for the thread to end, and holds on to its service. `None` if it panicked.
    pub(super) fn park(&mut self) -> Option<&mut S> {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Running(thread) => {
                // The counter of an event cannot overflow from one write.
                let _ = self.stop.write(1);
                let event_loop = thread.join().flatten();
                let _ = self.stop.read();
                event_loop.map_or(State::Lost, State::Parked)
            }
            state => state,
        };
        match &mut self.state {
            State::Parked(event_loop) => Some(event_loop.service_mut()),
            State::Running(_) | State::Lost => None,
        }
    }

    /// Runs a parked service again; without effect on one that runs.
    pub(super) fn unpark(&mut self) -> Result<(), ActivateError> {
        let (state, result) = match std::mem::replace(&mut self.state, State::Lost) {
            State::Parked(event_loop) => match launch(event_loop, &self.stop) {
                Ok(thread) => (State::Running(thread), Ok(())),
                Err((error, event_loop)) => (State::Parked(event_loop), Err(error)),
            },
            State::Lost => {
                let lost = io::Error::other("the device's thread panicked");
                (State::Lost, Err(ActivateError::Thread(lost)))
            }
            running @ State::Running(_) => (running, Ok(())),
        };
        self.state = state;
        result
    }

    /// Ends the thread and gives its service back. `None` if it panicked.
    pub(super) fn stop(mut self) -> Option<S> {
        self.park();
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Parked(event_loop) => Some(event_loop.into_service()),
            State::Running(_) | State::Lost => None,
        }
    }
}

impl<S: Service> Drop for Worker<S> {
    fn drop(&mut self) {
        if let State::Running(thread) = std::mem::replace(&mut self.state, State::Lost) {
            let _ = self.stop.write(1);
            // A panic has been reported by the panic hook; there is nothing left to save.
            let _ = thread.join();
        }
    }
}

/// Starts a thread that runs `event_loop` until `stop`. It comes back if that fails.
fn launch<S: Service>(event_loop: EventLoop<S>, stop: &EventFd) -> Result<Thread<S>, (ActivateError, EventLoop<S>)> {
    let stop = match stop.try_clone() {
        Ok(stop) => stop,
        Err(error) => return Err((ActivateError::Events(error), event_loop)),
    };
    // What a closure owns is gone if its thread cannot be started, so the loop follows once there is one.
    let (hand_over, receive) = mpsc::sync_channel::<EventLoop<S>>(1);
    let spawned = jail::assign(S::ROLE, move || {
        let mut event_loop = receive.recv().ok()?;
        event_loop.run(&stop);
        Some(event_loop)
    });
    match spawned {
        Ok(thread) => match hand_over.send(event_loop) {
            Ok(()) => Ok(thread),
            Err(mpsc::SendError(event_loop)) => {
                Err((ActivateError::Thread(io::Error::other("the thread ended at once")), event_loop))
            }
        },
        Err(error) => Err((ActivateError::Thread(error), event_loop)),
    }
}
