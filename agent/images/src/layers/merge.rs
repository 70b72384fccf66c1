//! Makes one layer of two.
//!
//! ```text
//!   upper   │   │ U │   │ U │   │            upper   │ L │ U │   │ U │   │
//!   lower   │ L │ L │   │   │   │   ──▶
//! ```
//!
//! Every block that the lower layer holds and the upper does not is copied into the upper; then the lower's link goes from
//! the folder. What the copy changes nobody can see: where the upper layer had a hole, whoever reads through it found the
//! very bytes that are in it now. So the copy may be broken off anywhere, even by a power cut, and the file may have other
//! owners, as long as the two are neighbours in that order for everyone who has the upper one. They are: a layer gets its
//! place once, and owners take over whole chains from the bottom.
//!
//! Copied are all blocks that the lower layer holds, those of zeros too: a hole in their place would let older data
//! through.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use super::Layer;
use super::digest::{self, Note, Visits};
use super::extents::{CHUNK, next_extent, next_hole};

/// Layers of a disk beyond which it is shortened.
pub const LONG_DISK: usize = 8;
/// Layers of a memory image beyond which it is shortened.
pub const LONG_MEMORY: usize = 3;

/// The two neighbours, lower first, whose merge costs least; `None` when the chain has at most `most` layers or none of
/// its layers may be touched: what is damaged stays as it is. All of `layers` must be immutable. Blocks.
pub fn candidates<'a>(folder: &Path, layers: &'a [Layer], most: usize) -> Option<(&'a Layer, &'a Layer)> {
    if layers.len() <= most {
        return None;
    }
    let may_be_touched = |layer: &Layer| !layer.shared && !digest::is_damaged(&folder.join(&layer.name));
    let pairs = layers.windows(2).filter(|pair| pair.iter().all(may_be_touched));
    let cost = |pair: &&[Layer]| std::fs::metadata(folder.join(&pair[0].name)).map_or(u64::MAX, |data| data.blocks());
    pairs.min_by_key(cost).map(|pair| (&pair[0], &pair[1]))
}

/// Copies into `upper` what it lacks and `lower` holds, and waits until that is on stable storage. Between two pieces it
/// rests for `pause`, and asks `go_on` whether to. `Ok(false)` when that said no. Blocks.
///
/// # Errors
/// Where one of the two cannot be opened, `lower` not be read, or `upper` not be written or synced. What was copied by then
/// stays, and changes nothing for who reads the two together.
pub fn fill(
    lower: &Path,
    upper: &Path,
    visits: &Visits,
    pause: Duration,
    go_on: impl Fn() -> bool,
) -> io::Result<bool> {
    let lower = File::open(lower)?;
    let upper = OpenOptions::new().read(true).write(true).open(upper)?;
    let visit = visits.begin(&upper)?;
    let mut note = Note::take(&upper)?;
    let finished = copy(&lower, &upper, note.as_mut(), pause, go_on)?;
    upper.sync_data()?;
    if let Some(Err(error)) = note.and_then(|note| visit.if_alone(|| note.write(&upper))) {
        tracing::debug!(%error, "a merged layer gets another digest later");
    }
    Ok(finished)
}

