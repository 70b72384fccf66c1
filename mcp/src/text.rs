//! What a sandbox says, as text of bounded length.

use std::collections::VecDeque;

/// Bytes that are kept of an output's beginning, and of its end: that is where errors are.
const HEAD: usize = 16 << 10;
const TAIL: usize = 16 << 10;

/// The beginning and the end of what may be endless.
#[derive(Debug, Default)]
pub(crate) struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Excerpt {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// Text in which what is no UTF-8 is replaced, and what was left out is said.
    pub(crate) fn text(self) -> String {
        let tail: Vec<u8> = self.tail.into();
        if self.left_out == 0 {
            return lossy(&[self.head, tail].concat());
        }
        format!("{}\n[... {} bytes left out ...]\n{}", lossy(&self.head), self.left_out, lossy(&tail))
    }
}

/// Text for a model: what is no UTF-8 is replaced, and so are the control characters that draw on terminals.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_kept = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    if text.chars().all(is_kept) {
        return text.into_owned();
    }
    // Progress bars return to the beginning of their line again and again.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().filter(|c| is_kept(*c)).collect()
}

/// At most `limit` bytes of `text`, and a note if that is not all.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(limit);
    format!("{}\n[... {} bytes left out ...]", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_of_a_long_output_are_kept() {
        let mut excerpt = Excerpt::default();
        excerpt.push(b"begin");
        for _ in 0..1000 {
            excerpt.push(&[b'x'; 1000]);
        }
        excerpt.push(b"end");

        let text = excerpt.text();

        let left_out = 1_000_008 - HEAD - TAIL;
        assert!(text.starts_with("beginxxx") && text.ends_with("xxxend"));
        assert!(text.contains(&format!("[... {left_out} bytes left out ...]")));
        assert!(text.len() < HEAD + TAIL + 100);
    }

    #[test]
    fn short_output_is_whole_and_always_text() {
        let mut excerpt = Excerpt::default();
        excerpt.push("10 %\r20 %\r\n\u{1b}[31mré".as_bytes());
        excerpt.push(&[0xff, 0]);
        assert_eq!(excerpt.text(), "10 %\n20 %\n[31mré\u{fffd}");
        assert_eq!(cut("aéb", 2), "a\n[... 3 bytes left out ...]");
    }
}
