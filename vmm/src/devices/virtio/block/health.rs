//! What becomes of a machine's disks on a host whose own fails: seen by their threads, acted on by the state driver.
//!
//! ```text
//!   block threads ──no room: wait_for_room()──▶ Health ──event──▶ driver: stops the vCPUs, tells the agent
//!        │                                        ▲                 │
//!        └──it worked, or the thread ends: drop───┘                 └──nobody waits any more: vCPUs run
//! ```

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandpiper_protocol::vmm::DiskFailure;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::disk::DiskError;

/// Between two reports of failures: a guest can cause as many as it likes.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// One machine's. Clones are the same.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    event: EventFd,
}

#[derive(Default)]
struct State {
    /// Threads that wait for room, and what the last of them to begin could not do.
    waiting: u32,
    no_room: Option<DiskFailure>,
    failures: u64,
    /// Not reported yet.
    failure: Option<DiskFailure>,
    reported_at: Option<Instant>,
}

impl Health {
    /// The health of a disk without trouble.
    ///
    /// # Errors
    /// The host has no descriptor for its event.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Inner { state: Mutex::default(), event: EventFd::new(EFD_NONBLOCK)? })))
    }

    /// Readable when [`Self::waiting`] or [`Self::take_failure`] may have something new.
    pub fn event(&self) -> &EventFd {
        &self.0.event
    }

    /// The host has no room for a request, which waits until what this returns is dropped.
    pub fn wait_for_room(&self, failure: DiskFailure) -> Waiting {
        let mut state = self.lock();
        state.waiting += 1;
        state.no_room = Some(failure);
        self.raise();
        Waiting(self.clone())
    }

    /// A request failed for good.
    pub fn failed(&self, failure: DiskFailure) {
        let mut state = self.lock();
        state.failures += 1;
        if state.reported_at.is_none_or(|reported| reported.elapsed() >= REPORT_INTERVAL) {
            state.reported_at = Some(Instant::now());
            state.failure = Some(failure);
            self.raise();
        }
    }

    /// What a request waits with, if one does.
    pub fn waiting(&self) -> Option<DiskFailure> {
        self.lock().no_room.clone()
    }

    /// A failure that was not reported yet, and how many there were.
    pub fn take_failure(&self) -> Option<(DiskFailure, u64)> {
        let mut state = self.lock();
        state.failure.take().map(|failure| (failure, state.failures))
    }

    fn raise(&self) {
        // Fails only when the counter is full, and then the event is raised already.
        let _ = self.0.event.write(1);
    }

    /// What is under the lock is whole even if a holder panicked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request waits for room on the host.
pub struct Waiting(Health);

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting -= 1;
        if state.waiting == 0 {
            state.no_room = None;
            self.0.raise();
        }
    }
}

/// What to tell of `error` on disk `disk`; `None` if the host is not at fault.
pub(super) fn failure(disk: u32, error: &DiskError) -> Option<DiskFailure> {
    let DiskError::Io { operation, layer, offset, source } = error else { return None };
    Some(DiskFailure {
        disk,
        layer: u32::try_from(*layer).unwrap_or(u32::MAX),
        operation: (*operation).to_owned(),
        offset: *offset,
        // Files that end too soon have no number of their own.
        errno: source.raw_os_error().unwrap_or(libc::EIO),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(errno: i32) -> DiskFailure {
        DiskFailure { disk: 0, layer: 1, operation: "write".into(), offset: Some(4096), errno }
    }

    #[test]
    fn room_is_told_of_when_the_last_waits_no_more() {
        let health = Health::new().unwrap();
        let (first, second) = (health.wait_for_room(example(1)), health.wait_for_room(example(2)));
        assert_eq!(health.waiting(), Some(example(2)));
        assert!(health.event().read().is_ok());
        drop(first);
        assert!(health.event().read().is_err() && health.waiting().is_some());
        drop(second);
        assert!(health.event().read().is_ok() && health.waiting().is_none());
    }

    #[test]
    fn of_many_failures_one_is_told_and_all_are_counted() {
        let health = Health::new().unwrap();
        for errno in 1..=1000 {
            health.failed(example(errno));
        }
        assert_eq!(health.event().read().unwrap(), 1);
        assert_eq!(health.take_failure(), Some((example(1), 1000)));
        assert_eq!(health.take_failure(), None);
    }
}
