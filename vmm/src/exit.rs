//! How a machine ends: the first to report an end decides what the exit record says.
//!
//! Many can see an end: a vCPU whose guest powers off, a device, the agent's `Stop`. A panicking guest resets itself
//! microseconds after it has told us of the panic, possibly on another vCPU. So it is a latch that is set once,
//! with an event that wakes the state driver; vCPUs look at the latch before they enter the guest again.

use std::io;
use std::sync::{Arc, OnceLock};

use sandpiper_protocol::vmm::{ExitReason, ExitRecord};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The exit record of one machine, set once. Clones share it.
#[derive(Clone)]
pub struct ExitLatch(Arc<Inner>);

struct Inner {
    record: OnceLock<ExitRecord>,
    event: EventFd,
}

impl ExitLatch {
    /// The latch of a machine whose end nobody has reported.
    ///
    /// # Errors
    /// The host has no descriptor for its event.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Inner { record: OnceLock::new(), event: EventFd::new(EFD_NONBLOCK)? })))
    }

    /// Ends the machine, unless something ended it before.
    pub fn report(&self, reason: ExitReason, message: impl Into<String>) {
        if self.0.record.set(ExitRecord { reason, message: message.into() }).is_ok() {
            // Fails only when the counter is full, and then the event is raised already.
            let _ = self.0.event.write(1);
        }
    }

    pub fn record(&self) -> Option<&ExitRecord> {
        self.0.record.get()
    }

    pub fn is_reported(&self) -> bool {
        self.record().is_some()
    }

    /// Becomes readable when an end was reported, and stays so.
    pub fn event(&self) -> &EventFd {
        &self.0.event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_stays() {
        let exit = ExitLatch::new().unwrap();
        assert!(!exit.is_reported());
        exit.report(ExitReason::GuestPanicked, "panic");
        exit.clone().report(ExitReason::GuestReset, "reset");
        assert_eq!(exit.record().unwrap().reason, ExitReason::GuestPanicked);
        assert_eq!(exit.event().read().unwrap(), 1);
    }
}
