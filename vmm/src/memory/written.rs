//! Pages that a guest has written, found in the page tables of this process.
//!
//! In a private mapping a page is anonymous once it was written, be it by the guest, by a device or swapped out since; a
//! page of the image that was only read belongs to the file. The kernel tells both through `/proc/self/pagemap`: with
//! `PAGEMAP_SCAN` since Linux 6.7, page by page before.
//!
//! A layer may be begun while the guest runs, where the kernel has a [`Tracker`]:
//!
//! ```text
//!   begin   all written pages ──protected──▶ copied ─┐   again, while many were written meanwhile
//!             ▲  guest, devices: go on writing       │
//!             └──────────────────────────────────────┘
//!   finish  stopped: pages written since are copied once more, those that are no more are cut out
//! ```
//!
//! What is written is noted from there on, too. So the next layer can lie right above this one, and hold only what was written in
//! between. A page that was given back in between says something else then in the layers than in memory: its guest counts on
//! nothing of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, VolatileSlice};

use super::image::Image;
use super::layer_file::LayerFile;
use super::ranges::{joined, without};
use super::tracker::Tracker;
use super::{PAGE_SIZE, Piece, length, pieces};
use crate::devices::virtio::Memory;
use crate::jail::PAGEMAP_SCAN;

/// `/proc/self/pagemap`, opened while there was a `/proc`.
#[derive(Debug)]
pub struct Pagemap(File);

/// A stretch of RAM whose pages this process has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// Offsets in RAM.
    pub range: Range<u64>,
    /// It was written, not only read.
    pub written: bool,
}

/// A layer that has most of what it is to hold.
#[derive(Debug)]
pub struct Begun {
    /// Device, inode and length of its file.
    file: (u64, u64, u64),
    /// Offsets in RAM of what was copied, in order.
    copied: Vec<Range<u64>>,
}

impl Begun {
    /// Whether this file is the layer. An empty one never is: it was emptied, or it is another that got the inode of a layer that was
    /// given up and removed.
    pub fn is_of(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|metadata| (metadata.dev(), metadata.ino(), metadata.len()) == self.file)
    }
}

