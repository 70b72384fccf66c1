//! The pages that a restored guest touches first.
//!
//! Each costs an exit of the guest and two page faults when it is touched one by one, the host's and KVM's; told beforehand, the
//! kernel maps them by the hundred. Nothing depends on it: a working set that cannot be read, or does not fit, is left alone.
//!
//! ```text
//!   thread of its own   [populate 0][populate 1][populate 2] …       this process's page tables, while the machine is put together
//!   first vCPU                       [enter 0][enter 1][enter 2] … ▶ runs    the guest's second-level ones, as far as the other has got
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvm_ioctls::VcpuFd;

use serde::{Deserialize, Serialize};

use super::written::Touched;
use super::{Piece, pieces, second_level};
use crate::devices::virtio::Memory;
use crate::snapshot::format::{Content, Kind};

/// Bytes that are entered at most before the guest runs: the sets of plain templates are a quarter of it, and a guest that waits for a
/// large one would have served by then.
const MOST_ENTERED: u64 = 32 << 20;

/// Stretches of RAM, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSet {
    ranges: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    offset: u64,
    length: u64,
    /// Will be written, so the copy that this takes can be made at once.
    written: bool,
}

impl Content for WorkingSet {
    const KIND: Kind = Kind::WorkingSet;

    fn read(_form: u32, bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        postcard::take_from_bytes(bytes)
    }
}

impl WorkingSet {
    pub fn new(touched: &[Touched]) -> Self {
        let entry = |touched: &Touched| Entry {
            offset: touched.range.start,
            length: touched.range.end - touched.range.start,
            written: touched.written,
        };
        Self { ranges: touched.iter().map(entry).collect() }
    }
}

impl Entry {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// A working set on its way into memory.
#[derive(Debug)]
pub struct Fetch {
    set: WorkingSet,
    /// How many of its stretches are there.
    populated: AtomicUsize,
}

impl Fetch {
    pub fn new(set: WorkingSet) -> Self {
        Self { set, populated: AtomicUsize::new(0) }
    }

    /// Maps these pages of `memory`. Changes no byte of it, so it may run beside the guest.
    pub fn populate(&self, memory: &Memory) {
        for entry in &self.set.ranges {
            let advice = if entry.written { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
            for Piece { host, length, .. } in pieces(memory, entry.range()) {
                // SAFETY: `pieces` gives stretches of guest memory that `memory` keeps mapped. Populating reads pages in and
                // makes private copies of them; their content stays.
                let failed = unsafe { libc::madvise(host.cast(), length, advice) } != 0;
                if failed {
                    // An older kernel, or no memory left: the guest fetches what it needs by itself.
                    return;
                }
            }
            self.populated.fetch_add(1, Ordering::Release);
        }
    }

    /// Has KVM map for the guest what is populated by now, [`MOST_ENTERED`] at most. By the thread of a vCPU that does not run yet.
    pub fn enter(&self, memory: &Memory, vcpu: &VcpuFd) {
        let mut left = MOST_ENTERED;
        for (index, entry) in self.set.ranges.iter().enumerate() {
            if index >= self.populated.load(Ordering::Acquire) || entry.length > left {
                return;
            }
            left -= entry.length;
            for Piece { guest, length, .. } in pieces(memory, entry.range()) {
                if second_level::map(vcpu, guest, length as u64).is_err() {
                    // An older kernel, or no second-level page tables: each is mapped when the guest touches it.
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE_SIZE;
    use crate::memory::image::Image;
    use crate::memory::written::Pagemap;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use vm_memory::{Bytes, GuestAddress};

    const PAGES: usize = 32;

    fn restored() -> (Memory, File) {
        let length = PAGES as u64 * PAGE_SIZE;
        let memory = Memory::from_ranges(&[(GuestAddress(0), PAGES * 4096)]).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        file.write_all_at(&[7; PAGES * 4096], 0).unwrap();
        Image::open(vec![file.try_clone().unwrap()], length).unwrap().map(&memory).unwrap();
        (memory, file)
    }

    #[test]
    fn what_one_guest_touched_is_there_for_the_next_with_its_content() {
        let pagemap = Pagemap::new(File::open("/proc/self/pagemap").unwrap());
        let (first, _file) = restored();
        first.write_obj(1u8, GuestAddress(2 * PAGE_SIZE)).unwrap();
        let set = WorkingSet::new(&pagemap.touched(&first).unwrap());
        let (second, _file) = restored();
        assert_eq!(pagemap.touched(&second).unwrap(), []);

        let fetch = Fetch::new(set);
        fetch.populate(&second);

        let touched = pagemap.touched(&second).unwrap();
        assert!(touched.iter().any(|t| t.written && t.range == (2 * PAGE_SIZE..3 * PAGE_SIZE)), "{touched:?}");
        assert_eq!(second.read_obj::<u8>(GuestAddress(2 * PAGE_SIZE)).unwrap(), 7);
    }

    #[test]
    fn ranges_outside_ram_are_left_alone() {
        let (memory, _file) = restored();
        let entry = |offset, length| Entry { offset, length, written: true };
        let set = WorkingSet { ranges: vec![entry(u64::MAX, 4096), entry(1 << 40, u64::MAX), entry(0, 1 << 30)] };
        Fetch::new(set).populate(&memory);
        assert_eq!(memory.read_obj::<u8>(GuestAddress(0)).unwrap(), 7);
    }
}