fn copy(
    lower: &File,
    upper: &File,
    mut note: Option<&mut Note>,
    pause: Duration,
    go_on: impl Fn() -> bool,
) -> io::Result<bool> {
    let mut buffer = vec![0; usize::try_from(CHUNK).unwrap_or(1 << 20)];
    let mut at = 0;
    while let Some((start, end)) = next_extent(lower, at)? {
        let mut here = start;
        while here < end {
            // The upper layer's part from here on: a hole that is filled, or data that is skipped.
            let (hole, after) = next_hole(upper, here, end)?;
            here = hole;
            while here < after {
                if !go_on() {
                    return Ok(false);
                }
                let length = usize::try_from((after - here).min(CHUNK)).unwrap_or(buffer.len());
                lower.read_exact_at(&mut buffer[..length], here)?;
                upper.write_all_at(&buffer[..length], here)?;
                if let Some(note) = &mut note {
                    note.add(&buffer[..length], here);
                }
                here += length as u64;
                std::thread::sleep(pause);
            }
        }
        at = end;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::extents::{BLOCK, next_extent};
    use super::*;
    use std::path::PathBuf;

    const BLOCKS: u64 = 600;

    /// A layer that holds these blocks, filled with the byte.
    fn layer(folder: &Path, name: &str, held: &[(u64, u8)], blocks: u64) -> PathBuf {
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.set_len(blocks * BLOCK).unwrap();
        for (block, byte) in held {
            file.write_all_at(&[*byte; 4096], block * BLOCK).unwrap();
        }
        path
    }

    /// What a guest reads of `block` through these layers, top first, and zeros below them.
    fn read(layers: &[&Path], block: u64) -> u8 {
        for path in layers {
            if holds(path, block) {
                let mut byte = [0];
                File::open(path).unwrap().read_exact_at(&mut byte, block * BLOCK).unwrap();
                return byte[0];
            }
        }
        0
    }

    fn holds(path: &Path, block: u64) -> bool {
        let file = File::open(path).unwrap();
        next_extent(&file, block * BLOCK).unwrap().is_some_and(|(start, _)| start == block * BLOCK)
    }

    #[test]
    fn what_is_read_through_the_upper_layer_stays_the_same_without_the_lower_one() {
        let folder = tempfile::tempdir().unwrap();
        let base = layer(folder.path(), "base", &[(0, 1), (1, 1), (2, 1), (3, 1), (BLOCKS - 1, 1)], BLOCKS);
        // Block 3 was zeroed over older data.
        let lower = layer(folder.path(), "lower", &[(1, 2), (2, 2), (3, 0), (300, 2), (BLOCKS - 1, 2)], BLOCKS);
        let upper = layer(folder.path(), "upper", &[(2, 3), (301, 3)], BLOCKS);
        let before: Vec<u8> = (0..BLOCKS).map(|block| read(&[&upper, &lower, &base], block)).collect();

        assert!(fill(&lower, &upper, &Visits::default(), Duration::ZERO, || true).unwrap());

        let after: Vec<u8> = (0..BLOCKS).map(|block| read(&[&upper, &base], block)).collect();
        assert_eq!(after, before);
        assert!(!holds(&upper, 0) && holds(&upper, 3) && holds(&upper, BLOCKS - 1));
    }

    #[test]
    fn a_shorter_upper_layer_takes_what_is_beyond_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let lower = layer(folder.path(), "lower", &[(0, 2), (500, 2)], BLOCKS);
        let upper = layer(folder.path(), "upper", &[(0, 3)], 2);

        assert!(fill(&lower, &upper, &Visits::default(), Duration::ZERO, || true).unwrap());

        assert_eq!((read(&[&upper], 0), read(&[&upper], 500), read(&[&upper], 400)), (3, 2, 0));
    }

    #[test]
    fn a_merge_that_was_broken_off_is_finished_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let held: Vec<(u64, u8)> = (0..BLOCKS).map(|block| (block, 2)).collect();
        let lower = layer(folder.path(), "lower", &held, BLOCKS);
        let upper = layer(folder.path(), "upper", &[(5, 3)], BLOCKS);
        let pieces = std::cell::Cell::new(0);

        let first =
            fill(&lower, &upper, &Visits::default(), Duration::ZERO, || pieces.replace(pieces.get() + 1) < 2).unwrap();
        let (early, late) = (read(&[&upper, &lower], 0), read(&[&upper, &lower], BLOCKS - 1));
        let second = fill(&lower, &upper, &Visits::default(), Duration::ZERO, || true).unwrap();

        assert!(!first && second && !holds(&lower, BLOCKS));
        assert_eq!((early, late), (2, 2));
        assert!((0..BLOCKS).all(|block| read(&[&upper], block) == if block == 5 { 3 } else { 2 }));
    }

    #[test]
    fn the_cheapest_pair_of_own_layers_is_taken_and_only_of_a_long_chain() {
        let folder = tempfile::tempdir().unwrap();
        let held = |blocks: u64| (0..blocks).map(|block| (block, 1)).collect::<Vec<_>>();
        layer(folder.path(), "base", &[], BLOCKS);
        layer(folder.path(), "one", &held(40), BLOCKS);
        layer(folder.path(), "two", &held(4), BLOCKS);
        layer(folder.path(), "three", &held(400), BLOCKS);
        let own = |name: &str| Layer::own(name.into());
        let chain = [Layer { name: "base".into(), shared: true }, own("one"), own("two"), own("three")];

        assert!(candidates(folder.path(), &chain, 4).is_none());
        let (lower, upper) = candidates(folder.path(), &chain, 3).unwrap();
        assert_eq!((lower.name.as_str(), upper.name.as_str()), ("two", "three"));
        assert!(candidates(folder.path(), &chain[..2], 1).is_none());
    }
}