/// Why the written pages could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("Cannot find the written pages of guest memory")]
    Find(#[source] io::Error),
    #[error("The file for a memory layer is not empty")]
    NotEmpty,
    #[error("Cannot write a memory layer")]
    Write(#[source] io::Error),
    #[error("Cannot have the kernel note what is written")]
    Follow(#[source] io::Error),
}

impl Pagemap {
    pub fn new(file: File) -> Self {
        Self(file)
    }

    /// What of `memory` is mapped in this process, in the order of offsets.
    ///
    /// # Errors
    /// The kernel does not report the pages of this process.
    pub fn touched(&self, memory: &Memory) -> io::Result<Vec<Touched>> {
        let mut found = Vec::new();
        let mut offset = 0;
        for region in memory.iter() {
            let start = region.as_ptr() as u64;
            let mut add = |from: u64, to: u64, written: bool| {
                let range = offset + (from - start)..offset + (to - start);
                match found.last_mut() {
                    Some(Touched { range: last, written: same }) if last.end == range.start && *same == written => {
                        last.end = range.end;
                    }
                    _ => found.push(Touched { range, written }),
                }
            };
            match self.scan(start, start + region.len(), &mut add) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    self.read_entries(start, start + region.len(), &mut add)?;
                }
                result => result?,
            }
            offset += region.len();
        }
        Ok(found)
    }

    /// Writes every page of `memory` that was written since `below` was mapped into `layer`, an empty file, at its offset.
    /// Pages of zeros are left out where `below` has none either. Nothing may write to `memory` meanwhile. Returns the
    /// number of bytes of data.
    ///
    /// # Errors
    /// `layer` is not empty or cannot be written, or the written pages cannot be found.
    pub fn save(&self, memory: &Memory, below: &Image, layer: LayerFile<'_>) -> Result<u64, SaveError> {
        make_room(memory, layer.file)?;
        let touched = self.touched(memory).map_err(SaveError::Find)?;
        let written = touched.into_iter().filter(|touched| touched.written).map(|touched| touched.range);
        let mut bytes = 0;
        for range in joined(written.collect(), SMALL_GAP) {
            for piece in pieces(memory, range) {
                bytes += save_piece(piece, Some(below), layer).map_err(SaveError::Write)?;
            }
        }
        Ok(bytes)
    }

    /// Begins a layer, an empty file, with what was written until now, while guest and devices go on. `tracker` notes what they
    /// write from then on. The layer lies above `below`; without it, above the layer that was finished last, and holds only what
    /// was written since.
    ///
    /// # Errors
    /// As [`save`](Self::save), and if the kernel does not note what is written.
    pub fn begin(
        &self,
        tracker: &Tracker,
        memory: &Memory,
        below: Option<&Image>,
        layer: LayerFile<'_>,
    ) -> Result<Begun, SaveError> {
        make_room(memory, layer.file)?;
        tracker.follow(memory).map_err(SaveError::Follow)?;
        let metadata = layer.file.metadata().map_err(SaveError::Write)?;
        let mut buffer = CopyBuffer::new();
        let mut copied = Vec::new();
        let mut before = u64::MAX;
        for round in 0..MAX_ROUNDS {
            // What is left out of the first copy is a hole; in a later one the page may have said something before.
            let below = below.filter(|_| round == 0);
            let look = if below.is_some() { Look::PROTECT_ALL } else { Look::PROTECT_WRITTEN };
            let found: Vec<Range<u64>> = self.look(memory, &look)?.into_iter().map(|(range, _)| range).collect();
            for piece in joined(found.clone(), SMALL_GAP).into_iter().flat_map(|range| pieces(memory, range)) {
                copy_piece(piece, below, layer, &mut buffer).map_err(SaveError::Write)?;
            }
            let bytes: u64 = found.iter().map(|range| range.end - range.start).sum();
            copied.extend(found);
            // A guest that writes as fast as it is copied is as far as it will ever be.
            if bytes < FEW || bytes > before / 2 {
                break;
            }
            before = bytes;
        }
        Ok(Begun { file: (metadata.dev(), metadata.ino(), metadata.len()), copied: joined(copied, 0) })
    }

    /// Completes a layer that was begun, for another to be begun above it. Nothing may write to `memory` meanwhile. Returns the bytes
    /// that the layer takes.
    ///
    /// # Errors
    /// `layer` cannot be written, or the written pages cannot be found.
    pub fn finish(&self, begun: &Begun, memory: &Memory, layer: LayerFile<'_>) -> Result<u64, SaveError> {
        let now = self.look(memory, &Look::PROTECT_AND_TELL)?;
        let changed = now.iter().filter(|(_, has_changed)| *has_changed).map(|(range, _)| range.clone());
        for piece in joined(changed.collect(), SMALL_GAP).into_iter().flat_map(|range| pieces(memory, range)) {
            save_piece(piece, None, layer).map_err(SaveError::Write)?;
        }
        // What the guest has given back since is what lies below again.
        let now = joined(now.into_iter().map(|(range, _)| range).collect(), 0);
        for gone in without(&begun.copied, &now) {
            punch(layer.file, gone).map_err(SaveError::Write)?;
        }
        Ok(layer.file.metadata().map_err(SaveError::Write)?.blocks() * 512)
    }

    /// Stretches of pages that are anonymous, in order, and whether each may be another than when it was last protected.
    fn look(&self, memory: &Memory, look: &Look) -> Result<Vec<(Range<u64>, bool)>, SaveError> {
        let (mut found, mut offset) = (Vec::new(), 0);
        for region in memory.iter() {
            let start = region.as_ptr() as u64;
            let mut add = |region: &PageRegion| {
                let range = offset + (region.start - start)..offset + (region.end - start);
                // One that is not there may be swapped out, or given back: only its content tells.
                let is_as_copied = region.categories & (PAGE_IS_WRITTEN | PAGE_IS_PRESENT) == PAGE_IS_PRESENT;
                found.push((range, !is_as_copied));
            };
            self.scan_for(look, start, start + region.len(), &mut add).map_err(SaveError::Find)?;
            offset += region.len();
        }
        Ok(found)
    }

    fn scan(&self, start: u64, end: u64, add: &mut impl FnMut(u64, u64, bool)) -> io::Result<()> {
        let mut add = |region: &PageRegion| add(region.start, region.end, region.categories & PAGE_IS_FILE == 0);
        self.scan_for(&Look::TOUCHED, start, end, &mut add)
    }

    /// `PAGEMAP_SCAN` of `fs/proc/task_mmu.c`.
    fn scan_for(&self, look: &Look, start: u64, end: u64, add: &mut impl FnMut(&PageRegion)) -> io::Result<()> {
        let mut regions = [PageRegion::default(); 256];
        let mut at = start;
        while at < end {
            let mut scan = PmScan {
                size: size_of::<PmScan>() as u64,
                flags: look.flags,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                // Mapped or swapped out, and not the page of zeros that a read of untouched memory gives.
                category_inverted: look.is_not | PAGE_IS_PFNZERO,
                category_mask: look.is | look.is_not | PAGE_IS_PFNZERO,
                category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: look.tells,
                ..PmScan::default()
            };
            // SAFETY: the kernel reads and writes one `pm_scan_arg`, which `scan` has the form of, and writes at most
            // `vec_len` entries to `vec`; both are local and live until the call is over.
            let count = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            for region in regions.iter().take(count) {
                add(region);
            }
            if scan.walk_end <= at {
                return Err(io::Error::other("the scan of the page tables makes no progress"));
            }
            at = scan.walk_end;
        }
        Ok(())
    }

    /// The same from the entries themselves (`Documentation/admin-guide/mm/pagemap.rst`). The page of zeros looks like a
    /// written one here, which costs a look at it and nothing else.
    fn read_entries(&self, start: u64, end: u64, add: &mut impl FnMut(u64, u64, bool)) -> io::Result<()> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE: u64 = 1 << 61;
        const ENTRY: u64 = 8;
        let mut buffer = vec![0; 64 * 1024];
        let mut page = start / PAGE_SIZE;
        while page < end / PAGE_SIZE {
            let wanted = usize::try_from((end / PAGE_SIZE - page) * ENTRY).unwrap_or(usize::MAX).min(buffer.len());
            let part = &mut buffer[..wanted];
            self.0.read_exact_at(part, page * ENTRY)?;
            for entry in part.chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
                if entry & (PRESENT | SWAPPED) != 0 {
                    add(page * PAGE_SIZE, (page + 1) * PAGE_SIZE, entry & FILE == 0);
                }
                page += 1;
            }
        }
        Ok(())
    }
}

