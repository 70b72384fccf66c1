//! Disks as stacks of sparse layers.
//!
//! A [`Disk`] is a stack of files, bottom first, of which the last is written to unless the disk is read-only. **A layer
//! is a sparse file whose holes are the layer below**: the offset in the file is the offset on the disk, and what no layer
//! holds reads as zeros.
//!
//! ```text
//!   block       0   1   2   3   4   5   6   7
//!   top       │   │ T │   │   │ T │   │   │   │   the only layer that is written to
//!   middle    │ M │ M │   │   │   │   │           a checkpoint; may be shorter than the disk
//!   base      │ B │ B │ B │   │   │ B │           shared by every sandbox of a template, through the page cache
//!   reads as    M   T   B   0   T   B   0   0
//! ```
//!
//! There is no other metadata: which blocks a layer holds is what `SEEK_DATA` says when the disk is opened, and is then
//! kept as one bit per 4 KiB (`map`). So a crash cannot leave a map that disagrees with the data, and any file system
//! with holes of 4 KiB will do (ext4, XFS, btrfs, tmpfs); one without is refused with an error that says so.
//!
//! What makes this sound:
//!
//! 1. A block exists in a layer whole or not at all. A write to a part of a block that the top layer does not hold is
//!    completed from below and reaches the file as one write of 4 KiB (`stack`).
//! 2. The map claims a block only after its write succeeded, and where a write failed half-way, what it may have left in
//!    the file is punched out again.
//! 3. Older data never shows through. A hole may be punched only where nothing below has data; elsewhere zeroing writes
//!    real zeros, and discard leaves the block as it is. `FALLOC_FL_ZERO_RANGE` is never used: the unwritten extents it
//!    makes are holes to `SEEK_DATA`. For the same reason a layer must be copied by its extents, never with
//!    `cp --sparse=always`, which turns real zeros into holes.
//! 4. Layers below the top are immutable.
//! 5. A flush is honest: it returns when `fdatasync` has, for every layer written to since it was last synced, including
//!    those that a push has buried. Once a sync failed, the kernel may have dropped the data and would report success the
//!    next time, so all later flushes of that disk fail too. A base layer is on stable storage before anyone stacks on it;
//!    that is the duty of whoever made it.
//!
//! When the host has no space left, a write fails with [`DiskError::Io`] and the block keeps its former content; nothing
//! else happens to the disk, and the same write works as soon as there is space. That is so because space is taken by the
//! write, not by the flush after it: ext4 and XFS reserve it then. Where a file system finds out only at the flush (a network's,
//! a thin volume below), the kernel has dropped the data, and by the fifth point the flush has failed for good.

mod buffers;
mod layer;
mod map;
mod stack;
#[cfg(test)]
pub(crate) mod tests;

use std::io;

pub use self::buffers::{Buffers, MAX_SLICES};
pub use self::layer::LayerError;
pub use self::stack::Disk;

/// The granularity of layers, in bytes.
pub const BLOCK_SIZE: u64 = 4096;

/// Largest disk: the map of a full layer takes 64 MiB.
pub const MAX_DISK_SIZE: u64 = 2 << 40;

/// Why a disk could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    #[error("A disk needs at least one layer")]
    NoLayers,
    #[error("Disk size {size} is not a multiple of {BLOCK_SIZE} between {BLOCK_SIZE} and {MAX_DISK_SIZE}")]
    Size { size: u64 },
    #[error("Cannot use layer {index} (0 is the bottom)")]
    Layer {
        index: usize,
        #[source]
        source: LayerError,
    },
}

/// Why a new top layer was refused. The disk is as it was.
#[derive(Debug, thiserror::Error)]
pub enum PushLayerError {
    #[error("The disk is read-only")]
    ReadOnly,
    #[error("The new layer already holds data")]
    NotEmpty,
    #[error("Cannot use the new layer")]
    Layer(#[source] LayerError),
}

/// Why a read, write, discard, zeroing or flush failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("{length} bytes at {offset} reach beyond the disk's end")]
    OutOfRange { offset: u64, length: u64 },
    #[error("The disk is read-only")]
    ReadOnly,
    #[error("More than {MAX_SLICES} buffers in one request")]
    TooManyBuffers,
    #[error("An earlier flush failed: written data may be lost")]
    SyncLost,
    #[error("The host could not {operation} layer {layer} of a disk")]
    Io {
        operation: &'static str,
        /// 0 is the bottom.
        layer: usize,
        /// On the disk, in bytes, where the operation has a place.
        offset: Option<u64>,
        #[source]
        source: io::Error,
    },
}

impl DiskError {
    /// Whether it will work as soon as somebody makes room on the host. Never so for a flush: see the module's fifth point.
    pub(crate) fn is_no_room(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { offset: Some(_), source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}
