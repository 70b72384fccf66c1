//! Guest memory, and how it gets into a snapshot and out of one.
//!
//! ```text
//!   offset in RAM   0        1        2        3        4        5
//!   [written] pages          W                 W                     anonymous: what the guest wrote since
//!   layer 1                  1        1                              a pause's, sparse
//!   layer 0         0        0                 0                     the warm snapshot's, shared by all its clones
//!   reads as        0        W        1        W        zeros
//! ```
//!
//! * [`allocate`]: private and anonymous, charged only when touched.
//! * [`image`]: the layers of a snapshot, mapped privately over it: a page that is only read is the page cache's, and so
//!   one for all clones; the first write to it makes an anonymous copy.
//! * [`written`]: that is also how written pages are found, without logging them while the guest runs: the kernel's page
//!   tables say which are anonymous. They become the next layer.
//! * [`layer_file`]: long stretches of them may go to the disk without the page cache in between.
//! * [`tracker`]: which of them were written since a moment while the guest runs, so that most of a layer can be written
//!   before the guest is stopped for the rest.
//! * [`working_set`]: which pages a restored guest touches first, so that the next restore can fetch them at once.
//!
//! An offset in a layer is an offset in the guest's RAM: all of its regions, one after another, without the gap.

pub mod image;
pub mod layer_file;
mod ranges;
mod second_level;
pub mod tracker;
pub mod working_set;
pub mod written;

use std::ops::Range;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use crate::devices::virtio::Memory;
use crate::layout;

/// What everything here counts in.
pub const PAGE_SIZE: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("Cannot map {mib} MiB of guest memory")]
    Map {
        mib: u32,
        #[source]
        source: vm_memory::mmap::FromRangesError,
    },
    #[error("Guest memory of {mib} MiB is too large for this machine's addresses")]
    TooLarge { mib: u32 },
    #[error("KVM rejects guest memory at {address:#x}")]
    Register {
        address: u64,
        #[source]
        source: kvm_ioctls::Error,
    },
}

/// Maps `mib` MiB, laid out as [`layout::ram`] says.
pub(crate) fn allocate(mib: u32) -> Result<Memory, MemoryError> {
    let ranges = layout::ram(u64::from(mib) << 20)
        .into_iter()
        .map(|(address, length)| Ok((address, usize::try_from(length).map_err(|_| MemoryError::TooLarge { mib })?)))
        .collect::<Result<Vec<(GuestAddress, usize)>, MemoryError>>()?;
    // Private, anonymous and without reserve: vm-memory's flags when no file is named.
    Memory::from_ranges(&ranges).map_err(|source| MemoryError::Map { mib, source })
}

/// Gives the memory to KVM.
///
/// Called before the interrupt controllers exist: with them, KVM waits out a grace period of their bus on every new slot
/// (7 ms instead of 0.1 ms).
pub(crate) fn register(vm: &VmFd, memory: &Memory) -> Result<(), MemoryError> {
    for (slot, region) in (0..).zip(memory.iter()) {
        let guest_phys_addr = region.start_addr().0;
        let entry = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the range is a mapping of exactly this region, and it lives as long as the VM can use it: `Machine`
        // declares its VM and vCPUs before its memory, so they are dropped first, and every user of the descriptor
        // afterwards would need a vCPU.
        unsafe { vm.set_user_memory_region(entry) }
            .map_err(|source| MemoryError::Register { address: guest_phys_addr, source })?;
    }
    Ok(())
}

/// Bytes of RAM.
pub fn length(memory: &Memory) -> u64 {
    memory.iter().map(|region| region.len()).sum()
}

/// A stretch of RAM that is contiguous in this process, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// In RAM.
    offset: u64,
    /// Where the guest has it.
    guest: u64,
    host: *mut u8,
    length: usize,
}

/// `range` of RAM offsets cut where regions end; what lies beyond RAM is left out.
fn pieces(memory: &Memory, range: Range<u64>) -> impl Iterator<Item = Piece> {
    let mut region_start = 0;
    memory.iter().filter_map(move |region| {
        let start = region_start;
        region_start += region.len();
        let from = range.start.max(start);
        let to = range.end.min(region_start);
        let length = usize::try_from(to.checked_sub(from)?).ok().filter(|length| *length > 0)?;
        // The region is mapped in whole, so an offset within it fits.
        let within = usize::try_from(from - start).ok()?;
        let guest = region.start_addr().0.checked_add(from - start)?;
        Some(Piece { offset: from, guest, host: region.as_ptr().wrapping_add(within), length })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_regions_end_and_at_the_end_of_ram() {
        let regions = [(GuestAddress(0), 0x3000), (GuestAddress(0x10_0000), 0x2000)];
        let memory = Memory::from_ranges(&regions).unwrap();
        let found: Vec<_> =
            pieces(&memory, 0x2000..0x9000).map(|piece| (piece.offset, piece.guest, piece.length as u64)).collect();
        assert_eq!(found, [(0x2000, 0x2000, 0x1000), (0x3000, 0x10_0000, 0x2000)]);
        assert_eq!(pieces(&memory, 0x5000..0x9000).count(), 0);
        assert_eq!(length(&memory), 0x5000);
    }
}
