//! Which blocks a layer holds, by what its file system says of holes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// What layers are made of.
pub(super) const BLOCK: u64 = 4096;
/// Bytes that are worked on at a time.
pub(super) const CHUNK: u64 = 1 << 20;

/// The next run of whole blocks from `at` on that `layer` holds.
pub(super) fn next_extent(layer: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let Some(start) = seek(layer, at, Whence::SeekData)? else { return Ok(None) };
    let end = seek(layer, start, Whence::SeekHole)?.unwrap_or(start + BLOCK);
    let length = layer.metadata()?.len();
    Ok(Some((start - start % BLOCK, end.next_multiple_of(BLOCK).min(length.next_multiple_of(BLOCK)))))
}

/// The first run of whole blocks within `at..end` that `layer` does not hold; `(end, end)` when it holds all of them.
pub(super) fn next_hole(layer: &File, at: u64, end: u64) -> io::Result<(u64, u64)> {
    // Beyond the file's end there is nothing but hole.
    let hole = seek(layer, at, Whence::SeekHole)?.unwrap_or(at).next_multiple_of(BLOCK);
    if hole >= end {
        return Ok((end, end));
    }
    let data = seek(layer, hole, Whence::SeekData)?.map_or(end, |data| data - data % BLOCK);
    Ok((hole, data.min(end)))
}

/// `lseek`; `None` where there is nothing more of the kind.
pub(crate) fn seek(file: &File, at: u64, whence: Whence) -> io::Result<Option<u64>> {
    let offset = i64::try_from(at).map_err(io::Error::other)?;
    match lseek(file.as_fd(), offset, whence) {
        Ok(found) => Ok(Some(u64::try_from(found).map_err(io::Error::other)?)),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
