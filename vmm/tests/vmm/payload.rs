//! Guests of a few instructions, as the only segment of an ELF file, entered in 64-bit mode at 1 MiB.
//!
//! Machine code by hand: a KVM that interprets guest kernel mode knows few instructions, and a dozen forms are enough.

const COM1: u16 = 0x3f8;
const ENTRY: u64 = 0x10_0000;

/// Code under construction; each method appends.
#[derive(Default, Clone)]
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn code(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// `out port, value`, one byte.
    pub(crate) fn out(self, port: u16, value: u8) -> Self {
        let [low, high] = port.to_le_bytes();
        // mov dx, port; mov al, value; out dx, al
        self.code(&[0x66, 0xba, low, high, 0xb0, value, 0xee])
    }

    /// Prints `text` on the serial port.
    pub(crate) fn print(self, text: &str) -> Self {
        text.bytes().fold(self, |payload, byte| payload.out(COM1, byte))
    }

    /// Prints one byte read from `port`.
    pub(crate) fn print_in(self, port: u16) -> Self {
        let [low, high] = port.to_le_bytes();
        // mov dx, port; in al, dx; mov dx, COM1; out dx, al
        self.code(&[0x66, 0xba, low, high, 0xec, 0x66, 0xba, 0xf8, 0x03, 0xee])
    }

    /// Maps the 2 MiB at `address` (the first of its GiB) to itself; the boot tables map the first GiB only.
    pub(crate) fn map(self, address: u64) -> Self {
        const PDPT: u32 = 0xa000;
        // A page that nothing uses.
        const DIRECTORY: u32 = 0xc000;
        let gib = u32::try_from(address >> 30).unwrap();
        let slot = u32::try_from(address >> 21 & 0x1ff).unwrap();
        let low = u32::try_from(address & 0xffff_ffff).unwrap();
        let high = u32::try_from(address >> 32).unwrap();
        self.store(PDPT + gib * 8, DIRECTORY | 0x3)
            .store(DIRECTORY + slot * 8, low | 0x83)
            .store(DIRECTORY + slot * 8 + 4, high)
    }

    /// `mov dword [address], value`, below 2 GiB.
    fn store(self, address: u32, value: u32) -> Self {
        self.code(&[0xc7, 0x04, 0x25]).code(&address.to_le_bytes()).code(&value.to_le_bytes())
    }

    /// `mov byte [address], value`, anywhere mapped.
    pub(crate) fn store_byte(self, address: u64, value: u8) -> Self {
        self.pointer(address).code(&[0xc6, 0x03, value])
    }

    /// `mov dword [address], value`, anywhere mapped.
    pub(crate) fn store_word(self, address: u64, value: u32) -> Self {
        self.pointer(address).code(&[0xc7, 0x03]).code(&value.to_le_bytes())
    }

    /// Prints the four bytes at `address`, read at once.
    pub(crate) fn print_word(self, address: u64) -> Self {
        // mov eax, [rbx]; mov dx, COM1; then four times: out dx, al; shr eax, 8
        let mut payload = self.pointer(address).code(&[0x8b, 0x03, 0x66, 0xba, 0xf8, 0x03]);
        for _ in 0..4 {
            payload = payload.code(&[0xee, 0xc1, 0xe8, 0x08]);
        }
        payload
    }

    /// `mov rbx, address`
    fn pointer(self, address: u64) -> Self {
        self.code(&[0x48, 0xbb]).code(&address.to_le_bytes())
    }

    /// Prints 1, 2, 3 and so on, one byte each, for ever; the count is in memory.
    pub(crate) fn count(self) -> Self {
        const COUNT: u32 = 0x20_0000;
        // inc dword [COUNT]; mov al, [COUNT]; mov dx, COM1; out dx, al
        let step = Self::new()
            .code(&[0xff, 0x04, 0x25])
            .code(&COUNT.to_le_bytes())
            .code(&[0x8a, 0x04, 0x25])
            .code(&COUNT.to_le_bytes())
            .code(&[0x66, 0xba, 0xf8, 0x03, 0xee]);
        self.again(step)
    }

    /// `inc word [address]`, below 2 GiB.
    pub(crate) fn increment(self, address: u32) -> Self {
        self.code(&[0x66, 0xff, 0x04, 0x25]).code(&address.to_le_bytes())
    }

    /// Waits until the 16-bit numbers at two addresses below 2 GiB are the same.
    pub(crate) fn wait_for_equal(self, one: u32, other: u32) -> Self {
        // mov ax, [one]; cmp ax, [other]; jne to the beginning
        let load = [&[0x66, 0x8b, 0x04, 0x25][..], &one.to_le_bytes()].concat();
        let compare = [&[0x66, 0x3b, 0x04, 0x25][..], &other.to_le_bytes()].concat();
        self.code(&load).code(&compare).code(&[0x75, 0xee])
    }

    /// `body` again and again.
    pub(crate) fn again(self, body: Self) -> Self {
        let back = -i32::try_from(body.0.len() + 5).unwrap();
        // jmp to the body's beginning
        self.code(&body.0).code(&[0xe9]).code(&back.to_le_bytes())
    }

    /// An exception that nobody handles, twice: a triple fault.
    pub(crate) fn triple_fault(self) -> Self {
        // ud2
        self.code(&[0x0f, 0x0b])
    }

    /// Powers off through ACPI's sleep control register.
    pub(crate) fn power_off(self) -> Self {
        self.out(0x600, 0x34)
    }

    /// Goes round for ever, with an exit to KVM in each round and none to the monitor. A bare jump would do on hardware;
    /// the emulator Bochs never interrupts a guest that has interrupts off and does nothing else.
    pub(crate) fn loop_for_ever(self) -> Self {
        // cpuid; jmp to it
        self.code(&[0x0f, 0xa2, 0xeb, 0xfc])
    }

    /// The ELF file.
    pub(crate) fn elf(&self) -> Vec<u8> {
        // Should the code run off its end, it stays there.
        let code = self.clone().loop_for_ever().0;
        let mut file = Vec::new();
        let header: [&[u8]; 14] = [
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
            &2u16.to_le_bytes(),  // executable
            &62u16.to_le_bytes(), // x86-64
            &1u32.to_le_bytes(),
            &ENTRY.to_le_bytes(),
            &64u64.to_le_bytes(), // program headers
            &0u64.to_le_bytes(),
            &0u32.to_le_bytes(),
            &64u16.to_le_bytes(),
            &56u16.to_le_bytes(),
            &1u16.to_le_bytes(),
            &0u16.to_le_bytes(),
            &0u16.to_le_bytes(),
            &0u16.to_le_bytes(),
        ];
        let length = code.len() as u64;
        let segment: [&[u8]; 8] = [
            &1u32.to_le_bytes(), // PT_LOAD
            &7u32.to_le_bytes(),
            &120u64.to_le_bytes(),
            &ENTRY.to_le_bytes(),
            &ENTRY.to_le_bytes(),
            &length.to_le_bytes(),
            &length.to_le_bytes(),
            &1u64.to_le_bytes(),
        ];
        for part in header.iter().chain(&segment) {
            file.extend_from_slice(part);
        }
        assert_eq!(file.len(), 120);
        file.extend_from_slice(&code);
        file
    }
}
