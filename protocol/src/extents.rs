//! Which bytes of a layer are its own. Disks and memories are sparse files that the agent makes and the monitor reads, and in
//! both a hole means "as the layer below".

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// The first data of `file` at or after `from`, up to the next hole or the file's end, in bytes, as its file system reports
/// it; `None` if only a hole follows. The file's position, which descriptors of one open file share, changes.
///
/// Of a file that changes meanwhile the range may be empty.
///
/// # Errors
/// What the file system reports; `from` may be at most `i64::MAX`.
pub fn next_data(file: &File, from: u64) -> io::Result<Option<Range<u64>>> {
    let Some(start) = seek(file, from, Whence::SeekData)? else { return Ok(None) };
    // `ENXIO` is of a file that was cut off meanwhile.
    Ok(seek(file, start, Whence::SeekHole)?.map(|end| start..end))
}

/// Where the first hole of `file` at or after `from` begins, which is its end if it has none there; `None` beyond the end.
///
/// # Errors
/// What the file system reports; `from` may be at most `i64::MAX`.
pub fn next_hole(file: &File, from: u64) -> io::Result<Option<u64>> {
    seek(file, from, Whence::SeekHole)
}

fn seek(file: &File, from: u64, whence: Whence) -> io::Result<Option<u64>> {
    match lseek(file, i64::try_from(from).map_err(io::Error::other)?, whence) {
        Ok(found) => u64::try_from(found).map(Some).map_err(io::Error::other),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BLOCK: u64 = 4096;

    #[test]
    fn data_and_holes_are_found_from_any_place_of_a_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * BLOCK).unwrap();
        file.write_all_at(&[1; 2 * 4096], 2 * BLOCK).unwrap();

        let data = |from: u64| next_data(&file, from).unwrap();
        assert_eq!([data(0), data(3 * BLOCK)], [Some(2 * BLOCK..4 * BLOCK), Some(3 * BLOCK..4 * BLOCK)]);
        assert_eq!([data(4 * BLOCK), data(9 * BLOCK)], [None, None]);
        let hole = |from: u64| next_hole(&file, from).unwrap();
        assert_eq!([hole(0), hole(2 * BLOCK), hole(8 * BLOCK)], [Some(0), Some(4 * BLOCK), None]);
        file.set_len(4 * BLOCK).unwrap();
        assert_eq!(next_hole(&file, 2 * BLOCK).unwrap(), Some(4 * BLOCK));
    }
}
