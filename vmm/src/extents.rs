//! Where a sparse file has data, as its file system reports it.

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// The first data of `file` at or after `offset`, up to the next hole or to `length`, in bytes; `None` if only a hole follows.
/// The file's position, which descriptors of one open file share, changes but is never used.
///
/// The range is what the kernel says: of a file that changes meanwhile it may be empty, or begin before `offset`.
pub(crate) fn next_extent(file: &File, offset: u64, length: u64) -> io::Result<Option<Range<u64>>> {
    let Some(start) = seek(file, offset, Whence::SeekData)? else { return Ok(None) };
    let end = seek(file, start, Whence::SeekHole)?.unwrap_or(length).min(length);
    Ok(Some(start..end))
}

fn seek(file: &File, offset: u64, whence: Whence) -> io::Result<Option<u64>> {
    match lseek(file, i64::try_from(offset).map_err(io::Error::other)?, whence) {
        Ok(found) => Ok(u64::try_from(found).ok()),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
