//! One layer: a sparse file and the map of the blocks it holds.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::statfs::fstatfs;

use sandpiper_protocol::extents;

use super::buffers::{Buffers, MAX_SLICES};
use super::map::BlockMap;
use super::{BLOCK_SIZE, DiskError};

/// Where real zeros come from.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Why a file cannot be a layer.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("Not a regular file")]
    NotAFile,
    #[error("Not open for reading")]
    NotReadable,
    #[error("The top layer must be open for reading and writing, without O_APPEND")]
    NotWritable,
    #[error("The file has {length} bytes, more than the disk's {size}: give the disk at least the size of its layers")]
    TooLong { length: u64, size: u64 },
    #[error("The file system works in blocks of {block_size} bytes: put layers on one with blocks of {BLOCK_SIZE}")]
    FileSystemBlocks { block_size: i64 },
    #[error("The file system does not report holes (SEEK_DATA): put layers on ext4, XFS, btrfs or tmpfs")]
    NoHoles,
    #[error("Data at {offset} does not fill a block of {BLOCK_SIZE} bytes: the file was not written as a layer")]
    PartialBlock { offset: u64 },
    #[error("Cannot {operation} the file")]
    Io {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Where a layer stands in its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// Layers below. With none, holes are zeros, so the data need not come in whole blocks.
    pub(super) below: usize,
    pub(super) writable: bool,
}

impl Position {
    fn is_bottom(self) -> bool {
        self.below == 0
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    file: File,
    /// 0 is the bottom.
    index: usize,
    /// The blocks that are read from this layer if none above holds them.
    pub(super) map: BlockMap,
    /// Length of the file; what the bottom layer's last block lacks reads as zeros.
    length: u64,
    /// Whether something was written that no `fdatasync` has confirmed, perhaps by an earlier process.
    unsynced: bool,
}

impl Layer {
    /// Checks `file` and finds what it holds.
    pub(super) fn open(file: File, disk_size: u64, position: Position) -> Result<Self, LayerError> {
        let metadata = file.metadata().map_err(failed("examine"))?;
        if !metadata.is_file() {
            return Err(LayerError::NotAFile);
        }
        check_access(&file, position.writable)?;
        let mut length = metadata.len();
        if length > disk_size {
            return Err(LayerError::TooLong { length, size: disk_size });
        }
        if !position.is_bottom() {
            // A file system that allocates in larger units reports data where nothing was written.
            let block_size = fstatfs(&file).map_err(failed_errno("examine the file system of"))?.block_size();
            if u64::try_from(block_size) != Ok(BLOCK_SIZE) {
                return Err(LayerError::FileSystemBlocks { block_size });
            }
        }

        let mapped = if position.writable { disk_size } else { length };
        let mut map = BlockMap::new(mapped.div_ceil(BLOCK_SIZE));
        scan(&file, length, position.is_bottom(), &mut map)?;

        if position.writable && length < disk_size {
            // At its full length from the beginning, the file never grows by writing, so no file system allocates ahead
            // of a write. What was added must be a hole, or this file system does not know holes.
            file.set_len(disk_size).map_err(failed("extend"))?;
            if !position.is_bottom() && next_data(&file, length, u64::MAX)?.is_some() {
                return Err(LayerError::NoHoles);
            }
            length = disk_size;
        }
        let unsynced = !position.is_bottom() || position.writable;
        Ok(Self { file, index: position.below, map, length, unsynced })
    }

    /// Whether the file holds no data at all.
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Reads the next `length` bytes of `buffers` from `offset`, all in blocks that this layer holds.
    pub(super) fn read(&self, offset: u64, length: u64, buffers: &mut Buffers<'_, '_>) -> Result<(), DiskError> {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let mut iovecs = [EMPTY; MAX_SLICES];
            let used = buffers.describe(end - at, &mut iovecs);
            // SAFETY: every entry that `describe` filled points to guest memory that `buffers` borrows, so it stays
            // mapped during the call, and is as long as the slice it was made of. The kernel writes there as a guest's
            // CPU might at any moment; no Rust reference to guest memory exists.
            let count =
                unsafe { libc::preadv(self.file.as_raw_fd(), iovecs.as_ptr(), int_count(used), file_offset(at)?) };
            match u64::try_from(count) {
                Ok(0) if at >= self.length => {
                    buffers.fill_with_zeros(end - at);
                    return Ok(());
                }
                Ok(0) => return Err(self.failed("read", at)(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    buffers.advance(count);
                    at += count;
                }
                Err(_) => self.retry_interrupted("read", at)?,
            }
        }
        Ok(())
    }

