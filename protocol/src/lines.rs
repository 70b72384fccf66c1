//! Lines of a stream, each limited in length.

/// Takes lines out of bytes that arrive in pieces.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where the next line begins.
    taken: usize,
    /// Bytes of the buffer in which no more line ends.
    searched: usize,
    limit: usize,
}

/// A line does not end where it must.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("A line is over the limit of {limit} bytes")]
pub struct TooLong {
    limit: usize,
}

impl Decoder {
    /// A decoder that refuses lines of more than `limit` bytes, their ends included.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), taken: 0, searched: 0, limit }
    }

    /// Adds bytes as they came from the peer.
    pub fn push(&mut self, bytes: &[u8]) {
        // Once for each piece, not for each line: a piece may hold thousands.
        self.buffer.drain(..self.taken);
        self.searched -= std::mem::take(&mut self.taken);
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line without its end, or `None` until more bytes arrive.
    ///
    /// # Errors
    ///
    /// The line is too long: there is no reading on.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let end = self.buffer.iter().skip(self.searched).position(|byte| *byte == b'\n');
        match end.map(|at| self.searched + at) {
            Some(end) if end - self.taken < self.limit => {
                let line = self.buffer[self.taken..end].to_vec();
                (self.taken, self.searched) = (end + 1, end + 1);
                Ok(Some(line))
            }
            None if self.buffer.len() - self.taken < self.limit => {
                self.searched = self.buffer.len();
                Ok(None)
            }
            _ => Err(TooLong { limit: self.limit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_arriving_byte_by_byte() {
        let mut decoder = Decoder::new(4);
        let mut lines = Vec::new();
        for byte in *b"abc\n\nd\ne" {
            decoder.push(&[byte]);
            while let Some(line) = decoder.next_line().unwrap() {
                lines.push(line);
            }
        }
        assert_eq!(lines, [b"abc".to_vec(), Vec::new(), b"d".to_vec()]);
    }

    #[test]
    fn a_line_over_the_limit_is_refused_with_and_without_its_end() {
        for line in [&b"abcd"[..], b"abcd\n"] {
            let mut decoder = Decoder::new(4);
            decoder.push(line);
            assert_eq!(decoder.next_line(), Err(TooLong { limit: 4 }));
        }
    }
}
