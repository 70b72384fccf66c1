//! A stream that ends when nothing moves on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails reads and writes with [`io::ErrorKind::TimedOut`] once no byte has moved in either direction for a while.
///
/// One alarm serves both directions, so a download does not time out because the client has nothing to say. It is only
/// armed where a read or write has to wait: the cost of a busy stream is one look at the clock for each operation.
pub(super) struct IdleIo<S> {
    inner: S,
    limit: Duration,
    last_progress: Instant,
    alarm: Pin<Box<Sleep>>,
    /// Whom the alarm will wake, unless it has gone off.
    wakes: Option<Waker>,
}

impl<S> IdleIo<S> {
    pub(super) fn new(inner: S, limit: Duration) -> IdleIo<S> {
        let now = Instant::now();
        IdleIo { inner, limit, last_progress: now, alarm: Box::pin(tokio::time::sleep_until(now + limit)), wakes: None }
    }

    /// Ready when the stream has been idle for too long; otherwise wakes the task when it will have been.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if !self.alarm.is_elapsed() && self.wakes.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.wakes = Some(cx.waker().clone());
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let due = self.last_progress + self.limit;
            if Instant::now() >= due {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "The connection was idle for too long"));
            }
            self.alarm.as_mut().reset(due);
        }
    }

    /// Turns a pending operation into an error when the alarm has gone off, and notes the progress of a finished one.
    fn watch<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Pending => self.poll_alarm(cx).map(Err),
            ready => {
                self.last_progress = Instant::now();
                ready
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.watch(cx, polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    // Flushing and closing are no progress: what they wait for shows in the writes.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(cx) {
            Poll::Pending => self.poll_alarm(cx).map(Err),
            ready => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_shutdown(cx) {
            Poll::Pending => self.poll_alarm(cx).map(Err),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_ends_and_a_stream_with_traffic_does_not() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = IdleIo::new(near, Duration::from_secs(60));
        let begin = Instant::now();
        let talker = tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                far.write_all(b"x").await.expect("writable");
            }
            far
        });

        let mut received = [0; 5];
        near.read_exact(&mut received).await.expect("traffic keeps it open");
        let _far = talker.await.expect("no panic");
        let error = near.read_exact(&mut received).await.expect_err("silent");

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), 5 * 50 + 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stopped_reading_ends_the_stream() {
        let (near, _far) = tokio::io::duplex(64);
        let mut near = IdleIo::new(near, Duration::from_secs(60));
        let error = near.write_all(&[0; 1000]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
