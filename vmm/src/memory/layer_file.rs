//! The file of a memory layer, while it is written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Bytes from which on a stretch is long. Most of what a kernel and small programs write is shorter, and is what a start from the
/// layer reads first.
const LONG: usize = 256 << 10;

/// An empty file that becomes a layer.
#[derive(Debug, Clone, Copy)]
pub struct LayerFile<'f> {
    pub(super) file: &'f File,
    past_cache: bool,
}

impl<'f> LayerFile<'f> {
    /// With `past_cache`, long stretches go to the disk past the page cache, where the file system knows a way: they are not copied
    /// first, and take no memory from what is read more often.
    pub fn new(file: &'f File, past_cache: bool) -> Self {
        Self { file, past_cache }
    }

    /// Writes whole pages, which lie at whole pages in memory too, to their place.
    pub(super) fn write(&self, pages: &[u8], offset: u64) -> io::Result<()> {
        if self.past_cache && pages.len() >= LONG && set_past_cache(self.file, true).is_ok() {
            let written = self.file.write_all_at(pages, offset);
            set_past_cache(self.file, false)?;
            // Some file systems take the flag and no such write.
            if written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
                return self.file.write_all_at(pages, offset);
            }
            return written;
        }
        self.file.write_all_at(pages, offset)
    }
}

/// What is written to a descriptor that goes past the cache has to be of whole blocks, so none stays like that.
fn set_past_cache(file: &File, past_cache: bool) -> io::Result<()> {
    let mut flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_DIRECT, past_cache);
    fcntl(file, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::Memory;
    use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

    const LENGTH: usize = 4 << 20;

    /// On a disk, most likely, which /tmp often is not.
    fn file() -> File {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(LENGTH as u64).unwrap();
        file
    }

    /// How many bytes of the file are in the page cache.
    fn cached(file: &File) -> usize {
        // SAFETY: a mapping of a file at an address of the kernel's choice, which nobody else knows of.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, libc::PROT_READ, libc::MAP_SHARED, fd(file), 0) };
        assert_ne!(map, libc::MAP_FAILED);
        let mut pages = vec![0u8; LENGTH / 4096];
        // SAFETY: the mapping is of this length, and the kernel writes a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(map, LENGTH, pages.as_mut_ptr()) }, 0);
        // SAFETY: nobody has a reference into it.
        unsafe { libc::munmap(map, LENGTH) };
        4096 * pages.into_iter().filter(|page| page & 1 != 0).count()
    }

    fn fd(file: &File) -> libc::c_int {
        std::os::fd::AsRawFd::as_raw_fd(file)
    }

    #[test]
    fn long_stretches_go_past_the_cache_and_short_ones_stay_in_it() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), LENGTH)]).unwrap();
        let content: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at / 4096 % 251).unwrap()).collect();
        memory.write_slice(&content, GuestAddress(0)).unwrap();
        let host = memory.get_host_address(GuestAddress(0)).unwrap();
        // SAFETY: it is all of the memory, which nobody writes to as long as this is used.
        let pages = unsafe { std::slice::from_raw_parts(host, LENGTH) };
        let file = file();
        if set_past_cache(&file, true).is_err() {
            return println!("SKIPPED: layers past the page cache: the file system of /var/tmp knows no such way");
        }
        set_past_cache(&file, false).unwrap();

        let (short, long) = (0..LONG - 4096, LONG..LENGTH);
        let layer = LayerFile::new(&file, true);
        for range in [short.clone(), long] {
            layer.write(&pages[range.clone()], range.start as u64).unwrap();
        }

        assert_eq!(cached(&file), short.len());
        let mut read = vec![0; LENGTH];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read[short.clone()] == content[short] && read[LONG..] == content[LONG..]);
        // What is no whole block is not refused any more.
        file.write_all_at(b"short", 1).unwrap();
    }

    #[test]
    fn without_being_asked_for_nothing_goes_past_the_cache() {
        let file = file();
        LayerFile::new(&file, false).write(&vec![7; LENGTH], 0).unwrap();
        assert_eq!(cached(&file), LENGTH);
    }
}
