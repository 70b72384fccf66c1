//! Server-sent events: <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>.

use std::collections::VecDeque;

/// Longest event that is taken, in bytes.
const EVENT_LIMIT: usize = 1 << 20;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its type; empty where it has none.
    pub(crate) name: String,
    /// Its lines, with line feeds between them.
    pub(crate) data: String,
}

/// Finds the events in pieces of a stream. Comments, `id` and `retry` are read over: whoever reads the events knows from
/// them where they are.
#[derive(Debug, Default)]
pub(crate) struct Events {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it belongs to it.
    ended_with_return: bool,
    event: Event,
    complete: VecDeque<Event>,
}

impl Events {
    /// Takes the next piece.
    ///
    /// # Errors
    ///
    /// Says so where an event is longer than any should be.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<(), &'static str> {
        for &byte in piece {
            let follows_return = std::mem::replace(&mut self.ended_with_return, byte == b'\r');
            match byte {
                b'\n' if follows_return => {}
                b'\n' | b'\r' => self.end_of_line(),
                byte => self.line.push(byte),
            }
            if self.line.len() + self.event.data.len() > EVENT_LIMIT {
                return Err("an event is longer than 1 MiB");
            }
        }
        Ok(())
    }

    /// The next event that is complete.
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.complete.pop_front()
    }

    fn end_of_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            // A line feed follows each line; that of the last is no part of it. Without data there is no event.
            if event.data.pop().is_some() {
                self.complete.push_back(event);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                self.event.data.push_str(value);
                self.event.data.push('\n');
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut events = Events::default();
        let mut all = Vec::new();
        for piece in pieces {
            events.push(piece).unwrap();
            all.extend(std::iter::from_fn(|| events.next()).map(|event| (event.name, event.data)));
        }
        all
    }

    fn event(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn events_are_found_wherever_the_pieces_end() {
        let text =
            ": hello\n\nid: 7\nevent: log\ndata: {\"a\":\ndata:1}\n\ndata: bare\r\n\r\nevent: none\n\ndata: half"
                .as_bytes();
        let expected = [event("log", "{\"a\":\n1}"), event("", "bare")];
        assert_eq!(read(&[text]), expected);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&bytes), expected);
    }

    #[test]
    fn an_event_without_an_end_is_no_longer_read() {
        let mut events = Events::default();
        let outcome = (0..2048).try_for_each(|_| events.push(&[b'x'; 1024]));
        assert!(outcome.is_err());
        let mut events = Events::default();
        let line = [&b"data: "[..], &[b'x'; 1018], b"\n"].concat();
        assert!((0..2048).try_for_each(|_| events.push(&line)).is_err());
    }
}
