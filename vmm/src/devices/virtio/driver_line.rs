//! A driver's side of an interrupt, for the tests of devices: what is raised can be waited for.

use std::os::fd::{AsRawFd, RawFd};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::Interrupt;

/// Far beyond what any device takes.
const TIMEOUT_MS: i32 = 30_000;

pub(super) struct DriverLine {
    interrupt: Interrupt,
    event: EventFd,
}

impl DriverLine {
    pub(super) fn new() -> Self {
        let event = EventFd::new(EFD_NONBLOCK).expect("an event");
        Self { interrupt: Interrupt::new(event.try_clone().expect("a descriptor")), event }
    }

    /// The device's side.
    pub(super) fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    pub(super) fn is_reset_needed(&self) -> bool {
        self.interrupt.is_reset_needed()
    }

    /// Waits until the interrupt is raised, and lowers it.
    pub(super) fn wait(&self) {
        let mut poll = libc::pollfd { fd: self.event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid `pollfd`.
        let ready = unsafe { libc::poll(&raw mut poll, 1, TIMEOUT_MS) };
        assert_eq!(ready, 1, "the device has nothing to say");
        self.lower();
    }

    /// Waits until the device asks for a reset.
    pub(super) fn wait_for_needs_reset(&self) {
        while !self.is_reset_needed() {
            self.wait();
        }
    }

    /// Whether it was raised.
    pub(super) fn lower(&self) -> bool {
        self.event.read().is_ok()
    }
}

/// Readable while the interrupt is raised.
impl AsRawFd for DriverLine {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}
