//! Copying a root file system image: checked, holes kept, hashed.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use sandpiper_protocol::extents;
use sha2::{Digest, Sha256};

/// Bytes moved at a time.
const CHUNK: usize = 64 * BLOCK;

/// What holes are made of.
const BLOCK: usize = 4096;

/// Where ext4's superblock is, and how long.
const SUPERBLOCK: (u64, usize) = (1024, 1024);

mod ioctl {
    // Makes this file share the extents of another: `linux/fs.h`.
    nix::ioctl_write_int!(ficlone, 0x94, 9);
}

/// How long the ext4 file system (or one of its elders, which the same driver mounts) in `image` is in bytes; `None` when there
/// is none.
pub(super) fn ext4_length(image: &File) -> io::Result<Option<u64>> {
    let mut superblock = [0; SUPERBLOCK.1];
    match image.read_exact_at(&mut superblock, SUPERBLOCK.0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| superblock[at + byte]));
    // `s_magic`
    if superblock[0x38..0x3a] != [0x53, 0xef] {
        return Ok(None);
    }
    // `s_blocks_count_hi` counts with the feature `64bit` of `s_feature_incompat` only.
    let high = if word(0x60) & 0x80 == 0 { 0 } else { word(0x150) };
    let blocks = u64::from(high) << 32 | u64::from(word(0x4));
    // `s_log_block_size`: 1 KiB shifted by it. What is no number of blocks there is no length either.
    let block = 1024_u64.checked_shl(word(0x18)).filter(|block| (1024..=64 * 1024).contains(block));
    Ok(Some(block.and_then(|block| blocks.checked_mul(block)).unwrap_or(u64::MAX)))
}

/// Copies `source` into the empty file `target` (sharing extents where the file system can) and returns a digest of the
/// contents: the SHA-256 of every 4 KiB block that is not all zeros, each after its offset (`u64`, little-endian), and of
/// the file's length. Holes cost nothing that way, and a hole and zeros are the same. What is digested is what `target`
/// has, whatever happens to `source` meanwhile.
pub(super) fn copy(source: &mut File, target: &mut File) -> io::Result<String> {
    let size = source.metadata()?.len();
    let shared = share_extents(source, target);
    if !shared {
        target.set_len(size)?;
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        // After a reflink the copy itself is read: the source may change under our hands.
        let read_from = if shared { &mut *target } else { &mut *source };
        let (data, end) = next_data(read_from, offset, size)?;
        offset = data - data % BLOCK as u64;
        while offset < end {
            let wanted = usize::try_from(size - offset).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut buffer[..wanted];
            let read_from = if shared { &*target } else { &*source };
            read_from.read_exact_at(chunk, offset)?;
            for (start, run) in nonzero_runs(chunk) {
                let at = offset + start as u64;
                for (index, block) in run.chunks(BLOCK).enumerate() {
                    hash.update((at + (index * BLOCK) as u64).to_le_bytes());
                    hash.update(block);
                }
                if !shared {
                    target.write_all_at(run, at)?;
                }
            }
            offset += wanted as u64;
        }
        offset = offset.max(end);
    }
    hash.update(size.to_le_bytes());
    Ok(hexadecimal(&hash.finalize()))
}

/// The runs of blocks in `chunk` that are not all zero, with their offsets in it: a fresh file reads as zeros anyway.
fn nonzero_runs(chunk: &[u8]) -> Vec<(usize, &[u8])> {
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    let mut runs: Vec<(usize, &[u8])> = Vec::new();
    for (index, block) in chunk.chunks(BLOCK).enumerate() {
        if block == &ZEROS[..block.len()] {
            continue;
        }
        let start = index * BLOCK;
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() == start => *run = &chunk[*first..start + block.len()],
            _ => runs.push((start, block)),
        }
    }
    runs
}

/// Whether `target` now shares all of `source`'s extents. Any refusal means that the bytes must be copied.
fn share_extents(source: &File, target: &File) -> bool {
    let Ok(raw) = u64::try_from(source.as_raw_fd()) else { return false };
    // SAFETY: FICLONE takes a descriptor by value and touches no memory of ours; both files are open for the call.
    unsafe { ioctl::ficlone(target.as_raw_fd(), raw) }.is_ok()
}

/// The next run of data at or after `offset`, as (start, end), both at most `size`; both are `size` when only a hole is left.
fn next_data(file: &File, offset: u64, size: u64) -> io::Result<(u64, u64)> {
    let data = extents::next_data(file, offset)?.unwrap_or(size..size);
    Ok((data.start.min(size), data.end.min(size)))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_the_same_bytes_and_holes() {
        let mut source = tempfile::tempfile().unwrap();
        source.set_len(64 << 20).unwrap();
        source.write_all_at(b"in the middle", (20 << 20) + 17).unwrap();
        source.write_all_at(&[1; 9000], (40 << 20) - 1).unwrap();
        let mut target = tempfile::tempfile().unwrap();

        copy(&mut source, &mut target).unwrap();

        assert!(content(&mut target) == content(&mut source));
        assert!(target.metadata().unwrap().blocks() * 512 < 1024 * 1024);
    }

    #[test]
    fn the_digest_tells_contents_apart_and_takes_a_hole_for_zeros() {
        let digest = |fill: &dyn Fn(&File)| {
            let mut source = tempfile::tempfile().unwrap();
            source.set_len(1 << 20).unwrap();
            fill(&source);
            copy(&mut source, &mut tempfile::tempfile().unwrap()).unwrap()
        };

        let one = digest(&|file| file.write_all_at(b"one", 70_000).unwrap());
        let with_zeros = digest(&|file| {
            file.write_all_at(&[0; 4096], 500_000).unwrap();
            file.write_all_at(b"one", 70_000).unwrap();
        });
        let moved = digest(&|file| file.write_all_at(b"one", 70_000 + 4096).unwrap());
        let longer = digest(&|file| {
            file.write_all_at(b"one", 70_000).unwrap();
            file.set_len(2 << 20).unwrap();
        });

        assert_eq!(one, with_zeros);
        assert_ne!(one, moved);
        assert_ne!(one, longer);
    }

    #[test]
    fn data_up_to_an_odd_end_is_copied() {
        let mut source = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..300_001u32).map(|n| (n % 251) as u8).collect();
        source.write_all_at(&bytes, 0).unwrap();
        let mut target = tempfile::tempfile().unwrap();

        copy(&mut source, &mut target).unwrap();

        assert!(content(&mut target) == bytes);
    }

    fn content(file: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }
}
