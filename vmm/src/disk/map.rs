//! Which blocks a layer holds: one bit per block.
//!
//! A disk of 10 GiB takes 320 KiB per layer, and only of address space: the words come zeroed from the kernel, so that a
//! page of the map costs memory once a bit in it is set (4 KiB for every 128 MiB of disk that is in use).

use std::ops::Range;

const WORD: u64 = u64::BITS as u64;

/// A set of block numbers below a fixed limit. Everything at or beyond the limit is absent.
#[derive(Debug)]
pub(super) struct BlockMap {
    words: Vec<u64>,
    /// How many blocks are present.
    count: u64,
}

impl BlockMap {
    /// An empty map with room for the blocks `0..blocks`.
    pub(super) fn new(blocks: u64) -> Self {
        // On the targets of this crate a usize holds a u64; a disk's size is limited far below.
        let words = usize::try_from(blocks.div_ceil(WORD)).unwrap_or(usize::MAX);
        Self { words: vec![0; words], count: 0 }
    }

    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        self.for_each_word(blocks, |word, mask| *word |= mask);
    }

    pub(super) fn remove(&mut self, blocks: Range<u64>) {
        self.for_each_word(blocks, |word, mask| *word &= !mask);
    }

    /// Whether `block` is present, and how many blocks from it on, at most `limit`, are the same.
    pub(super) fn run(&self, block: u64, limit: u64) -> (bool, u64) {
        let present = self.word(block / WORD) >> (block % WORD) & 1 == 1;
        let mut length = 0;
        while length < limit {
            let at = block + length;
            if at / WORD >= self.words.len() as u64 {
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
        usize::try_from(index).ok().and_then(|index| self.words.get(index)).copied().unwrap_or(0)
    }

    /// Calls `change` with each word that `blocks` touches and the mask of its bits there.
    fn for_each_word(&mut self, blocks: Range<u64>, change: impl Fn(&mut u64, u64)) {
        let mut at = blocks.start;
        while at < blocks.end {
            let next = ((at / WORD + 1) * WORD).min(blocks.end);
            let count = next - at;
            let mask = (u64::MAX >> (WORD - count)) << (at % WORD);
            if let Some(word) = usize::try_from(at / WORD).ok().and_then(|index| self.words.get_mut(index)) {
                let before = u64::from(word.count_ones());
                change(word, mask);
                self.count = self.count - before + u64::from(word.count_ones());
            }
            at = next;
        }
    }
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
