//! Copying a root file system image: checked, holes kept, hashed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use sha2::{Digest, Sha256};

/// Bytes moved at a time.
const CHUNK: usize = 256 * 1024;

/// Offset and bytes of ext4's magic number: field `s_magic` of the superblock, which begins at byte 1024.
const EXT4_MAGIC: (u64, [u8; 2]) = (1024 + 0x38, [0x53, 0xef]);

mod ioctl {
    // Makes this file share the extents of another: `linux/fs.h`.
    nix::ioctl_write_int!(ficlone, 0x94, 9);
}

/// Whether `image` begins like an ext4 file system (or its elders, which the same driver mounts).
pub(super) fn is_ext4(image: &mut File) -> io::Result<bool> {
    image.seek(SeekFrom::Start(EXT4_MAGIC.0))?;
    let mut magic = [0; 2];
    match image.read_exact(&mut magic) {
        Ok(()) => Ok(magic == EXT4_MAGIC.1),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Copies `source` into the empty file `target` (sharing extents where the file system can) and returns the SHA-256 of
/// the contents, holes counted as the zeros that they read as. What is hashed is what `target` has, whatever happens to
/// `source` meanwhile.
pub(super) fn copy(source: &mut File, target: &mut File) -> io::Result<String> {
    let size = source.metadata()?.len();
    let shared = share_extents(source, target);
    if !shared {
        target.set_len(size)?;
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let zeros = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        // After a reflink the copy itself is read: the source may change under our hands.
        let read_from = if shared { &mut *target } else { &mut *source };
        let (data, end) = next_data(read_from, offset, size)?;
        hash_zeros(&mut hash, &zeros, data - offset);
        read_from.seek(SeekFrom::Start(data))?;
        offset = data;
        while offset < end {
            let wanted = usize::try_from(end - offset).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut buffer[..wanted];
            if shared {
                target.read_exact(chunk)?;
            } else {
                source.read_exact(chunk)?;
                write_sparse(target, offset, chunk, &zeros)?;
            }
            hash.update(&*chunk);
            offset += wanted as u64;
        }
    }
    Ok(hexadecimal(&hash.finalize()))
}

/// Whether `target` now shares all of `source`'s extents. Any refusal means that the bytes must be copied.
fn share_extents(source: &File, target: &File) -> bool {
    let Ok(raw) = u64::try_from(source.as_raw_fd()) else { return false };
    // SAFETY: FICLONE takes a descriptor by value and touches no memory of ours; both files are open for the call.
    unsafe { ioctl::ficlone(target.as_raw_fd(), raw) }.is_ok()
}

/// The next run of data at or after `offset`, as (start, end), both at most `size`; both are `size` when only a hole is left.
fn next_data(file: &File, offset: u64, size: u64) -> io::Result<(u64, u64)> {
    let seek = |from: u64, whence| -> io::Result<u64> {
        let from = i64::try_from(from).map_err(|_| io::ErrorKind::FileTooLarge)?;
        match lseek(file.as_fd(), from, whence) {
            Ok(found) => Ok(u64::try_from(found).unwrap_or(size).min(size)),
            Err(Errno::ENXIO) => Ok(size),
            Err(errno) => Err(errno.into()),
        }
    };
    let data = seek(offset, Whence::SeekData)?;
    let end = if data < size { seek(data, Whence::SeekHole)? } else { size };
    Ok((data, end))
}

/// Writes the 4 KiB blocks of `chunk` that are not all zero: a fresh file reads as zeros anyway.
fn write_sparse(target: &mut File, offset: u64, chunk: &[u8], zeros: &[u8]) -> io::Result<()> {
    const BLOCK: usize = 4096;
    let mut position = 0;
    while position < chunk.len() {
        let is_zero = |at: usize| {
            let block = &chunk[at..chunk.len().min(at + BLOCK)];
            block == &zeros[..block.len()]
        };
        if is_zero(position) {
            position += BLOCK;
            continue;
        }
        let start = position;
        while position < chunk.len() && !is_zero(position) {
            position += BLOCK;
        }
        target.seek(SeekFrom::Start(offset + start as u64))?;
        target.write_all(&chunk[start..position.min(chunk.len())])?;
    }
    Ok(())
}

fn hash_zeros(hash: &mut Sha256, zeros: &[u8], mut count: u64) {
    while count > 0 {
        let step = usize::try_from(count).unwrap_or(zeros.len()).min(zeros.len());
        hash.update(&zeros[..step]);
        count -= step as u64;
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_the_same_bytes_hash_and_holes() {
        let mut source = tempfile::tempfile().unwrap();
        source.set_len(64 * 1024 * 1024).unwrap();
        source.seek(SeekFrom::Start(20 * 1024 * 1024 + 17)).unwrap();
        source.write_all(b"in the middle").unwrap();
        let mut target = tempfile::tempfile().unwrap();

        let digest = copy(&mut source, &mut target).unwrap();

        let mut expected = vec![0; 64 * 1024 * 1024];
        expected[20 * 1024 * 1024 + 17..][..13].copy_from_slice(b"in the middle");
        assert_eq!(digest, hexadecimal(&Sha256::digest(&expected)));
        let mut found = Vec::new();
        target.rewind().unwrap();
        target.read_to_end(&mut found).unwrap();
        assert!(found == expected);
        assert!(target.metadata().unwrap().blocks() * 512 < 1024 * 1024);
    }

    #[test]
    fn data_up_to_an_odd_end_is_copied() {
        let mut source = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..300_001u32).map(|n| (n % 251) as u8).collect();
        source.write_all(&bytes).unwrap();
        let mut target = tempfile::tempfile().unwrap();

        let digest = copy(&mut source, &mut target).unwrap();

        let mut found = Vec::new();
        target.rewind().unwrap();
        target.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
        assert_eq!(digest, hexadecimal(&Sha256::digest(&bytes)));
    }
}
