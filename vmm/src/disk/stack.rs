//! The disk itself: requests are cut into runs of blocks that one layer answers for.
//!
//! How a write treats a block, by who holds it:
//!
//! | block | whole block written | part of a block written |
//! |---|---|---|
//! | held by the top layer | written in place | written in place |
//! | held below, or by nobody | written, then claimed | read from below, completed, written as one, then claimed |

use std::fs::File;

use super::layer::{Block, Layer, Position};
use super::{BLOCK_SIZE, Buffers, DiskError, MAX_DISK_SIZE, OpenDiskError, PushLayerError};

/// A stack of layers; see the [module](super) for what it promises.
#[derive(Debug)]
pub struct Disk {
    /// Bottom first, never empty.
    layers: Vec<Layer>,
    size: u64,
    read_only: bool,
    /// A flush has failed: what it should have made durable may be lost.
    sync_lost: bool,
}

impl Disk {
    /// Opens the disk of `size` bytes, a multiple of [`BLOCK_SIZE`], whose layers are `layers`, bottom first.
    ///
    /// The last one is written to and must be open for that, unless `read_only`. A layer may be shorter than the disk; the
    /// one that is written to is extended to the disk's size. Takes two `lseek` per extent of data.
    ///
    /// # Errors
    ///
    /// No layers, a bad size, or a file that cannot be a layer in its place.
    pub fn open(layers: Vec<File>, size: u64, read_only: bool) -> Result<Self, OpenDiskError> {
        if size == 0 || !size.is_multiple_of(BLOCK_SIZE) || size > MAX_DISK_SIZE {
            return Err(OpenDiskError::Size { size });
        }
        let Some(top) = layers.len().checked_sub(1) else {
            return Err(OpenDiskError::NoLayers);
        };
        let open = |(index, file): (usize, File)| {
            let position = Position { below: index, writable: index == top && !read_only };
            Layer::open(file, size, position).map_err(|source| OpenDiskError::Layer { index, source })
        };
        let layers = layers.into_iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(Self { layers, size, read_only, sync_lost: false })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Fills `buffers` from `offset`.
    ///
    /// # Errors
    /// The range, in bytes, reaches beyond the disk's end, or a layer cannot be read.
    pub fn read(&self, offset: u64, mut buffers: Buffers<'_, '_>) -> Result<(), DiskError> {
        let end = self.end_of(offset, buffers.remaining())?;
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_SIZE;
            let (holder, run) = holder(&self.layers, block, end.div_ceil(BLOCK_SIZE) - block);
            let length = ((block + run) * BLOCK_SIZE).min(end) - at;
            match holder {
                Some(layer) => layer.read(at, length, &mut buffers)?,
                None => buffers.fill_with_zeros(length),
            }
            at += length;
        }
        Ok(())
    }

