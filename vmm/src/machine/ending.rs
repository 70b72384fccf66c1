//! How a machine ends: the first to report an end decides what the exit record says.
//!
//! Many can see an end: a vCPU whose guest powers off, a device, the agent's `Stop`. A panicking guest resets itself
//! microseconds after it has told us of the panic, possibly on another vCPU. So an end is a slot that is filled once,
//! with an event that wakes the state driver; vCPUs look at the slot before they enter the guest again.

use std::io;
use std::sync::{Arc, OnceLock};

use sandpiper_protocol::vmm::{ExitReason, ExitRecord};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// One machine's end. Clones are the same slot.
#[derive(Clone)]
pub struct Ending(Arc<Inner>);

struct Inner {
    record: OnceLock<ExitRecord>,
    event: EventFd,
}

impl Ending {
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
        let ending = Ending::new().unwrap();
        assert!(!ending.is_reported());
        ending.report(ExitReason::GuestPanicked, "panic");
        ending.clone().report(ExitReason::GuestReset, "reset");
        assert_eq!(ending.record().unwrap().reason, ExitReason::GuestPanicked);
        assert_eq!(ending.event().read().unwrap(), 1);
    }
}