    /// Reads one whole block that this layer holds.
    pub(super) fn read_block(&self, block: u64, target: &mut Block) -> Result<(), DiskError> {
        let mut filled = 0;
        while filled < target.0.len() {
            let at = block * BLOCK_SIZE + filled as u64;
            match self.file.read_at(&mut target.0[filled..], at) {
                Ok(0) if at >= self.length => {
                    target.0[filled..].fill(0);
                    return Ok(());
                }
                Ok(0) => return Err(self.failed("read", at)(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", at)(error)),
            }
        }
        Ok(())
    }

    /// Writes the next `length` bytes of `buffers` at `offset`, all in blocks that this layer holds already.
    pub(super) fn overwrite(
        &mut self,
        offset: u64,
        length: u64,
        buffers: &mut Buffers<'_, '_>,
    ) -> Result<(), DiskError> {
        self.unsynced = true;
        let end = offset + length;
        let mut at = offset;
        while at < end {
            at += self.write_some(at, end - at, buffers)?;
        }
        Ok(())
    }

    /// Writes whole blocks that this layer does not hold yet from `buffers`.
    pub(super) fn add_blocks(&mut self, blocks: Range<u64>, buffers: &mut Buffers<'_, '_>) -> Result<(), DiskError> {
        self.unsynced = true;
        let end = blocks.end * BLOCK_SIZE;
        let mut at = blocks.start * BLOCK_SIZE;
        while at < end {
            match self.write_some(at, end - at, buffers) {
                Ok(count) => at += count,
                Err(error) => {
                    let complete = at / BLOCK_SIZE;
                    self.map.insert(blocks.start..complete);
                    self.disown(complete..blocks.end);
                    return Err(error);
                }
            }
        }
        self.map.insert(blocks);
        Ok(())
    }

    /// Writes one whole block, held before or not.
    pub(super) fn put_block(&mut self, block: u64, content: &Block) -> Result<(), DiskError> {
        self.write_known(block * BLOCK_SIZE, &content.0)
    }

    /// Writes real zeros over whole blocks, held before or not.
    pub(super) fn put_zeros(&mut self, blocks: Range<u64>) -> Result<(), DiskError> {
        let end = blocks.end * BLOCK_SIZE;
        let mut at = blocks.start * BLOCK_SIZE;
        while at < end {
            let chunk = (end - at).min(ZEROS.len() as u64);
            self.write_known(at, zeros(chunk))?;
            at += chunk;
        }
        Ok(())
    }

    /// Writes real zeros within one block that this layer holds.
    pub(super) fn zero_within(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.unsynced = true;
        self.file.write_all_at(zeros(length), offset).map_err(self.failed("write", offset))
    }

    /// Makes holes of blocks that this layer holds. The caller knows that nothing below has data there.
    pub(super) fn punch(&mut self, blocks: Range<u64>) -> Result<(), DiskError> {
        self.unsynced = true;
        // While this runs, and if it fails, the map goes on to say that the data is here: part of it reads as zeros.
        let failed = self.failed("punch a hole into", blocks.start * BLOCK_SIZE);
        self.punch_file(&blocks).map_err(|errno| failed(errno.into()))?;
        self.map.remove(blocks);
        Ok(())
    }

    /// Waits until everything written is on stable storage.
    pub(super) fn sync(&mut self) -> Result<(), DiskError> {
        if self.unsynced {
            let failed = |source| DiskError::Io { operation: "sync", layer: self.index, offset: None, source };
            self.file.sync_data().map_err(failed)?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Writes whole blocks from the monitor's own memory.
    fn write_known(&mut self, offset: u64, content: &[u8]) -> Result<(), DiskError> {
        self.unsynced = true;
        let blocks = offset / BLOCK_SIZE..(offset + content.len() as u64) / BLOCK_SIZE;
        match self.file.write_all_at(content, offset) {
            Ok(()) => {
                self.map.insert(blocks);
                Ok(())
            }
            Err(error) => {
                self.disown(blocks);
                Err(self.failed("write", offset)(error))
            }
        }
    }

    /// One `pwritev` of at most `length` bytes; returns how many it took, at least one.
    fn write_some(&self, offset: u64, length: u64, buffers: &mut Buffers<'_, '_>) -> Result<u64, DiskError> {
        loop {
            let mut iovecs = [EMPTY; MAX_SLICES];
            let used = buffers.describe(length, &mut iovecs);
            // SAFETY: as in `read`; the kernel only reads from guest memory here.
            let count =
                unsafe { libc::pwritev(self.file.as_raw_fd(), iovecs.as_ptr(), int_count(used), file_offset(offset)?) };
            match u64::try_from(count) {
                Ok(0) => return Err(self.failed("write", offset)(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    buffers.advance(count);
                    return Ok(count);
                }
                Err(_) => self.retry_interrupted("write", offset)?,
            }
        }
    }

    /// Takes out of the file what a failed write may have left in blocks that the map does not claim: it would hide the
    /// layers below once the disk is opened again. Best effort, as the file already failed once.
    fn disown(&mut self, blocks: Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let (held, length) = self.map.run(at, blocks.end - at);
            if !held {
                let _ = self.punch_file(&(at..at + length));
            }
            at += length;
        }
    }

    /// The error of the last system call, unless it only has to be tried again.
    fn retry_interrupted(&self, operation: &'static str, offset: u64) -> Result<(), DiskError> {
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(self.failed(operation, offset)(error)),
        }
    }

    fn failed(&self, operation: &'static str, offset: u64) -> impl FnOnce(io::Error) -> DiskError + use<> {
        let layer = self.index;
        move |source| DiskError::Io { operation, layer, offset: Some(offset), source }
    }

    fn punch_file(&self, blocks: &Range<u64>) -> Result<(), Errno> {
        let range = |number: u64| libc::off_t::try_from(number).map_err(|_| Errno::EFBIG);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (start, length) = (range(blocks.start * BLOCK_SIZE)?, range((blocks.end - blocks.start) * BLOCK_SIZE)?);
        loop {
            match fallocate(&self.file, flags, start, length) {
                Err(Errno::EINTR) => {}
                result => return result,
            }
        }
    }
}

/// The content of one block, outside guest memory.
pub(super) struct Block(pub(super) [u8; 4096]);

impl Block {
    pub(super) fn zeroed() -> Self {
        const { assert!(size_of::<Self>() as u64 == BLOCK_SIZE) };
        Self([0; 4096])
    }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// At most 64 KiB of zeros.
fn zeros(length: u64) -> &'static [u8] {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
    &ZEROS[..length]
}

fn int_count(used: usize) -> libc::c_int {
    // At most MAX_SLICES.
    libc::c_int::try_from(used).unwrap_or(0)
}

fn file_offset(offset: u64) -> Result<libc::off_t, DiskError> {
    libc::off_t::try_from(offset).map_err(|_| DiskError::OutOfRange { offset, length: 0 })
}

fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> LayerError {
    move |source| LayerError::Io { operation, source }
}

fn failed_errno(operation: &'static str) -> impl FnOnce(Errno) -> LayerError {
    move |errno| LayerError::Io { operation, source: errno.into() }
}

/// With `O_APPEND` Linux ignores the offset of a positioned write.
fn check_access(file: &File, writable: bool) -> Result<(), LayerError> {
    let flags = fcntl(file, FcntlArg::F_GETFL).map_err(failed_errno("examine"))?;
    let flags = OFlag::from_bits_truncate(flags);
    match flags & OFlag::O_ACCMODE {
        OFlag::O_RDWR if !writable || !flags.contains(OFlag::O_APPEND) => Ok(()),
        OFlag::O_RDONLY if !writable => Ok(()),
        _ if writable => Err(LayerError::NotWritable),
        _ => Err(LayerError::NotReadable),
    }
}

/// Finds the blocks with data in the first `length` bytes.
fn scan(file: &File, length: u64, bottom: bool, map: &mut BlockMap) -> Result<(), LayerError> {
    let mut at = 0;
    while at < length {
        let Some(Range { start, end }) = next_data(file, at, length)? else { break };
        if start < at || end <= start {
            // Not what the kernel promises, unless the file is changing under us; going on might not end.
            return Err(LayerError::NoHoles);
        }
        if !bottom {
            for offset in [start, end] {
                if !offset.is_multiple_of(BLOCK_SIZE) {
                    return Err(LayerError::PartialBlock { offset });
                }
            }
        }
        map.insert(start / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE));
        at = end;
    }
    Ok(())
}

fn next_data(file: &File, offset: u64, length: u64) -> Result<Option<Range<u64>>, LayerError> {
    let data = extents::next_data(file, offset).map_err(failed("search for holes in"))?;
    Ok(data.map(|data| data.start..data.end.min(length)))
}
