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

use super::ranges::without;
use super::written::Touched;
use super::{Piece, pieces, second_level};
use crate::devices::virtio::Memory;
use crate::snapshot::format::{Content, Kind};

/// Bytes that are entered at most before the guest runs: the sets of plain templates are a quarter of it, and a guest that waits for a
/// large one would have served by then.
const MOST_ENTERED: u64 = 32 << 20;

/// Bytes up to which what lies between two stretches is fetched along: the kernel maps so much around a page that is read anyway.
const FETCHED_ALONG: u64 = 64 * 1024;

/// Likewise for what is entered: a page more costs less than an order more, and is often the next that the guest touches.
const ENTERED_ALONG: u64 = 16 * 1024;

/// Stretches of RAM in the order in which they are fetched.
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

    /// With what else was touched `later`, which is copied only once a guest writes to it: many do not get so far.
    #[must_use]
    pub fn then(mut self, later: &[Touched]) -> Self {
        let first: Vec<_> = self.ranges.iter().map(Entry::range).collect();
        let later: Vec<_> = later.iter().map(|touched| touched.range.clone()).collect();
        let entry = |range: Range<u64>| Entry { offset: range.start, length: range.end - range.start, written: false };
        self.ranges.extend(without(&later, &first).into_iter().map(entry));
        self
    }
}

impl Entry {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// Pages that are fetched at once.
#[derive(Debug)]
struct Stretch {
    /// All of it, with the little that lies between.
    range: Range<u64>,
    /// What the guest touches of it, in order, with the very little that lies between.
    entered: Vec<Range<u64>>,
    written: Vec<Range<u64>>,
}

impl Stretch {
    fn of(entry: &Entry) -> Self {
        let range = entry.range();
        let written = entry.written.then(|| range.clone()).into_iter().collect();
        Self { range: range.clone(), entered: vec![range], written }
    }

    /// Whether `entry` lies so close behind what is there that it is fetched along.
    fn reaches(&self, entry: &Entry) -> bool {
        let last = self.entered.last().map_or(self.range.start, |range| range.start);
        (last..=self.range.end.saturating_add(FETCHED_ALONG)).contains(&entry.offset)
    }

    /// Takes in one that it [reaches](Self::reaches).
    fn add(&mut self, entry: &Entry) {
        let range = entry.range();
        self.range.end = self.range.end.max(range.end);
        self.written.extend(entry.written.then(|| range.clone()));
        match self.entered.last_mut() {
            Some(last) if last.end.saturating_add(ENTERED_ALONG) >= range.start => last.end = last.end.max(range.end),
            _ => self.entered.push(range),
        }
    }
}

/// A working set on its way into memory.
#[derive(Debug)]
pub struct Fetch {
    stretches: Vec<Stretch>,
    /// How many of them are there.
    populated: AtomicUsize,
}

impl Fetch {
    pub fn new(set: WorkingSet) -> Self {
        let mut stretches: Vec<Stretch> = Vec::new();
        for entry in &set.ranges {
            match stretches.last_mut() {
                Some(last) if last.reaches(entry) => last.add(entry),
                _ => stretches.push(Stretch::of(entry)),
            }
        }
        Self { stretches, populated: AtomicUsize::new(0) }
    }

    /// Maps these pages of `memory`. Changes no byte of it, so it may run beside the guest.
    pub fn populate(&self, memory: &Memory) {
        for stretch in &self.stretches {
            // Copies first: one of a page that is mapped already takes that from each processor this process runs on.
            let written = stretch.written.iter().flat_map(|range| pieces(memory, range.clone()));
            let written = written.map(|piece| (piece, libc::MADV_POPULATE_WRITE));
            let read = pieces(memory, stretch.range.clone()).map(|piece| (piece, libc::MADV_POPULATE_READ));
            for (Piece { host, length, .. }, advice) in written.chain(read) {
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

    /// Has KVM map for the guest what of it the guest touches and is populated by now, [`MOST_ENTERED`] at most. By the thread of a
    /// vCPU that does not run yet.
    pub fn enter(&self, memory: &Memory, vcpu: &VcpuFd) {
        let mut left = MOST_ENTERED;
        for (index, stretch) in self.stretches.iter().enumerate() {
            if index >= self.populated.load(Ordering::Acquire) {
                return;
            }
            for range in &stretch.entered {
                let length = range.end - range.start;
                if length > left {
                    return;
                }
                left -= length;
                for Piece { guest, length, .. } in pieces(memory, range.clone()) {
                    if second_level::map(vcpu, guest, length as u64).is_err() {
                        // An older kernel, or no second-level page tables: each is mapped when the guest touches it.
                        return;
                    }
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
    use crate::memory::tracker::Tracker;
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

    #[test]
    fn what_lies_close_together_is_fetched_at_once_and_told_apart() {
        let page = |(number, pages, written): (u64, u64, bool)| Entry {
            offset: number * PAGE_SIZE,
            length: pages * PAGE_SIZE,
            written,
        };
        let set = WorkingSet {
            ranges: [(0, 2, false), (2, 1, true), (5, 1, false), (12, 1, true), (100, 1, false)].map(page).into(),
        };

        let stretches = Fetch::new(set).stretches;

        let page = |range: &Range<u64>| range.start / PAGE_SIZE..range.end / PAGE_SIZE;
        let pages = |ranges: &[Range<u64>]| ranges.iter().map(page).collect::<Vec<_>>();
        let [together, apart] = &stretches[..] else { panic!("{stretches:?}") };
        assert_eq!((page(&together.range), pages(&together.entered)), (0..13, vec![0..6, 12..13]));
        assert_eq!(pages(&together.written), [2..3, 12..13]);
        assert_eq!((page(&apart.range), apart.written.len()), (100..101, 0));
    }

    #[test]
    fn what_is_touched_later_comes_last_and_is_not_copied() {
        let pages = |pages: Range<u64>| pages.start * PAGE_SIZE..pages.end * PAGE_SIZE;
        let touched = |range, written| Touched { range: pages(range), written };
        let first = [touched(2..4, true), touched(90..91, false)];
        let all = [touched(1..6, true), touched(90..91, true)];

        let stretches = Fetch::new(WorkingSet::new(&first).then(&all)).stretches;

        let found: Vec<_> = stretches.iter().map(|stretch| (stretch.range.clone(), stretch.written.len())).collect();
        assert_eq!(found, [(pages(2..4), 1), (pages(90..91), 0), (pages(1..6), 0)]);
    }

    #[test]
    fn of_memory_that_is_looked_after_only_what_was_touched_is_told() {
        let tracker = match Tracker::open() {
            Ok(tracker) => tracker,
            Err(error) => {
                return println!("SKIPPED: telling pages apart that are touched: not with this kernel: {error}");
            }
        };
        let pagemap = Pagemap::new(File::open("/proc/self/pagemap").unwrap());
        let touched_by_a_read = |memory: &Memory| {
            memory.read_obj::<u8>(GuestAddress(9 * PAGE_SIZE)).unwrap();
            pagemap.touched(memory).unwrap().iter().map(|touched| touched.range.end - touched.range.start).sum::<u64>()
        };
        let (others, _file) = restored();
        assert!(touched_by_a_read(&others) > PAGE_SIZE, "the kernel maps what lies around, or this test shows nothing");
        let (memory, _file) = restored();
        tracker.follow(&memory).unwrap();
        assert_eq!(touched_by_a_read(&memory), PAGE_SIZE);
    }
}
