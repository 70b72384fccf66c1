//! The debug console: a 16550A at COM1 whose output goes to a file.
//!
//! Output is written by the line, and earlier when the driver has nothing more to send for now, which it shows by writing
//! the interrupt enable register: a call per byte would cost more than all the rest of the port.
//!
//! Input there is none. The transmitter is always empty, and its interrupt is raised as a real one would: a process that
//! writes to `/dev/console` is fed by that interrupt and would hang without it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

use super::bus::BusDevice;

/// Most that a console writes to its file: a guest must not fill the host's disk.
pub const OUTPUT_LIMIT: u64 = 1 << 20;
/// Bytes that are kept back at most.
const BUFFER_LIMIT: usize = 256;
/// Longest line that is searched for a panic's message; the rest of a longer one is not looked at.
const LINE_LIMIT: usize = 256;

/// Offset of the register that a driver writes when it begins or stops sending.
const INTERRUPT_ENABLE: u8 = 1;

const LIMIT_NOTE: &[u8] = b"\n[sandpiper: the console's limit of 1 MiB is reached, later output is not kept]\n";

/// The serial port on the bus.
pub struct Console(Mutex<Serial<Irq, NoEvents, Output>>);

impl Console {
    /// COM1.
    pub const PORT: u16 = 0x3f8;
    pub const LENGTH: u16 = 8;
    /// COM1's line on the first interrupt controller.
    pub const GSI: u32 = 4;

    /// `irq` raises [`Self::GSI`]; output goes to `file` from its present position on.
    pub fn new(irq: EventFd, file: File) -> Self {
        Self(Mutex::new(Serial::new(Irq(irq), Output::new(file))))
    }

    /// A console that goes on from `state`; output goes to `file` from its present position on.
    ///
    /// # Errors
    /// Its interrupt is pending and cannot be raised.
    pub fn restore(irq: EventFd, file: File, state: &ConsoleState) -> io::Result<Self> {
        let [low, high, enable, identification, line_control, line_status, modem_control, modem_status, scratch] =
            state.registers;
        let registers = SerialState {
            baud_divisor_low: low,
            baud_divisor_high: high,
            interrupt_enable: enable,
            interrupt_identification: identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer: Vec::new(),
        };
        let serial = Serial::from_state(&registers, Irq(irq), NoEvents, Output::new(file));
        Ok(Self(Mutex::new(serial.map_err(|error| io::Error::other(error.to_string()))?)))
    }

    pub fn state(&self) -> ConsoleState {
        let now = self.lock().state();
        let registers = [
            now.baud_divisor_low,
            now.baud_divisor_high,
            now.interrupt_enable,
            now.interrupt_identification,
            now.line_control,
            now.line_status,
            now.modem_control,
            now.modem_status,
            now.scratch,
        ];
        ConsoleState { registers }
    }