/// Gives an empty file the length of a layer.
fn make_room(memory: &Memory, layer: &File) -> Result<(), SaveError> {
    if layer.metadata().map_err(SaveError::Write)?.len() != 0 {
        return Err(SaveError::NotEmpty);
    }
    layer.set_len(length(memory)).map_err(SaveError::Write)
}

/// Writes the pages of `piece`; with `below`, only those that say something.
fn save_piece(piece: Piece, below: Option<&Image>, layer: LayerFile<'_>) -> io::Result<u64> {
    // SAFETY: `piece` lies within a mapping of guest memory that `memory` keeps alive for the caller. vCPUs and devices
    // stand still, as `Pagemap::save` demands, so for now nobody writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(piece.host, piece.length) };
    write_pages(bytes, piece.offset, below, layer)
}

/// The same of memory that is being written to. A page of which only a part was written by then is written again later.
fn copy_piece(piece: Piece, below: Option<&Image>, layer: LayerFile<'_>, buffer: &mut CopyBuffer) -> io::Result<()> {
    let buffer = buffer.pages();
    // SAFETY: `piece` lies within a mapping of guest memory that `memory` keeps alive for the caller. Accesses to a volatile
    // slice may race with any other.
    let memory = unsafe { VolatileSlice::new(piece.host, piece.length) };
    for at in (0..piece.length).step_by(COPY) {
        let length = COPY.min(piece.length - at);
        let part = memory.subslice(at, length).map_err(io::Error::other)?;
        part.copy_to(&mut buffer[..length]);
        write_pages(&buffer[..length], piece.offset + at as u64, below, layer)?;
    }
    Ok(())
}

/// Writes runs of pages to their place in `layer`. With `below`, those that say nothing which that does not are skipped, where there
/// are more of them together than a [small gap](SMALL_GAP).
fn write_pages(bytes: &[u8], offset: u64, below: Option<&Image>, layer: LayerFile<'_>) -> io::Result<u64> {
    const ZEROS: [u8; PAGE] = [0; PAGE];
    let says_nothing = |at: usize, page: &[u8]| {
        below.is_some_and(|below| page == &ZEROS[..page.len()] && !below.holds(offset + at as u64))
    };
    let mut written = 0;
    let mut run: Option<Range<usize>> = None;
    let flush = |from: usize, to: usize| layer.write(&bytes[from..to], offset + from as u64);
    for at in (0..bytes.len()).step_by(PAGE) {
        let end = (at + PAGE).min(bytes.len());
        if says_nothing(at, &bytes[at..end]) {
            continue;
        }
        run = match run {
            Some(Range { start, end: last }) if (at - last) as u64 <= SMALL_GAP => Some(start..end),
            before => {
                if let Some(Range { start, end }) = before {
                    flush(start, end)?;
                    written += end - start;
                }
                Some(at..end)
            }
        };
    }
    if let Some(Range { start, end }) = run {
        flush(start, end)?;
        written += end - start;
    }
    Ok(written as u64)
}

