//! The room for frames that a guest has posted: chains that were taken off the receive queue and hold nothing yet.

use std::collections::VecDeque;

use vm_memory::VolatileSlice;

use super::MAX_FRAME;
use super::header::HEADER_LEN;
use crate::devices::virtio::slices::{Direction, Slices};
use crate::devices::virtio::{Memory, Ring, RingError};

/// Enough for any frame.
const ENOUGH: usize = HEADER_LEN + MAX_FRAME;

/// Pieces of guest memory in one `readv`, which takes 1024. The last chain may add 64 to these.
const MAX_PIECES: usize = 900;

/// In the queue's order. A chain leaves by [`Self::fill`]; those that are left are the last ones that were taken, and can
/// be given back to the queue.
#[derive(Debug, Default)]
pub(super) struct Posted<'m> {
    /// Each with its head.
    chains: VecDeque<(u16, Slices<'m>)>,
    bytes: usize,
    pieces: usize,
    /// The queue had no more.
    is_everything: bool,
}

impl<'m> Posted<'m> {
    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// How many chains these are.
    pub(super) fn chains(&self) -> u16 {
        // As many as a queue has at most.
        u16::try_from(self.chains.len()).unwrap_or(u16::MAX)
    }

    /// Whether these are all that there is in the queue.
    pub(super) fn is_everything(&self) -> bool {
        self.is_everything
    }

    /// Takes chains off the queue until there is room for the longest frame, or one chain if a frame may not be spread over
    /// several. One that is no room goes back to the driver at once.
    pub(super) fn top_up(&mut self, ring: &mut Ring, memory: &'m Memory, spread: bool) -> Result<(), RingError> {
        self.is_everything = false;
        // A driver may make chains available as quickly as they are refused here, so their number is limited.
        for _ in 0..ring.size() {
            let is_enough = if spread { self.bytes >= ENOUGH || self.pieces >= MAX_PIECES } else { !self.is_empty() };
            if is_enough {
                return Ok(());
            }
            let Some(chain) = ring.take(memory)? else {
                self.is_everything = true;
                return Ok(());
            };
            let head = chain.head_index();
            match Slices::of_chain(memory, chain, Direction::ToGuest) {
                Ok(slices) if !slices.is_empty() => {
                    self.bytes += slices.len();
                    self.pieces += slices.pieces().len();
                    self.chains.push_back((head, slices));
                }
                _ if self.is_empty() => ring.finish(memory, head, 0)?,
                // It goes back when those before it are filled: only the last ones can be given back.
                _ => {
                    ring.give_back(1);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Where a frame goes, as far as it may be needed: everything behind the place of the header.
    pub(super) fn room(&self) -> Vec<VolatileSlice<'m>> {
        let mut room = Vec::with_capacity(self.pieces);
        let (mut skip, mut length) = (HEADER_LEN, 0);
        for piece in self.chains.iter().flat_map(|(_, slices)| slices.pieces()) {
            if length >= MAX_FRAME {
                break;
            }
            match piece.offset(skip) {
                Ok(rest) => {
                    skip = 0;
                    if !rest.is_empty() {
                        length += rest.len();
                        room.push(rest);
                    }
                }
                // The place of the header goes on in the next piece.
                Err(_) => skip -= piece.len(),
            }
        }
        room
    }

    /// Removes the chains whose first `count` bytes a frame and its header fill, which there must be. Returns the place of
    /// the header, and for each chain its head and how many bytes are in it.
    pub(super) fn fill(&mut self, count: usize) -> (Slices<'m>, Vec<(u16, u32)>) {
        let mut front = Slices::default();
        let mut filled = Vec::new();
        let mut left = count;
        while left > 0
            && let Some((head, mut slices)) = self.chains.pop_front()
        {
            self.bytes -= slices.len();
            self.pieces -= slices.pieces().len();
            let here = slices.len().min(left);
            left -= here;
            filled.push((head, u32::try_from(here).unwrap_or(u32::MAX)));
            let missing = HEADER_LEN - front.len();
            // Twelve bytes have at most twelve pieces.
            let _ = slices.split_front(missing).pieces().iter().try_for_each(|piece| front.push(*piece));
        }
        (front, filled)
    }
}
