//! Which pages a chain names, and giving them back.

use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress, VolatileSlice};

use crate::devices::virtio::Memory;

/// The unit of page numbers, whatever the guest's pages are (virtio 1.2 section 5.5.6), and the host's page size.
const PAGE: u64 = 4096;

/// Descriptors of a chain that are looked at; Linux uses up to 32.
const MAX_DESCRIPTORS: usize = 256;

/// Page numbers of a chain that are looked at; Linux sends up to 256.
const MAX_NUMBERS: usize = 4096;

/// Bytes of reported pages of a chain that are given back: what takes the host some 10 ms. Linux sends up to 32 blocks,
/// most of them of 2 MiB.
const MAX_REPORTED: u64 = 256 << 20;

/// Gives back the pages that are listed in the readable buffers of `chain`, beyond the limits none. A list that does
/// not lie in guest memory names nothing.
pub(super) fn inflate(memory: &Memory, chain: DescriptorChain<&Memory>) {
    let mut bytes = Vec::new();
    for descriptor in chain.take(MAX_DESCRIPTORS).filter(|descriptor| !descriptor.is_write_only()) {
        let start = bytes.len();
        let length = (descriptor.len() as usize).min(MAX_NUMBERS * size_of::<u32>() - start);
        bytes.resize(start + length, 0);
        if memory.read_slice(&mut bytes[start..], descriptor.addr()).is_err() {
            return;
        }
    }
    let (numbers, _) = bytes.as_chunks();
    let mut numbers: Vec<u32> = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
    // Neighbours go together, in whichever order the driver took its pages.
    numbers.sort_unstable();
    for run in numbers.chunk_by(|number, next| next - number <= 1) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            give_back(memory, u64::from(*first) * PAGE, (u64::from(*last) + 1) * PAGE);
        }
    }
}

/// Gives back the writable buffers of `chain`, beyond the limits none.
pub(super) fn report(memory: &Memory, chain: DescriptorChain<&Memory>) {
    let mut left = MAX_REPORTED;
    for descriptor in chain.take(MAX_DESCRIPTORS).filter(|descriptor| descriptor.is_write_only()) {
        let start = descriptor.addr().0;
        let length = u64::from(descriptor.len()).min(left);
        left -= length;
        give_back(memory, start, start.saturating_add(length));
    }
}

/// Gives back the whole pages between two guest addresses, as far as they are guest memory.
fn give_back(memory: &Memory, start: u64, end: u64) {
    for region in memory.iter() {
        // A region begins at a page boundary of the guest and of the host.
        let base = region.start_addr().0;
        let Some(start) = start.max(base).checked_next_multiple_of(PAGE) else { return };
        let end = end.min(base.saturating_add(region.len()));
        let end = end - end % PAGE;
        let Some(length) = end.checked_sub(start).and_then(|length| usize::try_from(length).ok()) else { continue };
        if let Ok(pages) = region.get_slice(MemoryRegionAddress(start - base), length) {
            discard(&pages);
        }
    }
}

fn discard(pages: &VolatileSlice<'_>) {
    let pointer = pages.ptr_guard_mut();
    // SAFETY: the slice lies in a mapping of guest memory, which outlives it, and the mapping stays: only its contents
    // change, as the guest itself can change them at any time. So no reference points there; whoever reads guest memory
    // does it by volatile accesses and copies what it depends on.
    unsafe { libc::madvise(pointer.as_ptr().cast(), pages.len(), libc::MADV_DONTNEED) };
    // Pages that the kernel would not take (it refuses locked ones, for example) stay as they are: nothing saved,
    // nothing lost.
}
