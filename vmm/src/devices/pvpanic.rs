//! pvpanic: how a guest's kernel says that it panicked (QEMU's `docs/specs/pvpanic`), one port, found through ACPI as
//! `QEMU0001`.

use sandpiper_protocol::vmm::ExitReason;

use super::bus::BusDevice;
use super::serial::PanicLine;
use crate::exit::ExitLatch;

pub struct PvPanic {
    exit: ExitLatch,
    /// The kernel's own words, if there is a console to have seen them on.
    panic_line: Option<PanicLine>,
}

impl PvPanic {
    pub const PORT: u16 = 0x505;
    /// The one event on offer; reading the port says so.
    pub const PANICKED: u8 = 1;

    pub fn new(exit: ExitLatch, panic_line: Option<PanicLine>) -> Self {
        Self { exit, panic_line }
    }
}

impl BusDevice for PvPanic {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(first) = data.first_mut() {
            *first = Self::PANICKED;
        }
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        if data.first().is_none_or(|events| events & Self::PANICKED == 0) {
            return;
        }
        let message = match self.panic_line.as_ref().and_then(PanicLine::get) {
            Some(line) => format!("The guest's kernel panicked: {line}"),
            None => "The guest's kernel panicked".to_owned(),
        };
        self.exit.report(ExitReason::GuestPanicked, message);
    }
}
