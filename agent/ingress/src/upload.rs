//! Bodies of requests, on their way to a guest.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::grant::Revoked;
use super::refusal::Refusal;

/// What a client sends, passed on as it comes, and only as fast as the guest takes it.
pub(super) enum Upload {
    Empty,
    Client(ClientBody),
}

/// A body that breaks off when the client leaves the guest waiting for too long.
pub(super) struct ClientBody {
    incoming: Incoming,
    timeout: Duration,
    /// Set while the guest would take more and the client sends nothing.
    alarm: Option<Pin<Box<Sleep>>>,
    revoked: Revoked,
}

/// Why a request's body did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error("The client's request body timed out")]
    TooSlow,
    #[error("The client's access was revoked")]
    Revoked(Refusal),
    #[error("The client's request broke off")]
    Broken(#[source] hyper::Error),
}

impl Upload {
    /// `timeout` is how long the client may pause; `watch` is asked for what ends it.
    pub(super) fn new(incoming: Incoming, timeout: Duration, watch: impl FnOnce() -> Revoked) -> Upload {
        match incoming.is_end_stream() {
            true => Upload::Empty,
            false => Upload::Client(ClientBody { incoming, timeout, alarm: None, revoked: watch() }),
        }
    }
}

impl ClientBody {
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<UploadError> {
        let timeout = self.timeout;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + timeout)));
        alarm.as_mut().poll(cx).map(|()| UploadError::TooSlow)
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Upload::Client(body) = self.get_mut() else { return Poll::Ready(None) };
        let frame = Pin::new(&mut body.incoming).poll_frame(cx);
        if !body.incoming.is_end_stream()
            && let Poll::Ready(refusal) = body.revoked.as_mut().poll(cx)
        {
            return Poll::Ready(Some(Err(UploadError::Revoked(refusal))));
        }
        match frame {
            Poll::Ready(frame) => {
                body.alarm = None;
                Poll::Ready(frame.map(|frame| frame.map_err(UploadError::Broken)))
            }
            Poll::Pending => body.poll_alarm(cx).map(|error| Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Upload::Empty => true,
            Upload::Client(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Upload::Empty => SizeHint::with_exact(0),
            Upload::Client(body) => body.incoming.size_hint(),
        }
    }
}
