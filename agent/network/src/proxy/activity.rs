//! Whether anything still moves on a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Counts reads and writes that moved something.
#[derive(Debug, Clone, Default)]
pub(super) struct Activity(Arc<AtomicU64>);

impl Activity {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn of<S>(&self, stream: S) -> Active<S> {
        Active { stream, activity: self.clone() }
    }

    fn note<T>(&self, poll: &Poll<io::Result<T>>) {
        if let Poll::Ready(Ok(_)) = poll {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A stream that is counted.
#[derive(Debug)]
pub(super) struct Active<S> {
    stream: S,
    activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for Active<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.activity.note(&poll);
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Active<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.activity.note(&poll);
        poll
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