/// Makes a hole.
fn punch(layer: &File, range: Range<u64>) -> io::Result<()> {
    let signed = |number: u64| libc::off_t::try_from(number).map_err(io::Error::other);
    let (start, length) = (signed(range.start)?, signed(range.end - range.start)?);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: it takes a descriptor, which is open, and numbers.
    match unsafe { libc::fallocate(layer.as_raw_fd(), mode, start, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes up to which what lies between written pages is written along, as it is below. A stretch more costs the disk a request, and each
/// restore a mapping.
const SMALL_GAP: u64 = 4 * PAGE_SIZE;

/// Times that a layer which is begun is gone through at most.
const MAX_ROUNDS: usize = 4;

/// Bytes that are no reason to go through it again.
const FEW: u64 = 4 << 20;

/// [`PAGE_SIZE`], in memory.
const PAGE: usize = 4096;

/// Bytes that are copied at a time.
const COPY: usize = 1 << 20;

/// Whole pages to copy to.
struct CopyBuffer(Vec<u8>);

impl CopyBuffer {
    fn new() -> Self {
        Self(vec![0; COPY + PAGE])
    }

    fn pages(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PAGE);
        &mut self.0[start..start + COPY]
    }
}

/// What of memory is looked for, and what of it is told.
struct Look {
    flags: u64,
    is: u64,
    is_not: u64,
    tells: u64,
}

impl Look {
    /// All that is mapped, and whether it was only read.
    const TOUCHED: Self = Self { flags: 0, is: 0, is_not: 0, tells: PAGE_IS_FILE };
    /// All that is anonymous, which is protected with that.
    const PROTECT_ALL: Self = Self { flags: PROTECT, is: 0, is_not: PAGE_IS_FILE, tells: 0 };
    /// What of it was written since it was protected, which is protected again.
    const PROTECT_WRITTEN: Self = Self { flags: PROTECT, is: PAGE_IS_WRITTEN, is_not: PAGE_IS_FILE, tells: 0 };
    /// All that is anonymous, and whether it is there and was written since it was protected, which it is again.
    const PROTECT_AND_TELL: Self =
        Self { flags: PROTECT, is: 0, is_not: PAGE_IS_FILE, tells: PAGE_IS_WRITTEN | PAGE_IS_PRESENT };
}

/// `PM_SCAN_WP_MATCHING` and `PM_SCAN_CHECK_WPASYNC`: what is found is protected, in one step with that.
const PROTECT: u64 = 1 << 0 | 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// `struct pm_scan_arg` of `linux/fs.h`.
#[derive(Debug, Default)]
#[repr(C)]
struct PmScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[cfg(test)]
mod tests {
    use super::super::image::data_extents;
    use super::*;
    use vm_memory::{Bytes, GuestAddress};

    const PAGES: u64 = 64;

    fn pagemap() -> Pagemap {
        Pagemap::new(File::open("/proc/self/pagemap").unwrap())
    }

    fn memory() -> Memory {
        Memory::from_ranges(&[(GuestAddress(0), 32 * PAGE), (GuestAddress(0x100_0000), 32 * PAGE)]).unwrap()
    }

    fn write(memory: &Memory, page: u64, byte: u8) {
        let at = if page < 32 { page * PAGE_SIZE } else { 0x100_0000 + (page - 32) * PAGE_SIZE };
        memory.write_slice(&[byte; PAGE], GuestAddress(at)).unwrap();
    }

    fn read(memory: &Memory, page: u64) -> u8 {
        let at = if page < 32 { page * PAGE_SIZE } else { 0x100_0000 + (page - 32) * PAGE_SIZE };
        memory.read_obj(GuestAddress(at + 5)).unwrap()
    }

    #[test]
    fn layers_of_written_pages_restore_what_was_there() {
        let first = memory();
        write(&first, 3, 3);
        write(&first, 4, 4);
        write(&first, 5, 0);
        write(&first, 31, 31);
        write(&first, 32, 32);
        let base = tempfile::tempfile().unwrap();
        let saved = pagemap().save(&first, &Image::default(), cached(&base)).unwrap();
        assert_eq!(saved, 4 * PAGE_SIZE, "pages of zeros are not written");

        let second = memory();
        let image = Image::open(vec![base.try_clone().unwrap()], PAGES * PAGE_SIZE).unwrap();
        image.map(&second).unwrap();
        assert_eq!([3, 4, 5, 31, 32].map(|page| read(&second, page)), [3, 4, 0, 31, 32]);
        write(&second, 4, 0);
        write(&second, 10, 0);
        write(&second, 63, 9);
        let layer = tempfile::tempfile().unwrap();
        let saved = pagemap().save(&second, &image, cached(&layer)).unwrap();
        assert_eq!(saved, 2 * PAGE_SIZE, "zeros over data and a new page");
        let extents = data_extents(&layer, PAGES * PAGE_SIZE).unwrap();
        assert_eq!(extents, [4 * PAGE_SIZE..5 * PAGE_SIZE, 63 * PAGE_SIZE..64 * PAGE_SIZE]);

        // What lies between the two is written along, as it is below.
        write(&second, 1, 1);
        let joined = tempfile::tempfile().unwrap();
        assert_eq!(pagemap().save(&second, &image, cached(&joined)).unwrap(), 5 * PAGE_SIZE);
        let restored = memory();
        Image::open(vec![base.try_clone().unwrap(), joined], PAGES * PAGE_SIZE).unwrap().map(&restored).unwrap();
        assert_eq!([1, 2, 3, 4, 63].map(|page| read(&restored, page)), [1, 0, 3, 0, 9]);

        let third = memory();
        Image::open(vec![base, layer], PAGES * PAGE_SIZE).unwrap().map(&third).unwrap();
        assert_eq!([3, 4, 10, 31, 32, 63].map(|page| read(&third, page)), [3, 0, 0, 31, 32, 9]);
    }

    #[test]
    fn a_layer_that_was_begun_is_completed_with_what_was_written_since() {
        let tracker = match Tracker::open() {
            Ok(tracker) => tracker,
            Err(error) => return println!("SKIPPED: layers that are begun: this kernel notes no writes: {error}"),
        };
        let base = tempfile::tempfile().unwrap();
        let below = memory();
        for page in [1, 2, 20] {
            write(&below, page, 77);
        }
        pagemap().save(&below, &Image::default(), cached(&base)).unwrap();
        let guest = memory();
        let image = Image::open(vec![base.try_clone().unwrap()], PAGES * PAGE_SIZE).unwrap();
        image.map(&guest).unwrap();
        for page in [2, 3, 4, 5, 6, 31, 32, 40] {
            write(&guest, page, 8);
        }
        write(&guest, 7, 0);
        let layer = tempfile::tempfile().unwrap();

        let begun = pagemap().begin(&tracker, &guest, Some(&image), cached(&layer)).unwrap();
        write(&guest, 3, 9);
        write(&guest, 4, 0);
        write(&guest, 7, 9);
        write(&guest, 20, 9);
        write(&guest, 50, 9);
        give_back(&guest, 5);
        give_back(&guest, 2);
        assert!(begun.is_of(&layer) && !begun.is_of(&base));
        pagemap().finish(&begun, &guest, cached(&layer)).unwrap();

        let restored = memory();
        Image::open(vec![base, layer.try_clone().unwrap()], PAGES * PAGE_SIZE).unwrap().map(&restored).unwrap();
        for page in 0..PAGES {
            assert_eq!(read(&restored, page), read(&guest, page), "page {page}");
        }
        assert_eq!(read(&restored, 2), 77);
        // One that is not to lie above it begins with everything again.
        let next = tempfile::tempfile().unwrap();
        let begun = pagemap().begin(&tracker, &guest, Some(&image), cached(&next)).unwrap();
        pagemap().finish(&begun, &guest, cached(&next)).unwrap();
        let extents = |file: &File| data_extents(file, PAGES * PAGE_SIZE).unwrap();
        assert_eq!(
            extents(&next),
            [3..8, 20..21, 31..33, 40..41, 50..51]
                .map(|range: Range<u64>| range.start * PAGE_SIZE..range.end * PAGE_SIZE)
        );
        // As one with the same inode is that was made after this one was removed.
        next.set_len(0).unwrap();
        assert!(!begun.is_of(&next));
    }

    #[test]
    fn a_layer_above_the_last_one_holds_what_was_written_since() {
        let tracker = match Tracker::open() {
            Ok(tracker) => tracker,
            Err(error) => return println!("SKIPPED: layers above the last one: this kernel notes no writes: {error}"),
        };
        let guest = memory();
        let image = Image::default();
        let mut layers: Vec<File> = Vec::new();
        let mut save = |below: Option<&Image>, first: &[(u64, u8)], then: &[(u64, u8)]| {
            for (page, byte) in first {
                write(&guest, *page, *byte);
            }
            let layer = tempfile::tempfile().unwrap();
            let begun = pagemap().begin(&tracker, &guest, below, cached(&layer)).unwrap();
            for (page, byte) in then {
                write(&guest, *page, *byte);
            }
            pagemap().finish(&begun, &guest, cached(&layer)).unwrap();
            let pages = data_extents(&layer, PAGES * PAGE_SIZE).unwrap();
            layers.push(layer);
            let restored = memory();
            let files = layers.iter().map(|layer| layer.try_clone().unwrap()).collect();
            Image::open(files, PAGES * PAGE_SIZE).unwrap().map(&restored).unwrap();
            for page in 0..PAGES {
                assert_eq!(read(&restored, page), read(&guest, page), "page {page} of {} layers", layers.len());
            }
            pages.into_iter().flat_map(|range| range.start / PAGE_SIZE..range.end / PAGE_SIZE).collect::<Vec<_>>()
        };

        assert_eq!(save(Some(&image), &[(1, 1), (2, 2), (40, 4)], &[(3, 3), (2, 9)]), [1, 2, 3, 40]);
        assert_eq!(save(None, &[], &[]), [0u64; 0]);
        // Zeros over what a layer below says, a new page, and one that is written while and after it is copied.
        assert_eq!(save(None, &[(1, 0), (50, 5), (40, 6)], &[(40, 7), (60, 6)]), [1, 40, 50, 60]);
        assert_eq!(save(None, &[(2, 1)], &[]), [2]);
    }

    fn cached(file: &File) -> LayerFile<'_> {
        LayerFile::new(file, false)
    }

    /// As a balloon does.
    fn give_back(memory: &Memory, page: u64) {
        let host = memory.get_host_address(GuestAddress(page * PAGE_SIZE)).unwrap();
        // SAFETY: it is one page of the memory, of which nobody has a reference.
        assert_eq!(unsafe { libc::madvise(host.cast(), PAGE, libc::MADV_DONTNEED) }, 0);
    }

    #[test]
    fn both_ways_of_looking_agree_on_what_is_written() {
        let memory = memory();
        let base = tempfile::tempfile().unwrap();
        base.set_len(PAGES * PAGE_SIZE).unwrap();
        base.write_all_at(&[1; 8 * PAGE], 0).unwrap();
        Image::open(vec![base], PAGES * PAGE_SIZE).unwrap().map(&memory).unwrap();
        write(&memory, 2, 7);
        write(&memory, 40, 7);
        assert_eq!(read(&memory, 6), 1);

        let touched = pagemap().touched(&memory).unwrap();
        let mut entries = Vec::new();
        let region = memory.iter().next().unwrap();
        let (start, end) = (region.as_ptr() as u64, region.as_ptr() as u64 + region.len());
        pagemap()
            .read_entries(start, end, &mut |from, to, written| {
                if written {
                    entries.push(from - start..to - start);
                }
            })
            .unwrap();

        let written: Vec<_> = touched.iter().filter(|t| t.written).map(|t| t.range.clone()).collect();
        assert_eq!(written, [2 * PAGE_SIZE..3 * PAGE_SIZE, 40 * PAGE_SIZE..41 * PAGE_SIZE]);
        assert_eq!(entries, written[..1]);
        let read_only = |t: &Touched| !t.written && t.range.contains(&(6 * PAGE_SIZE));
        assert!(touched.iter().any(read_only), "a page that was read is told apart: {touched:?}");
    }

    #[test]
    fn a_file_with_something_in_it_is_not_written_over() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        assert!(matches!(pagemap().save(&memory(), &Image::default(), cached(&file)), Err(SaveError::NotEmpty)));
    }
}
