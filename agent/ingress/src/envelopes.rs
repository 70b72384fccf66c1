//! Streams of the data plane whose guest goes away: they end with an error that their readers understand.
//!
//! The data plane responds to streaming calls as the Connect protocol has it: each message in an envelope, one byte of flags, four
//! bytes of length (big endian), and the message; the last envelope is marked, and holds an error where there is one. A guest
//! that is paused or deleted cannot send it any more. Where the connection breaks between two envelopes, the proxy sends it in
//! the guest's place: `unavailable`, which says that it may be tried again. Within an envelope there is only the end of the connection.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{StatusCode, response};

/// What content types of such responses begin with.
const CONTENT: &[u8] = b"application/connect+json";
/// Flag of the last envelope.
const END: u8 = 0b10;
/// Flags and length.
const HEADER: usize = 5;

/// The last message of a stream that was cut off.
const CUT_OFF: &[u8] = br#"{"error":{"code":"unavailable","message":"The sandbox was paused or has ended, or closed the connection; what runs in it can be connected to again once it runs"}}"#;

/// Where a stream of envelopes stands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Envelopes {
    /// What came of the next envelope's header.
    header: [u8; HEADER],
    come: usize,
    /// Bytes of the present message that are to come.
    left: u32,
    /// The last envelope has begun.
    is_last: bool,
}

impl Envelopes {
    /// For the response with this head, if it is such a stream.
    pub(super) fn of(head: &response::Parts) -> Option<Self> {
        let content_type = head.headers.get(CONTENT_TYPE)?.as_bytes();
        // One whose length is said has no room for an end of ours.
        let is_open = head.status == StatusCode::OK && !head.headers.contains_key(CONTENT_LENGTH);
        (is_open && content_type.starts_with(CONTENT)).then(Self::default)
    }

    /// Takes note of what passes.
    pub(super) fn pass(&mut self, mut data: &[u8]) {
        while let Some((&first, rest)) = data.split_first() {
            if self.left > 0 {
                let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
                self.left = self.left.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
                data = data.get(length..).unwrap_or_default();
                continue;
            }
            if let Some(place) = self.header.get_mut(self.come) {
                *place = first;
            }
            self.come += 1;
            data = rest;
            if self.come == HEADER {
                let [flags, length @ ..] = self.header;
                (self.come, self.left) = (0, u32::from_be_bytes(length));
                self.is_last |= flags & END != 0;
            }
        }
    }

    /// The last envelope of a stream that ends here without one; `None` where it cannot be sent.
    pub(super) fn broken_off(&self) -> Option<Bytes> {
        if self.come > 0 || self.left > 0 || self.is_last {
            return None;
        }
        let mut envelope = BytesMut::with_capacity(HEADER + CUT_OFF.len());
        envelope.put_u8(END);
        envelope.put_u32(u32::try_from(CUT_OFF.len()).ok()?);
        envelope.put_slice(CUT_OFF);
        Some(envelope.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;

    /// Two messages, one of them empty.
    const TWO: &[u8] = b"\0\0\0\0\x03{1}\0\0\0\0\0";

    #[test]
    fn a_stream_can_be_ended_between_envelopes_alone_however_it_comes() {
        for piece in 1..=TWO.len() {
            let mut envelopes = Envelopes::default();
            let mut ends = Vec::new();
            for (index, piece) in TWO.chunks(piece).enumerate() {
                envelopes.pass(piece);
                ends.push((index, envelopes.broken_off().is_some()));
            }
            assert!(ends.last().unwrap().1, "{piece}");
            if piece == 1 {
                let between: Vec<usize> = ends.iter().filter(|(_, may)| *may).map(|(index, _)| *index).collect();
                assert_eq!(between, [7, 12]);
            }
        }
    }

    #[test]
    fn what_is_sent_is_an_envelope_and_the_last() {
        let end = Envelopes::default().broken_off().unwrap();
        let mut envelopes = Envelopes::default();

        envelopes.pass(&end);

        assert!(envelopes.is_last && envelopes.left == 0);
        assert_eq!(envelopes.broken_off(), None, "there is one end");
        let message: serde_json::Value = serde_json::from_slice(&end[HEADER..]).unwrap();
        assert_eq!(message["error"]["code"], "unavailable");
    }

    #[test]
    fn only_a_stream_that_began_well_is_one() {
        let head = |status: u16, content_type: &str| {
            let response = Response::builder().status(status).header(CONTENT_TYPE, content_type).body(()).unwrap();
            response.into_parts().0
        };
        assert!(Envelopes::of(&head(200, "application/connect+json")).is_some());
        assert!(Envelopes::of(&head(415, "application/connect+json")).is_none());
        assert!(Envelopes::of(&head(200, "application/json")).is_none());
    }
}
