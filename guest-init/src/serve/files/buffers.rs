//! Memory for the pieces of one transfer, used again as soon as a piece is sent: memory of this size comes from the kernel page
//! by page and goes back when it is freed, which takes as long as reading a file into it.

use std::sync::{Arc, Mutex, PoisonError};

/// Pieces that are read ahead, and those that wait to be sent.
const KEPT: usize = 4;

/// Buffers that nothing is in.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

/// One that is in use.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffers {
    /// One of `length` bytes, whatever they are.
    pub(super) fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let mut bytes = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        bytes.resize(length, 0);
        Buffer { bytes, home: Arc::clone(self) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_once_it_is_free_and_not_before() {
        let buffers = Arc::new(Buffers::default());
        let (first, second) = (buffers.take(4096), buffers.take(4096));
        let places = [first.as_ref().as_ptr(), second.as_ref().as_ptr()];
        assert_ne!(places[0], places[1]);

        drop(second);
        let shorter = buffers.take(100);

        assert_eq!((shorter.as_ref().as_ptr(), shorter.as_ref().len()), (places[1], 100));
        assert_eq!(first.as_ref().len(), 4096);
    }

    #[test]
    fn no_more_are_kept_than_are_needed() {
        let buffers = Arc::new(Buffers::default());
        let many: Vec<_> = (0..10).map(|_| buffers.take(1)).collect();

        drop(many);

        assert_eq!(buffers.free.lock().unwrap().len(), KEPT);
    }
}
