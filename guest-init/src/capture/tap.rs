//! Lines out of the pieces of one stream.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use sandpiper_protocol::guest::{MAX_OUTPUT_LINE, OutputLine, OutputStream};

use super::Capture;

/// Bytes of a program's name, or of a tag.
const MAX_NAME: usize = 64;

/// Whose output it is.
#[derive(Debug)]
pub struct Source {
    pid: u32,
    command: String,
    tag: Option<String>,
}

impl Source {
    /// A process that was started with `program` and `tag`.
    pub fn new(pid: u32, program: &str, tag: Option<&str>) -> Arc<Self> {
        let command = Path::new(program).file_name().map_or_else(|| program.into(), |name| name.to_string_lossy());
        let name = |text: &str| fit(text.into(), MAX_NAME).0;
        Arc::new(Self { pid, command: name(&command), tag: tag.map(name) })
    }
}

/// Listens to one stream of a process.
#[derive(Debug)]
pub struct Tap {
    capture: Capture,
    stream: OutputStream,
    source: Arc<Source>,
    /// What was read of a line whose end was not.
    line: Vec<u8>,
    /// There was more of it.
    cut: bool,
}

impl Tap {
    pub fn new(capture: &Capture, stream: OutputStream, source: Arc<Source>) -> Self {
        Self { capture: capture.clone(), stream, source, line: Vec::new(), cut: false }
    }

    /// Takes what was read. Never waits.
    pub fn take(&mut self, bytes: &[u8]) {
        if !self.capture.is_on() {
            self.forget();
            return;
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = MAX_OUTPUT_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(text.get(..room).unwrap_or(text));
            self.cut |= text.len() > room;
            if text.len() < piece.len() {
                self.end_line();
            }
        }
    }

    /// Whether something was read of a line whose end was not.
    pub fn has_partial(&self) -> bool {
        !self.line.is_empty()
    }

    /// Takes what was read of a line for a line: nothing more of it comes, or not soon.
    pub fn flush(&mut self) {
        if !self.capture.is_on() {
            self.forget();
        } else if self.has_partial() {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let Self { capture, stream, source, line, cut } = self;
        capture.add(line, || {
            let (text, is_too_long) = fit(decode(line, *cut), MAX_OUTPUT_LINE);
            let (command, tag) = (source.command.clone(), source.tag.clone());
            OutputLine { stream: *stream, pid: source.pid, command, tag, text, cut: *cut || is_too_long }
        });
        self.forget();
    }

    fn forget(&mut self) {
        self.line.clear();
        self.cut = false;
    }
}

/// The text of a line; of one that was cut, without the half of a character that may be its end.
fn decode(line: &[u8], cut: bool) -> Cow<'_, str> {
    let whole = match std::str::from_utf8(line) {
        Err(error) if cut && error.error_len().is_none() => line.get(..error.valid_up_to()).unwrap_or(line),
        _ => line,
    };
    String::from_utf8_lossy(whole)
}

/// At most so many bytes of a text, without control characters, of which each may take six bytes on the link; and whether there
/// were more.
fn fit(text: Cow<'_, str>, most: usize) -> (String, bool) {
    let is_control = |c: char| c.is_control() && c != '\t';
    // The end of a line, as some systems write it, is no part of it.
    let text = text.trim_end_matches('\r');
    let mut fit: String = text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
    let is_too_long = fit.len() > most;
    fit.truncate(fit.floor_char_boundary(most));
    (fit, is_too_long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// The lines that these pieces come to, each with a mark where it was cut.
    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let capture = Capture::default();
        capture.switch(true);
        let mut tap = Tap::new(&capture, OutputStream::Stderr, Source::new(1, "cmd", None));
        pieces.iter().for_each(|piece| tap.take(piece));
        let rest = tap.has_partial();
        tap.flush();
        let lines = capture.batch().now_or_never().unwrap_or_default().lines;
        assert!(!rest || !lines.is_empty());
        lines.into_iter().map(|line| line.text + if line.cut { " cut" } else { "" }).collect()
    }

    #[test]
    fn lines_are_found_wherever_the_pieces_end_and_the_last_needs_no_end() {
        assert_eq!(lines(&[b"a\nb", b"c", b"\n\n", b"\xc3", b"\xa9\r\n", b"rest"]), ["a", "bc", "", "é", "rest"]);
        assert!(lines(&[b""]).is_empty());
    }

    #[test]
    fn what_is_no_text_is_replaced() {
        assert_eq!(lines(&[b"\xff\xfe\0 \x1b[2J\ttab\n"]), ["\u{fffd}\u{fffd}\u{fffd} \u{fffd}[2J\ttab"]);
    }

    #[test]
    fn a_long_line_is_cut_once_between_two_characters_and_marked() {
        let long = "é".repeat(MAX_OUTPUT_LINE);
        let odd = [b"x", long.as_bytes()].concat();
        let whole = "y".repeat(MAX_OUTPUT_LINE);
        let found = lines(&[&odd, &odd, b"\n", whole.as_bytes(), b"\n", &[0xff; MAX_OUTPUT_LINE], b"\n"]);

        assert_eq!(found.len(), 3);
        assert_eq!(found[0], format!("x{} cut", "é".repeat(MAX_OUTPUT_LINE / 2 - 1)));
        assert_eq!(found[1], whole);
        assert!(found[2].ends_with("\u{fffd} cut") && found[2].len() <= MAX_OUTPUT_LINE + 4, "three bytes for each");
    }

    #[test]
    fn a_program_is_called_by_its_file_name_of_bounded_length() {
        let named = |program: &str| Source::new(1, program, Some(&"t".repeat(1000))).command.clone();
        assert_eq!((named("/usr/bin/python3"), named("ls"), named("..")), ("python3".into(), "ls".into(), "..".into()));
        assert_eq!(named(&"x".repeat(1000)).len(), MAX_NAME);
    }
}