    /// Writes `buffers` at `offset`. After an error a part of it may be written.
    ///
    /// # Errors
    /// The disk is read-only, the range reaches beyond its end, or a layer cannot be read or written.
    pub fn write(&mut self, offset: u64, mut buffers: Buffers<'_, '_>) -> Result<(), DiskError> {
        let end = self.end_of(offset, buffers.remaining())?;
        let (top, below) = self.split()?;
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_SIZE;
            let (held, run) = top.map.run(block, end.div_ceil(BLOCK_SIZE) - block);
            let run_end = ((block + run) * BLOCK_SIZE).min(end);
            let whole_blocks = block..run_end / BLOCK_SIZE;
            if held {
                top.overwrite(at, run_end - at, &mut buffers)?;
                at = run_end;
            } else if at.is_multiple_of(BLOCK_SIZE) && !whole_blocks.is_empty() {
                at = whole_blocks.end * BLOCK_SIZE;
                top.add_blocks(whole_blocks, &mut buffers)?;
            } else {
                let (start, length) = (at % BLOCK_SIZE, ((block + 1) * BLOCK_SIZE).min(end) - at);
                complete_block(top, below, block, start, length, |part| {
                    buffers.copy_to(part);
                })?;
                at += length;
            }
        }
        Ok(())
    }

    /// Makes a range read as zeros. Space is freed where nothing below has data, used where something has.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        let end = self.end_of(offset, length)?;
        let (top, below) = self.split()?;
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_SIZE;
            let whole_blocks = block..end / BLOCK_SIZE;
            if at.is_multiple_of(BLOCK_SIZE) && !whole_blocks.is_empty() {
                let (hidden, run) = holder(below, block, whole_blocks.end - block);
                let run = block..block + run;
                at = run.end * BLOCK_SIZE;
                // A hole is as good as zeros where nothing is below; a file system that cannot make one gets zeros.
                if hidden.is_some() || punch_held(top, run.clone()).is_err() {
                    top.put_zeros(run)?;
                }
            } else {
                let length = ((block + 1) * BLOCK_SIZE).min(end) - at;
                if top.map.run(block, 1).0 {
                    top.zero_within(at, length)?;
                } else if holder(below, block, 1).0.is_some() {
                    complete_block(top, below, block, at % BLOCK_SIZE, length, |part| part.fill(0))?;
                }
                at += length;
            }
        }
        Ok(())
    }

    /// Frees what the range takes, where that is possible: each whole block in it reads as zeros afterwards, or, where a
    /// layer below has data, as before. Blocks that the range covers in part stay as they are.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn discard(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        let end = self.end_of(offset, length)? / BLOCK_SIZE;
        let (top, below) = self.split()?;
        let mut block = offset.div_ceil(BLOCK_SIZE);
        while block < end {
            let (hidden, run) = holder(below, block, end - block);
            if hidden.is_none() {
                punch_held(top, block..block + run)?;
            }
            block += run;
        }
        Ok(())
    }

    /// Returns when everything written before is on stable storage.
    ///
    /// # Errors
    /// The host could not sync a layer, now or in an earlier flush: what it should have saved may be lost.
    pub fn flush(&mut self) -> Result<(), DiskError> {
        if self.read_only {
            return Ok(());
        }
        if self.sync_lost {
            return Err(DiskError::SyncLost);
        }
        for layer in &mut self.layers {
            if let Err(error) = layer.sync() {
                self.sync_lost = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Puts an empty file on top; from now on that one is written to, and the former top never again. The time this takes
    /// does not depend on the disk's content.
    ///
    /// # Errors
    /// The disk is read-only, or `file` cannot be a layer of it or is not empty. The disk is then as before.
    pub fn push_layer(&mut self, file: File) -> Result<(), PushLayerError> {
        if self.read_only {
            return Err(PushLayerError::ReadOnly);
        }
        let position = Position { below: self.layers.len(), writable: true };
        let layer = Layer::open(file, self.size, position).map_err(PushLayerError::Layer)?;
        if !layer.is_empty() {
            return Err(PushLayerError::NotEmpty);
        }
        self.layers.push(layer);
        Ok(())
    }

    /// Checks a range and returns its end.
    fn end_of(&self, offset: u64, length: u64) -> Result<u64, DiskError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(end),
            _ => Err(DiskError::OutOfRange { offset, length }),
        }
    }

    /// The layer to write to, and those below.
    fn split(&mut self) -> Result<(&mut Layer, &[Layer]), DiskError> {
        match self.layers.split_last_mut() {
            Some((top, below)) if !self.read_only => Ok((top, below)),
            _ => Err(DiskError::ReadOnly),
        }
    }
}

/// The layer that `block` is read from, and for how many blocks from there, at most `limit`, that is so.
fn holder(layers: &[Layer], block: u64, limit: u64) -> (Option<&Layer>, u64) {
    let mut run = limit;
    for layer in layers.iter().rev() {
        let (held, length) = layer.map.run(block, run);
        if held {
            return (Some(layer), length);
        }
        run = length;
    }
    (None, run)
}

/// Gives the top layer a block of which only the `length` bytes from `start` are new: the rest comes from below.
fn complete_block(
    top: &mut Layer,
    below: &[Layer],
    block: u64,
    start: u64,
    length: u64,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), DiskError> {
    let mut content = Block::zeroed();
    if let (Some(layer), _) = holder(below, block, 1) {
        layer.read_block(block, &mut content)?;
    }
    let part = start..start + length;
    if let (Ok(from), Ok(to)) = (usize::try_from(part.start), usize::try_from(part.end))
        && let Some(part) = content.0.get_mut(from..to)
    {
        fill(part);
    }
    top.put_block(block, &content)
}

/// Makes holes of those of `blocks` that `top` holds.
fn punch_held(top: &mut Layer, blocks: std::ops::Range<u64>) -> Result<(), DiskError> {
    let mut at = blocks.start;
    while at < blocks.end {
        let (held, run) = top.map.run(at, blocks.end - at);
        if held {
            top.punch(at..at + run)?;
        }
        at += run;
    }
    Ok(())
}
