//! A stream that gives so many bytes until somebody looks whether that is right.

use std::cell::Cell;
use std::io::{self, Read};

/// Bytes that may yet be read.
pub(super) struct Budget {
    left: Cell<u64>,
    is_spent: Cell<bool>,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self { left: Cell::new(bytes), is_spent: Cell::new(false) }
    }

    /// Allows this many from here on.
    pub(super) fn set(&self, bytes: u64) {
        self.left.set(bytes);
    }

    /// Whether more was asked for.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent.get()
    }
}

pub(super) struct Bounded<'a, R> {
    stream: R,
    budget: &'a Budget,
}

impl<'a, R> Bounded<'a, R> {
    pub(super) fn new(stream: R, budget: &'a Budget) -> Self {
        Self { stream, budget }
    }

    pub(super) fn into_inner(self) -> R {
        self.stream
    }
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.left.get();
        if left == 0 && !buffer.is_empty() {
            self.budget.is_spent.set(true);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than may be read"));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.stream.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.budget.left.set(left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX)));
        Ok(count)
    }
}
