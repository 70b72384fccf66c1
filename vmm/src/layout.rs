//! Where things are in the guest's physical address space.
//!
//! ```text
//!   0x0000_0000  RAM; boot structures below 640 KiB
//!   0x000a_0000  nothing
//!   0x000e_0000  128 KiB of RAM that is reported as reserved: ACPI tables, and the generation id in the last page
//!   0x0010_0000  RAM; the kernel where its ELF headers say (Linux: from 16 MiB)
//!   0xc000_0000  nothing (a gap of 1 GiB)
//!   0xd000_0000    virtio-mmio windows, 4 KiB each
//!   0xfec0_0000    I/O APIC, in KVM
//!   0xfee0_0000    local APICs, in KVM
//!   0xfffb_d000    three pages and one that KVM needs on Intel hosts
//! 0x1_0000_0000  the rest of RAM
//! ```

use vm_memory::GuestAddress;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// GDT for the first vCPU's segments: four entries of 8 bytes.
pub const GDT: GuestAddress = GuestAddress(0x500);
/// `boot_params`, one page.
pub const ZERO_PAGE: GuestAddress = GuestAddress(0x7000);
/// The stack grows down from here, below the page tables.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Page tables, one page each: the first GiB mapped to itself with 2 MiB pages.
pub const PML4: GuestAddress = GuestAddress(0x9000);
pub const PDPT: GuestAddress = GuestAddress(0xa000);
pub const PAGE_DIRECTORY: GuestAddress = GuestAddress(0xb000);
/// The kernel's arguments.
pub const COMMAND_LINE: GuestAddress = GuestAddress(0x2_0000);
/// Their longest length including the terminating zero: `COMMAND_LINE_SIZE` of x86 Linux.
pub const COMMAND_LINE_SIZE: usize = 2048;

/// End of the RAM below 640 KiB that a kernel may use: where a PC's extended BIOS data area would begin, 1 KiB before it.
pub const LOW_RAM_END: u64 = 0x9_fc00;
/// ACPI tables, the root pointer first, and [`GENERATION_ID`], up to the first MiB: 128 KiB.
pub const ACPI: GuestAddress = GuestAddress(0xe_0000);
pub const ACPI_SIZE: u64 = HIGH_RAM - ACPI.0;
/// 16 bytes, in a page that nothing else is in: a guest maps it on its own, write-back as RAM, and a restored machine
/// differs from its snapshot in this page from the beginning.
pub const GENERATION_ID: GuestAddress = GuestAddress(HIGH_RAM - 0x1000);
/// From here on RAM is contiguous; kernels load above.
pub const HIGH_RAM: u64 = MIB;

/// RAM below 4 GiB ends here: 4 GiB minus the gap of 1 GiB.
pub const GAP: u64 = 3 * GIB;
/// RAM goes on here.
pub const ABOVE_GAP: u64 = 4 * GIB;

/// Window `n` of the virtio-mmio transport is at `VIRTIO_MMIO + n * VIRTIO_MMIO_WINDOW`. 256 MiB into the gap: room for
/// other windows below, and up to 0xfec0_0000 more than any number of devices takes.
pub const VIRTIO_MMIO: u32 = 0xd000_0000;
pub const VIRTIO_MMIO_WINDOW: u32 = 0x1000;

pub const IO_APIC: u32 = 0xfec0_0000;
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// Three pages for a task state segment on Intel hosts without unrestricted guests. The page before them is KVM's default
/// for the identity map, 0xfffb_c000.
pub const KVM_TSS: usize = 0xfffb_d000;

/// I/O APIC pins in KVM.
pub const GSI_COUNT: u32 = 24;
/// First GSI for virtio devices: those below have meanings on a PC (0 timer, 4 COM1) or might have, or are another
/// device's (5 the generation id).
pub const FIRST_VIRTIO_GSI: u32 = 6;

/// RAM as (start, length): all of it below the gap if it fits, else the rest from 4 GiB on.
pub fn ram(bytes: u64) -> Vec<(GuestAddress, u64)> {
    if bytes <= GAP {
        vec![(GuestAddress(0), bytes)]
    } else {
        vec![(GuestAddress(0), GAP), (GuestAddress(ABOVE_GAP), bytes - GAP)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_leaves_the_gap_free() {
        assert_eq!(ram(256 * MIB), [(GuestAddress(0), 256 * MIB)]);
        assert_eq!(ram(GAP), [(GuestAddress(0), GAP)]);
        assert_eq!(ram(5 * GIB), [(GuestAddress(0), GAP), (GuestAddress(4 * GIB), 2 * GIB)]);
    }

    #[test]
    fn what_kvm_and_devices_use_lies_in_the_gap() {
        let last_window = VIRTIO_MMIO + GSI_COUNT * VIRTIO_MMIO_WINDOW;
        assert!(u64::from(VIRTIO_MMIO) >= GAP && last_window <= IO_APIC);
        assert!((KVM_TSS as u64) + 3 * 4096 <= ABOVE_GAP);
    }
}
