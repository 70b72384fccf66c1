//! Which whole blocks a layer holds.

use std::fs::File;
use std::io;

use sandpiper_protocol::extents;

/// What layers are made of.
pub(super) const BLOCK: u64 = 4096;
/// Bytes that are worked on at a time.
pub(super) const CHUNK: u64 = 1 << 20;

/// The next run of whole blocks from `at` on that `layer` holds.
pub(super) fn next_extent(layer: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let data = extents::next_data(layer, at)?;
    Ok(data.map(|data| (data.start - data.start % BLOCK, data.end.next_multiple_of(BLOCK))))
}

/// The first run of whole blocks within `at..end` that `layer` does not hold; `(end, end)` when it holds all of them.
pub(super) fn next_hole(layer: &File, at: u64, end: u64) -> io::Result<(u64, u64)> {
    // Beyond the file's end there is nothing but hole.
    let hole = extents::next_hole(layer, at)?.unwrap_or(at).next_multiple_of(BLOCK);
    if hole >= end {
        return Ok((end, end));
    }
    let data = extents::next_data(layer, hole)?.map_or(end, |data| data.start - data.start % BLOCK);
    Ok((hole, data.min(end)))
}
