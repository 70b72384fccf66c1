//! The ways a guest ends itself: ACPI's sleep and reset registers, and the keyboard controller's reset line.
//!
//! With hardware-reduced ACPI (see [`acpi`](crate::machine::acpi)) power-off is a write to the sleep control register with
//! the enable bit and the type that `_S5` names; reset is a write of the reset value to the reset register. Linux is told
//! to reboot through the keyboard controller (`reboot=k`), because that is one port write without the ACPI interpreter;
//! the ACPI register is there for everything else.

use sandpiper_protocol::vmm::ExitReason;

use super::bus::BusDevice;
use crate::exit::ExitLatch;

/// ACPI registers in port space: sleep control, sleep status, reset; one byte each.
pub struct AcpiPower {
    exit: ExitLatch,
}

impl AcpiPower {
    /// First port; the registers follow in the order of their offsets.
    pub const BASE: u16 = 0x600;
    pub const LENGTH: u16 = 3;
    pub const SLEEP_CONTROL: u16 = 0;
    pub const SLEEP_STATUS: u16 = 1;
    pub const RESET: u16 = 2;

    /// What a guest writes to the reset register.
    pub const RESET_VALUE: u8 = 1;
    /// Sleep type of the state "soft off", as `_S5` says.
    pub const SLEEP_TYPE_S5: u8 = 5;

    /// ACPI 6.5 section 4.8.3.7: bits of the sleep control register.
    const SLEEP_ENABLE: u8 = 1 << 5;
    const SLEEP_TYPE_SHIFT: u8 = 2;

    pub fn new(exit: ExitLatch) -> Self {
        Self { exit }
    }
}

impl BusDevice for AcpiPower {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        // Nothing pending, nothing woken.
        data.fill(0);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let Some(&value) = data.first() else { return };
        if offset == u64::from(Self::SLEEP_CONTROL)
            && value == Self::SLEEP_ENABLE | (Self::SLEEP_TYPE_S5 << Self::SLEEP_TYPE_SHIFT)
        {
            self.exit.report(ExitReason::GuestPoweredOff, "The guest powered itself off");
        } else if offset == u64::from(Self::RESET) && value == Self::RESET_VALUE {
            self.exit.report(ExitReason::GuestReset, "The guest reset itself through ACPI");
        }
    }
}

/// The keyboard controller's command port, as far as a reset needs it: nothing to read, always ready.
pub struct KeyboardController {
    exit: ExitLatch,
}

impl KeyboardController {
    /// Status when read, command when written.
    pub const PORT: u16 = 0x64;
    /// "Pulse output line 0", which is the CPU's reset line.
    pub const RESET_CPU: u8 = 0xfe;

    pub fn new(exit: ExitLatch) -> Self {
        Self { exit }
    }
}

impl BusDevice for KeyboardController {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        // Input buffer empty: a guest that waits for it before its command does not wait (Linux: up to 130 ms).
        data.fill(0);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        if data.first() == Some(&Self::RESET_CPU) {
            self.exit.report(ExitReason::GuestReset, "The guest reset itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_after(write: impl FnOnce(&AcpiPower)) -> Option<ExitReason> {
        let exit = ExitLatch::new().unwrap();
        write(&AcpiPower::new(exit.clone()));
        exit.record().map(|record| record.reason)
    }

    #[test]
    fn only_s5_with_the_enable_bit_powers_off() {
        assert_eq!(reason_after(|power| power.write(0, &[0x34])), Some(ExitReason::GuestPoweredOff));
        assert_eq!(reason_after(|power| power.write(0, &[0x14])), None);
        assert_eq!(reason_after(|power| power.write(0, &[0x24])), None);
        assert_eq!(reason_after(|power| power.write(1, &[0x34])), None);
        assert_eq!(reason_after(|power| power.write(0, &[])), None);
    }

    #[test]
    fn the_reset_register_takes_its_value_only() {
        assert_eq!(reason_after(|power| power.write(2, &[1])), Some(ExitReason::GuestReset));
        assert_eq!(reason_after(|power| power.write(2, &[0])), None);
    }

    #[test]
    fn the_keyboard_controller_is_ready_and_resets() {
        let exit = ExitLatch::new().unwrap();
        let controller = KeyboardController::new(exit.clone());
        let mut status = [0xff];
        controller.read(0, &mut status);
        assert_eq!(status, [0]);
        controller.write(0, &[0x60]);
        assert!(!exit.is_reported());
        controller.write(0, &[0xfe]);
        assert_eq!(exit.record().unwrap().reason, ExitReason::GuestReset);
    }
}
