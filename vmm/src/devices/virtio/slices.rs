//! Pieces of guest memory that a descriptor chain is made of.
//!
//! A driver cuts what it sends, and the room that it offers, into buffers in whatever way it likes. Devices see one string
//! of bytes, which stays where it is: data moves by system calls that take a list of pieces, without a copy in between. The
//! guest can change any byte at any time, so what is looked at is copied out first.
//!
//! [`Slices`] owns a list that is cut up: a header comes off, what is not wanted stays. A block request is not cut, only gone
//! through, in as many system calls as its disk's layers take: for that there is [`Buffers`](crate::disk::Buffers), which
//! borrows.

use virtio_queue::DescriptorChain;
use vm_memory::{GuestMemory, Permissions, VolatileSlice};

use super::Memory;

/// Most pieces of one chain. More than any driver uses; it keeps the lists for system calls short.
const MAX_SLICES: usize = 64;

/// What a chain is for, and so which of its buffers may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    FromGuest,
    ToGuest,
}

/// A chain that cannot be used: the wrong kind of buffer, too many of them, outside memory, or without an end.
#[derive(Debug)]
pub(super) struct Malformed;

/// The bytes of a chain, or some of them.
#[derive(Debug, Default)]
pub(super) struct Slices<'m> {
    pieces: Vec<VolatileSlice<'m>>,
    len: usize,
}

impl<'m> Slices<'m> {
    /// Collects the buffers of `chain`, all of which must be for `direction`.
    pub(super) fn of_chain(
        memory: &'m Memory,
        chain: DescriptorChain<&'m Memory>,
        direction: Direction,
    ) -> Result<Self, Malformed> {
        let access = match direction {
            Direction::FromGuest => Permissions::Read,
            Direction::ToGuest => Permissions::Write,
        };
        let mut slices = Self::default();
        // The iterator also ends at a loop, a table outside guest memory, or an index outside its table.
        let mut ended = false;
        for descriptor in chain {
            if descriptor.is_write_only() != (direction == Direction::ToGuest) {
                return Err(Malformed);
            }
            let pieces =
                memory.get_slices(descriptor.addr(), descriptor.len() as usize, access).map_err(|_| Malformed)?;
            for piece in pieces {
                slices.push(piece.map_err(|_| Malformed)?)?;
            }
            ended = !descriptor.has_next();
        }
        if ended { Ok(slices) } else { Err(Malformed) }
    }

    pub(super) fn push(&mut self, slice: VolatileSlice<'m>) -> Result<(), Malformed> {
        if slice.is_empty() {
            return Ok(());
        }
        if self.pieces.len() == MAX_SLICES {
            return Err(Malformed);
        }
        // At most MAX_SLICES pieces of 4 GiB: no overflow.
        self.len += slice.len();
        self.pieces.push(slice);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn pieces(&self) -> &[VolatileSlice<'m>] {
        &self.pieces
    }

    /// Removes the first `count` bytes (or all there are) and returns them.
    pub(super) fn split_front(&mut self, count: usize) -> Slices<'m> {
        let mut front = Slices::default();
        let mut left = count;
        let mut whole = 0;
        for piece in &mut self.pieces {
            if left == 0 {
                break;
            }
            match piece.split_at(left) {
                Ok((head, tail)) if !tail.is_empty() => {
                    front.pieces.push(head);
                    *piece = tail;
                    left = 0;
                }
                // The piece ends here or earlier: it moves over entirely.
                _ => {
                    front.pieces.push(*piece);
                    left -= piece.len();
                    whole += 1;
                }
            }
        }
        self.pieces.drain(..whole);
        front.len = count - left;
        self.len -= front.len;
        front
    }

    /// Copies to `target` from the start, as much as either has.
    pub(super) fn copy_to(&self, target: &mut [u8]) {
        copy_to(&self.pieces, target);
    }

    /// Copies from the start of `source`, as much as either has.
    pub(super) fn copy_from(&self, source: &[u8]) {
        copy_from(&self.pieces, source);
    }
}

/// Copies from `pieces` to `target`, as much as either has.
pub(super) fn copy_to(pieces: &[VolatileSlice<'_>], target: &mut [u8]) {
    let mut at = 0;
    for piece in pieces {
        at += piece.copy_to(&mut target[at..]);
    }
}

/// Copies from `source` to `pieces`, as much as either has.
pub(super) fn copy_from(pieces: &[VolatileSlice<'_>], source: &[u8]) {
    let mut left = source;
    for piece in pieces {
        if left.is_empty() {
            break;
        }
        let (now, later) = left.split_at(left.len().min(piece.len()));
        piece.copy_from(now);
        left = later;
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    #[test]
    fn split_front_cuts_within_and_between_pieces() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        memory.write_slice(b"abcdefgh", GuestAddress(0)).expect("in memory");
        let mut all = Slices::default();
        for (addr, len) in [(0, 3), (3, 3), (6, 2)] {
            for slice in memory.get_slices(GuestAddress(addr), len, Permissions::Write).expect("in memory") {
                all.push(slice.expect("in memory")).expect("few enough");
            }
        }

        let cuts: Vec<Vec<u8>> = [1, 2, 4, 9]
            .iter()
            .map(|count| {
                let front = all.split_front(*count);
                let mut bytes = vec![0; front.len()];
                front.copy_to(&mut bytes);
                bytes
            })
            .collect();

        assert_eq!(cuts, [&b"a"[..], b"bc", b"defg", b"h"]);
        assert!(all.is_empty());
        assert_eq!(all.pieces().len(), 0);
    }
}
