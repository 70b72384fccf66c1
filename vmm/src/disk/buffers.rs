//! The memory of one request, consumed from its beginning.

use vm_memory::VolatileSlice;

use super::DiskError;

/// Most slices in one request. With this limit a transfer of any part of a request is one system call, so a block of
/// 4 KiB is never split over two, however small its pieces are.
pub const MAX_SLICES: usize = 512;

/// Slices of guest memory that are read into or written from, in order, and how far a request has got.
///
/// Slices may overlap each other and anything else in guest memory: they are only touched by volatile copies and by the
/// kernel.
#[derive(Debug)]
pub struct Buffers<'b, 'm> {
    slices: &'b [VolatileSlice<'m>],
    /// Bytes of the first slice that are used up.
    skip: usize,
    remaining: u64,
}

impl<'b, 'm> Buffers<'b, 'm> {
    /// All of `slices`, at most [`MAX_SLICES`].
    ///
    /// # Errors
    /// More than [`MAX_SLICES`] slices.
    pub fn new(slices: &'b [VolatileSlice<'m>]) -> Result<Self, DiskError> {
        if slices.len() > MAX_SLICES {
            return Err(DiskError::TooManyBuffers);
        }
        let remaining = slices.iter().map(|slice| slice.len() as u64).sum();
        Ok(Self { slices, skip: 0, remaining })
    }

    /// Bytes not used up yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Copies the next bytes to `target`; returns how many, fewer than asked only at the end.
    pub fn copy_to(&mut self, target: &mut [u8]) -> usize {
        let mut copied = 0;
        while let Some(piece) = self.next_piece()
            && copied < target.len()
        {
            let count = piece.copy_to(&mut target[copied..]);
            self.advance(count as u64);
            copied += count;
        }
        copied
    }

    /// Copies `source` over the next bytes; returns how many, fewer than given only at the end.
    pub fn copy_from(&mut self, source: &[u8]) -> usize {
        let mut copied = 0;
        while let Some(piece) = self.next_piece()
            && copied < source.len()
        {
            let count = piece.len().min(source.len() - copied);
            piece.copy_from(&source[copied..copied + count]);
            self.advance(count as u64);
            copied += count;
        }
        copied
    }

    /// Writes zeros over the next `length` bytes.
    pub fn fill_with_zeros(&mut self, length: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut left = length;
        while left > 0 {
            let chunk = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.len());
            match self.copy_from(&ZEROS[..chunk]) {
                0 => return,
                copied => left -= copied as u64,
            }
        }
    }

    /// Describes the next bytes, at most `limit`, to the kernel, and returns how many entries of `iovecs` that took.
    ///
    /// The pointers are valid for as long as the guest memory that the slices borrow, `'m`.
    pub(super) fn describe(&self, limit: u64, iovecs: &mut [libc::iovec; MAX_SLICES]) -> usize {
        let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut skip = self.skip;
        let mut used = 0;
        for (slice, iovec) in self.slices.iter().zip(iovecs.iter_mut()) {
            if left == 0 {
                break;
            }
            let length = slice.len().saturating_sub(skip).min(left);
            // Inside the slice: `skip` is at most its length.
            iovec.iov_base = slice.ptr_guard_mut().as_ptr().wrapping_add(skip).cast();
            iovec.iov_len = length;
            used += 1;
            left -= length;
            skip = 0;
        }
        used
    }

    /// Uses up `count` bytes.
    pub(super) fn advance(&mut self, count: u64) {
        let mut left = usize::try_from(count.min(self.remaining)).unwrap_or(usize::MAX);
        self.remaining -= left as u64;
        while let Some(slice) = self.slices.first() {
            let in_slice = slice.len().saturating_sub(self.skip);
            if left < in_slice {
                self.skip += left;
                return;
            }
            left -= in_slice;
            self.skip = 0;
            self.slices = &self.slices[1..];
        }
    }

    /// What is left of the first slice that has anything left.
    fn next_piece(&self) -> Option<VolatileSlice<'m>> {
        let mut skip = self.skip;
        for slice in self.slices {
            if slice.len() > skip {
                return slice.offset(skip).ok();
            }
            skip = 0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cross_slices_and_skip_empty_ones() {
        let (mut a, mut b) = ([1u8, 2, 3], [4u8, 5]);
        let slices =
            [VolatileSlice::from(&mut a[..]), VolatileSlice::from(&mut [][..]), VolatileSlice::from(&mut b[..])];
        let mut buffers = Buffers::new(&slices).unwrap();

        let mut target = [0; 4];
        assert_eq!(buffers.copy_to(&mut target), 4);
        assert_eq!(target, [1, 2, 3, 4]);
        assert_eq!(buffers.remaining(), 1);
        assert_eq!(buffers.copy_to(&mut target), 1);
        assert_eq!(buffers.remaining(), 0);
    }

    #[test]
    fn zeros_cover_exactly_what_was_asked() {
        let mut memory = [7u8; 5000];
        let slices = [VolatileSlice::from(&mut memory[..])];
        let mut buffers = Buffers::new(&slices).unwrap();

        buffers.advance(1);
        buffers.fill_with_zeros(4998);

        assert_eq!(buffers.remaining(), 1);
        assert_eq!((memory[0], memory[4999]), (7, 7));
        assert!(memory[1..4999].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn too_many_slices_are_refused() {
        let slices: Vec<VolatileSlice<'_>> = (0..=MAX_SLICES).map(|_| VolatileSlice::from(&mut [][..])).collect();
        assert!(matches!(Buffers::new(&slices), Err(DiskError::TooManyBuffers)));
    }
}
