//! Which blocks a layer holds: one bit per block.
//!
//! Bits are kept in chunks, of which there are only those that a bit was set in: half a KiB for every 16 MiB of a disk that is in use,
//! and up to the last of these 8 bytes for every 16 MiB. Each machine has maps of its own, also of the layers that it shares.

use std::iter;
use std::ops::Range;

const WORD: u64 = u64::BITS as u64;
/// Words of a chunk.
const CHUNK: usize = 64;

/// A set of block numbers below a fixed limit. Everything at or beyond the limit is absent.
#[derive(Debug)]
pub(super) struct BlockMap {
    /// Up to the last one that is there.
    chunks: Vec<Option<Box<[u64; CHUNK]>>>,
    /// There is room for so many.
    words: usize,
    /// How many blocks are present.
    count: u64,
}

impl BlockMap {
    /// An empty map with room for the blocks `0..blocks`.
    pub(super) fn new(blocks: u64) -> Self {
        // On the targets of this crate a usize holds a u64; a disk's size is limited far below.
        let words = usize::try_from(blocks.div_ceil(WORD)).unwrap_or(usize::MAX);
        Self { chunks: Vec::new(), words, count: 0 }
    }

    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        for (index, mask) in words(blocks).take_while(|(index, _)| *index < self.words) {
            if self.chunks.len() <= index / CHUNK {
                self.chunks.resize_with(index / CHUNK + 1, || None);
            }
            let chunk = self.chunks[index / CHUNK].get_or_insert_with(|| Box::new([0; CHUNK]));
            let word = &mut chunk[index % CHUNK];
            self.count += u64::from((mask & !*word).count_ones());
            *word |= mask;
        }
    }

    pub(super) fn remove(&mut self, blocks: Range<u64>) {
        for (index, mask) in words(blocks).take_while(|(index, _)| *index < self.words) {
            let Some(Some(chunk)) = self.chunks.get_mut(index / CHUNK) else { continue };
            let word = &mut chunk[index % CHUNK];
            self.count -= u64::from((mask & *word).count_ones());
            *word &= !mask;
        }
    }

    /// Whether `block` is present, and how many blocks from it on, at most `limit`, are the same.
    pub(super) fn run(&self, block: u64, limit: u64) -> (bool, u64) {
        let present = self.word(block / WORD) >> (block % WORD) & 1 == 1;
        let mut length = 0;
        while length < limit {
            let at = block + length;
            if at / WORD >= self.words as u64 {
                return (present, if present { length } else { limit });
            }
            let rest = self.word(at / WORD) >> (at % WORD);
            let in_word = WORD - at % WORD;
            let same = u64::from(if present { rest.trailing_ones() } else { rest.trailing_zeros() }).min(in_word);
            length += same;
            if same < in_word {
                break;
            }
        }
        (present, length.min(limit))
    }

    /// Whether no block is present.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn word(&self, index: u64) -> u64 {
        let Ok(index) = usize::try_from(index) else { return 0 };
        let chunk = self.chunks.get(index / CHUNK).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[index % CHUNK])
    }
}

/// The words that `blocks` touch, by their indices, each with the mask of their bits in it.
fn words(blocks: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let mut at = blocks.start;
    iter::from_fn(move || {
        let count = (WORD - at % WORD).min(blocks.end.checked_sub(at).filter(|left| *left > 0)?);
        let mask = (u64::MAX >> (WORD - count)) << (at % WORD);
        let index = usize::try_from(at / WORD).ok()?;
        at += count;
        Some((index, mask))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_presence_changes_and_cross_words() {
        let mut map = BlockMap::new(300);
        map.insert(60..200);

        assert_eq!(map.run(0, 300), (false, 60));
        assert_eq!(map.run(60, 300), (true, 140));
        assert_eq!(map.run(100, 30), (true, 30));
        assert_eq!(map.run(200, 100), (false, 100));
    }

    #[test]
    fn runs_go_on_from_chunk_to_chunk_whether_these_are_there_or_not() {
        const BLOCKS: u64 = WORD * CHUNK as u64;
        let mut map = BlockMap::new(9 * BLOCKS);
        map.insert(2 * BLOCKS - 3..4 * BLOCKS + 5);
        map.remove(0..7);
        map.remove(6 * BLOCKS..9 * BLOCKS);

        assert_eq!(map.run(0, u64::MAX), (false, 2 * BLOCKS - 3));
        assert_eq!(map.run(2 * BLOCKS - 3, u64::MAX), (true, 2 * BLOCKS + 8));
        assert_eq!(map.run(4 * BLOCKS + 5, 4 * BLOCKS), (false, 4 * BLOCKS));
        assert_eq!(map.chunks.iter().flatten().count(), 4);
    }

    #[test]
    fn removing_splits_a_run() {
        let mut map = BlockMap::new(256);
        map.insert(0..256);
        map.remove(64..128);

        assert_eq!(map.run(0, 256), (true, 64));
        assert_eq!(map.run(64, 256), (false, 64));
        assert_eq!(map.run(128, 256), (true, 128));
    }

    #[test]
    fn blocks_beyond_the_map_are_absent() {
        let mut map = BlockMap::new(64);
        map.insert(60..64);

        assert_eq!(map.run(60, 100), (true, 4));
        assert_eq!(map.run(64, 100), (false, 100));
        assert_eq!(map.run(1 << 40, 7), (false, 7));
    }

    #[test]
    fn a_map_is_empty_until_something_is_inserted_and_again_after_its_removal() {
        let mut map = BlockMap::new(128);
        assert!(map.is_empty());
        map.insert(127..128);
        assert!(!map.is_empty());
        map.remove(0..128);
        assert!(map.is_empty());
    }
}
