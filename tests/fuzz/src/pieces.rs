//! A stream that arrives in pieces.

use std::io;
use std::pin::Pin;
use std::slice::Chunks;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// Bytes of which each read gets one piece, or as much of it as there is room for.
pub struct Pieces<'a> {
    piece: &'a [u8],
    rest: Chunks<'a, u8>,
}

impl<'a> Pieces<'a> {
    /// Pieces of `size` bytes, which is not 0; the last may be shorter.
    pub fn new(bytes: &'a [u8], size: usize) -> Self {
        Self { piece: &[], rest: bytes.chunks(size) }
    }
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.piece.is_empty() {
            self.piece = self.rest.next().unwrap_or_default();
        }
        let (now, later) = self.piece.split_at(self.piece.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.piece = later;
        Poll::Ready(Ok(()))
    }
}
