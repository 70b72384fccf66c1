//! A guest that needs no kernel: some three hundred instructions that drive a disk and a vsock device and speak the link, so
//! that it runs on any /dev/kvm, also on one that cannot run a stock kernel.
//!
//! It does what PID 1 of a real guest does as far as the agent can tell: opens the link, again whenever it breaks or the
//! machine was restored, answers `Init`, `Freeze` and `Thaw`; and says that it did what it is asked to with volumes, of which it
//! reads nothing. It has a memory and a disk: it counts how often it was told who
//! it is, says so in its log ("told 3"), and writes the same words to a block of its disk that is chosen by the count
//! ([`told_block`]). After a restore it goes on counting; after a boot it begins again. When no agent has been there for some
//! minutes it powers itself off, so that a test that is killed leaves nothing for long.

use std::arch::global_asm;

/// Where the code is loaded, and entered.
const ENTRY: u64 = 0x10_0000;
const BLOCK: u64 = 4096;

global_asm!(include_str!("guest.s"), options(raw));

unsafe extern "C" {
    static sandpiper_test_guest: u8;
    static sandpiper_test_guest_end: u8;
}

/// The guest as an ELF file with one segment, which the monitor loads as a kernel.
pub(crate) fn elf() -> Vec<u8> {
    // SAFETY: both symbols are of the assembly above, in one section, the second behind the first; only bytes are read.
    let code = unsafe {
        let (start, end) = (&raw const sandpiper_test_guest, &raw const sandpiper_test_guest_end);
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    };
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let length = code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for x86-64; entry, program headers, no sections; flags and sizes: one program header of 56 bytes.
    file.extend(words(&[0x1_003e_0002, ENTRY, 64, 0, 0x0038_0040_0000_0000, 1]));
    // PT_LOAD, all permissions, from behind these headers.
    file.extend(words(&[0x7_0000_0001, 120, ENTRY, ENTRY, length, length, 1]));
    assert_eq!(file.len(), 120);
    file.extend(code);
    file
}

/// Where on its disk the guest writes that it was told who it is for the `count`th time, and what.
pub(crate) fn told_block(count: u64) -> (u64, String) {
    ((16 + count) * BLOCK, format!("told {count}"))
}
