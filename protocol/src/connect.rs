//! The framing of the Connect protocol's streams, and its error codes.
//!
//! A stream's body is a run of envelopes: one byte of flags, the payload's length as a big-endian `u32`, the payload
//! (JSON). The last envelope has the flag [`END_OF_STREAM`] and holds `{}` or `{"error": {…}}`.
//! Source: <https://connectrpc.com/docs/protocol>.

use serde::{Deserialize, Serialize};

/// Content type of a stream whose messages are JSON.
pub const STREAM_CONTENT_TYPE: &str = "application/connect+json";

/// Flag of the last envelope.
pub const END_OF_STREAM: u8 = 0b10;

/// Flag of a compressed payload; never sent here and refused when received.
pub const COMPRESSED: u8 = 0b01;

/// Bytes before an envelope's payload.
pub const HEADER_LEN: usize = 5;

/// One envelope around `payload`, which must be shorter than 4 GiB (longer ones are cut by the caller's own limits).
pub fn envelope(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    bytes.push(flags);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Takes envelopes out of bytes that arrive in pieces.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where the next envelope begins.
    taken: usize,
    limit: usize,
}

/// Why a stream cannot be read on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("A message of {length} bytes is over the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("Compressed messages are not supported")]
    Compressed,
}

impl Decoder {
    /// A decoder that refuses payloads of more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), taken: 0, limit }
    }

    /// Adds bytes as they came from the peer.
    pub fn push(&mut self, bytes: &[u8]) {
        // Once for each piece, not for each envelope: a piece may hold thousands.
        self.buffer.drain(..std::mem::take(&mut self.taken));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole envelope as (flags, payload), or `None` until more bytes arrive.
    ///
    /// # Errors
    /// An envelope that is compressed, or longer than the limit.
    pub fn next_envelope(&mut self) -> Result<Option<(u8, Vec<u8>)>, DecodeError> {
        let Some((header, rest)) = self.buffer[self.taken..].split_at_checked(HEADER_LEN) else {
            return Ok(None);
        };
        let flags = header[0];
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if flags & COMPRESSED != 0 {
            return Err(DecodeError::Compressed);
        }
        if length > self.limit {
            return Err(DecodeError::TooLong { length, limit: self.limit });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let payload = rest[..length].to_vec();
        self.taken += HEADER_LEN + length;
        Ok(Some((flags, payload)))
    }

    /// Whether bytes of an unfinished envelope are left over, as after a stream that broke off.
    pub fn has_partial(&self) -> bool {
        self.buffer.len() > self.taken
    }
}

/// An error as both unary responses and the end of a stream carry it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ErrorBody {
    pub code: Code,
    pub message: String,
}

/// The payload of the last envelope.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EndOfStream {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    /// The HTTP status of a unary response with this code.
    pub fn http_status(self) -> u16 {
        match self {
            Code::Canceled => 499,
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::NotFound => 404,
            Code::AlreadyExists | Code::Aborted => 409,
            Code::ResourceExhausted => 429,
            Code::Unknown | Code::Internal | Code::DataLoss => 500,
            Code::Unimplemented => 501,
            Code::Unavailable => 503,
            Code::DeadlineExceeded => 504,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_survive_arriving_byte_by_byte() {
        let wire = [envelope(0, b"{\"a\":1}"), envelope(END_OF_STREAM, b"{}")].concat();
        let mut decoder = Decoder::new(64);
        let mut seen = Vec::new();
        for byte in wire {
            decoder.push(&[byte]);
            while let Some(envelope) = decoder.next_envelope().unwrap() {
                seen.push(envelope);
            }
        }
        assert_eq!(seen, [(0, b"{\"a\":1}".to_vec()), (END_OF_STREAM, b"{}".to_vec())]);
        assert!(!decoder.has_partial());
    }

    #[test]
    fn a_long_message_is_refused_before_it_is_buffered() {
        let mut decoder = Decoder::new(8);
        decoder.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next_envelope(), Err(DecodeError::TooLong { length: 0xffff_ffff, limit: 8 }));
    }
}
