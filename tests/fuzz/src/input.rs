//! An input as a sequence of small decisions.

/// What is left of an input. Reads as zeros after its end.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let [byte] = self.number();
        byte
    }

    /// `N` bytes, of which most targets make a little-endian number.
    pub fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        let taken = self.take(bytes.len());
        bytes[..taken.len()].copy_from_slice(taken);
    }

    /// Up to `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(count.min(self.0.len()));
        self.0 = later;
        now
    }

    /// One of `choices`.
    pub fn choose<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()].clone()
    }
}
