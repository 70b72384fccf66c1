//! Pages that a guest has written, found in the page tables of this process.
//!
//! In a private mapping a page is anonymous once it was written, be it by the guest, by a device or swapped out since; a
//! page of the image that was only read belongs to the file. The kernel tells both through `/proc/self/pagemap`: with
//! `PAGEMAP_SCAN` since Linux 6.7, page by page before.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use super::image::Image;
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

/// Why the written pages could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("Cannot find the written pages of guest memory")]
    Find(#[source] io::Error),
    #[error("The file for a memory layer is not empty")]
    NotEmpty,
    #[error("Cannot write a memory layer")]
    Write(#[source] io::Error),
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
    pub fn save(&self, memory: &Memory, below: &Image, layer: &File) -> Result<u64, SaveError> {
        if layer.metadata().map_err(SaveError::Write)?.len() != 0 {
            return Err(SaveError::NotEmpty);
        }
        layer.set_len(length(memory)).map_err(SaveError::Write)?;
        let touched = self.touched(memory).map_err(SaveError::Find)?;
        let mut bytes = 0;
        for Touched { range, .. } in touched.into_iter().filter(|touched| touched.written) {
            for piece in pieces(memory, range) {
                bytes += save_piece(piece, below, layer).map_err(SaveError::Write)?;
            }
        }
        Ok(bytes)
    }

    /// `PAGEMAP_SCAN` of `fs/proc/task_mmu.c`.
    fn scan(&self, start: u64, end: u64, add: &mut impl FnMut(u64, u64, bool)) -> io::Result<()> {
        let mut regions = [PageRegion::default(); 256];
        let mut at = start;
        while at < end {
            let mut scan = PmScan {
                size: size_of::<PmScan>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                // Mapped or swapped out, and not the page of zeros that a read of untouched memory gives.
                category_inverted: PAGE_IS_PFNZERO,
                category_mask: PAGE_IS_PFNZERO,
                category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: PAGE_IS_FILE,
                ..PmScan::default()
            };
            // SAFETY: the kernel reads and writes one `pm_scan_arg`, which `scan` has the form of, and writes at most
            // `vec_len` entries to `vec`; both are local and live until the call is over.
            let count = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            for region in regions.iter().take(count) {
                add(region.start, region.end, region.categories & PAGE_IS_FILE == 0);
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

/// Writes runs of pages that say something, and skips the others.
fn save_piece(piece: Piece, below: &Image, layer: &File) -> io::Result<u64> {
    // SAFETY: `piece` lies within a mapping of guest memory that `memory` keeps alive for the caller. vCPUs and devices
    // stand still, as `Pagemap::save` demands, so for now nobody writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(piece.host, piece.length) };
    const PAGE: usize = 4096;
    let says_nothing =
        |at: usize, page: &[u8]| page.iter().all(|byte| *byte == 0) && !below.holds(piece.offset + at as u64);
    let mut written = 0;
    let mut run: Option<usize> = None;
    let flush = |from: usize, to: usize| layer.write_all_at(&bytes[from..to], piece.offset + from as u64);
    for at in (0..bytes.len()).step_by(PAGE) {
        let skipped = says_nothing(at, &bytes[at..(at + PAGE).min(bytes.len())]);
        match (run, skipped) {
            (Some(from), true) => {
                flush(from, at)?;
                written += at - from;
                run = None;
            }
            (None, false) => run = Some(at),
            _ => {}
        }
    }
    if let Some(from) = run {
        flush(from, bytes.len())?;
        written += bytes.len() - from;
    }
    Ok(written as u64)
}

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

    const PAGE: usize = 4096;
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
        let saved = pagemap().save(&first, &Image::default(), &base).unwrap();
        assert_eq!(saved, 4 * PAGE_SIZE, "pages of zeros are not written");

        let second = memory();
        let image = Image::open(vec![base.try_clone().unwrap()], PAGES * PAGE_SIZE).unwrap();
        image.map(&second).unwrap();
        assert_eq!([3, 4, 5, 31, 32].map(|page| read(&second, page)), [3, 4, 0, 31, 32]);
        write(&second, 4, 0);
        write(&second, 10, 0);
        write(&second, 63, 9);
        let layer = tempfile::tempfile().unwrap();
        let saved = pagemap().save(&second, &image, &layer).unwrap();
        assert_eq!(saved, 2 * PAGE_SIZE, "zeros over data and a new page");
        let extents = data_extents(&layer, PAGES * PAGE_SIZE).unwrap();
        assert_eq!(extents, [4 * PAGE_SIZE..5 * PAGE_SIZE, 63 * PAGE_SIZE..64 * PAGE_SIZE]);

        let third = memory();
        Image::open(vec![base, layer], PAGES * PAGE_SIZE).unwrap().map(&third).unwrap();
        assert_eq!([3, 4, 10, 31, 32, 63].map(|page| read(&third, page)), [3, 0, 0, 31, 32, 9]);
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
        assert!(matches!(pagemap().save(&memory(), &Image::default(), &file), Err(SaveError::NotEmpty)));
    }
}
