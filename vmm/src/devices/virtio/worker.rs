//! The thread of a device, which can be stopped and set going again without losing what it works with.
//!
//! ```text
//!   start ──▶ running ──park──▶ parked ──unpark──▶ running ──stop──▶ (the work is given back)
//! ```

use std::io;
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandpiper_protocol::error_chain;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ActivateError;
use crate::jail::{self, Role};

/// What a device's thread does.
pub(super) trait Work: Send + 'static {
    const ROLE: Role;

    /// Serves the queues until `stop` becomes readable, which must be watched and must not be read, or until a queue
    /// cannot be served any more. Called again after the thread was parked: whatever happened meanwhile is to be found by
    /// looking, for its notification may be lost.
    fn run(&mut self, stop: &EventFd);
}

/// Says on standard error, at most once a second, why a device stopped: a guest can have its devices stop as often as it
/// likes.
pub(super) fn log_failure(device: &str, error: &dyn std::error::Error) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(1)) {
        *last = Some(Instant::now());
        eprintln!("sandpiper-vmm: a {device} device stopped: {}", error_chain::chain(error));
    }
}

/// A device's work and, at times, its thread. Stopped when dropped.
pub(super) struct Worker<W> {
    stop: EventFd,
    state: State<W>,
}

enum State<W> {
    Running(JoinHandle<Option<W>>),
    Parked(W),
    /// The thread panicked and took its work with it. Not reached unless a device has a bug.
    Lost,
}

impl<W: Work> Worker<W> {
    /// Sets `work` going. It comes back if that fails.
    pub(super) fn start(work: W) -> Result<Self, (ActivateError, W)> {
        let stop = match EventFd::new(EFD_NONBLOCK) {
            Ok(stop) => stop,
            Err(error) => return Err((ActivateError::Events(error), work)),
        };
        match launch(work, &stop) {
            Ok(thread) => Ok(Self { stop, state: State::Running(thread) }),
            Err(refused) => Err(refused),
        }
    }

    /// Waits for the thread to end, and holds on to its work. `None` if it panicked.
    pub(super) fn park(&mut self) -> Option<&mut W> {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Running(thread) => {
                // The counter of an event cannot overflow from one write.
                let _ = self.stop.write(1);
                let work = thread.join().ok().flatten();
                let _ = self.stop.read();
                work.map_or(State::Lost, State::Parked)
            }
            state => state,
        };
        match &mut self.state {
            State::Parked(work) => Some(work),
            State::Running(_) | State::Lost => None,
        }
    }

    /// Sets parked work going again; without effect on one that runs.
    pub(super) fn unpark(&mut self) -> Result<(), ActivateError> {
        let (state, result) = match std::mem::replace(&mut self.state, State::Lost) {
            State::Parked(work) => match launch(work, &self.stop) {
                Ok(thread) => (State::Running(thread), Ok(())),
                Err((error, work)) => (State::Parked(work), Err(error)),
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

    /// Ends the thread and gives its work back. `None` if it panicked.
    pub(super) fn stop(mut self) -> Option<W> {
        self.park();
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Parked(work) => Some(work),
            State::Running(_) | State::Lost => None,
        }
    }
}

impl<W> Drop for Worker<W> {
    fn drop(&mut self) {
        if let State::Running(thread) = std::mem::replace(&mut self.state, State::Lost) {
            let _ = self.stop.write(1);
            // A panic has been reported by the panic hook; there is nothing left to save.
            let _ = thread.join();
        }
    }
}

fn launch<W: Work>(work: W, stop: &EventFd) -> Result<JoinHandle<Option<W>>, (ActivateError, W)> {
    let stop = match stop.try_clone() {
        Ok(stop) => stop,
        Err(error) => return Err((ActivateError::Events(error), work)),
    };
    // What a closure owns is gone if its thread cannot be started, so the work follows once there is one.
    let (hand_over, receive) = mpsc::sync_channel::<W>(1);
    let spawned = jail::spawn(W::ROLE, move || {
        let mut work = receive.recv().ok()?;
        work.run(&stop);
        Some(work)
    });
    match spawned {
        Ok(thread) => match hand_over.send(work) {
            Ok(()) => Ok(thread),
            Err(mpsc::SendError(work)) => {
                Err((ActivateError::Thread(io::Error::other("the thread ended at once")), work))
            }
        },
        Err(error) => Err((ActivateError::Thread(error), work)),
    }
}