    /// The last panic message of a kernel that was printed here, for whoever reports it.
    pub fn panic_line(&self) -> PanicLine {
        self.lock().writer().panic_line.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Serial<Irq, NoEvents, Output>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registers of the port. There is no input that could wait in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleState {
    registers: [u8; 9],
}

impl BusDevice for Console {
    fn read(&self, offset: u64, data: &mut [u8]) {
        // All registers are one byte wide.
        if let ([first], Ok(offset)) = (data, u8::try_from(offset)) {
            *first = self.lock().read(offset);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        if let ([value], Ok(offset)) = (data, u8::try_from(offset)) {
            // An interrupt that cannot be raised is pending already; output that cannot be written is lost (see `Output`).
            let mut serial = self.lock();
            let _ = serial.write(offset, *value);
            if offset == INTERRUPT_ENABLE {
                serial.writer_mut().write_pending();
            }
        }
    }
}

struct Irq(EventFd);

impl Trigger for Irq {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// A kernel's last words, shared with the device that reports them.
#[derive(Clone, Default)]
pub struct PanicLine(Arc<Mutex<Option<String>>>);

impl PanicLine {
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, line: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }
}

/// Where the port's bytes go.
struct Output {
    /// `None` once writing failed or the limit was reached: the guest goes on without a console.
    file: Option<File>,
    /// Not written to the file yet.
    pending: Vec<u8>,
    written: u64,
    line: Vec<u8>,
    panic_line: PanicLine,
}

impl Output {
    fn new(file: File) -> Self {
        Self { file: Some(file), pending: Vec::new(), written: 0, line: Vec::new(), panic_line: PanicLine::default() }
    }

    fn watch(&mut self, byte: u8) {
        if byte != b'\n' {
            if self.line.len() < LINE_LIMIT && byte != b'\r' {
                self.line.push(byte);
            }
            return;
        }
        let text = String::from_utf8_lossy(&self.line);
        if let Some(at) = text.find("Kernel panic") {
            let printable = text[at..].chars().filter(|character| !character.is_control()).collect();
            self.panic_line.set(printable);
        }
        self.line.clear();
    }
}

impl Output {
    /// Writes what was kept back.
    fn write_pending(&mut self) {
        let Some(file) = &mut self.file else { return };
        let length = u64::try_from(self.pending.len()).unwrap_or(u64::MAX);
        let room = OUTPUT_LIMIT - self.written;
        let done = if length > room {
            let fitting = usize::try_from(room).unwrap_or(0);
            // This is the last that is written; whether it works or not changes nothing.
            let _ = file.write_all(&self.pending[..fitting]).and_then(|()| file.write_all(LIMIT_NOTE));
            true
        } else {
            self.written += length;
            file.write_all(&self.pending).is_err()
        };
        self.pending.clear();
        if done {
            self.file = None;
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.watch(byte);
            if self.file.is_some() {
                self.pending.push(byte);
                if byte == b'\n' || self.pending.len() >= BUFFER_LIMIT {
                    self.write_pending();
                }
            }
        }
        Ok(bytes.len())
    }

    /// Called for every byte, and so does nothing: see the module's documentation for when output is written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.write_pending();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    fn console() -> (Console, File, EventFd) {
        let file = tempfile::tempfile().unwrap();
        let irq = EventFd::new(EFD_NONBLOCK).unwrap();
        (Console::new(irq.try_clone().unwrap(), file.try_clone().unwrap()), file, irq)
    }

    fn text(mut file: File) -> String {
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn what_the_guest_writes_is_in_the_file_and_its_interrupt_is_raised() {
        let (console, file, irq) = console();
        console.write(1, &[2]);
        assert_eq!(irq.read().unwrap(), 1, "enabling the transmitter's interrupt raises it");
        let mut identification = [0];
        console.read(2, &mut identification);
        assert_eq!(identification[0] & 0xf, 2);

        for byte in *b"hello" {
            console.write(0, &[byte]);
        }

        console.write(1, &[0]);
        assert_eq!(text(file), "hello");
        assert!(irq.read().unwrap() > 0);
    }

    #[test]
    fn a_line_is_written_at_once_and_the_rest_at_the_end() {
        let (console, file, _irq) = console();
        for byte in *b"line\nrest" {
            console.write(0, &[byte]);
        }
        assert_eq!(text(file.try_clone().unwrap()), "line\n");
        drop(console);
        assert_eq!(text(file), "line\nrest");
    }

    #[test]
    fn a_restored_port_has_the_registers_that_it_had() {
        let (console, _file, _irq) = console();
        console.write(7, &[0x5a]);
        console.write(4, &[0xb]);

        let irq = EventFd::new(EFD_NONBLOCK).unwrap();
        let restored = Console::restore(irq, tempfile::tempfile().unwrap(), &console.state()).unwrap();

        assert_eq!(restored.state(), console.state());
        let mut scratch = [0];
        restored.read(7, &mut scratch);
        assert_eq!(scratch, [0x5a]);
    }

    #[test]
    fn output_is_limited_and_says_so() {
        let (console, file, _irq) = console();
        for _ in 0..OUTPUT_LIMIT + 300 {
            console.write(0, b"x");
        }
        drop(console);
        let text = text(file);
        assert!(text.ends_with("later output is not kept]\n"));
        assert_eq!(text.len() as u64, OUTPUT_LIMIT + LIMIT_NOTE.len() as u64);
    }

    #[test]
    fn a_panic_message_is_remembered_without_control_characters() {
        let (console, _file, _irq) = console();
        for byte in b"[ 1.0] Kernel panic - not syncing: \x1b[1mno init\r\nRebooting\r\n" {
            console.write(0, &[*byte]);
        }
        assert_eq!(console.panic_line().get().unwrap(), "Kernel panic - not syncing: [1mno init");
    }

    #[test]
    fn wide_and_distant_accesses_are_absent() {
        let (console, file, _irq) = console();
        let mut data = [0xff; 4];
        console.read(0, &mut data);
        assert_eq!(data, [0xff; 4]);
        console.write(0, &[1, 2]);
        console.write(0x1000, &[1]);
        drop(console);
        assert_eq!(text(file), "");
    }
}
