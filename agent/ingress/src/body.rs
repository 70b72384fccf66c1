//! Bodies of the proxy's responses.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tracing::debug;

use super::envelopes::Envelopes;
use super::grant::Revoked;
use super::limits::Occupied;
use super::link::{BodyError, Lease};

/// Either a short text of our own, or what a guest or the API sends, passed on as it comes.
pub(super) enum Body {
    Small(Full<Bytes>),
    Streamed(Box<StreamedBody>),
}

/// A server's body with what it holds on to. When it is complete, the link to the server is free for another request. When
/// it is dropped before, because the client has gone, the link is closed. In both cases its places are free again.
///
/// An error here (the server broke off) makes hyper end the client's response abnormally: a missing last chunk, a missing
/// rest, or a reset HTTP/2 stream. Nothing may turn it into a clean end, because that would look like a complete response; but a
/// stream whose protocol has an error for its end gets that one.
pub(super) struct StreamedBody {
    /// Until the end.
    held: Option<Held>,
    /// The server has broken off, or the client may not go on. The client is told in the next poll: until then hyper sends what came before, which it
    /// throws away at an error.
    broken: Option<BodyError>,
}

struct Held {
    lease: Lease,
    revoked: Revoked,
    /// Of a stream whose end can be told in its own form.
    envelopes: Option<Envelopes>,
    _occupied: Occupied,
}

impl Body {
    pub(super) fn empty() -> Body {
        Body::Small(Full::default())
    }

    pub(super) fn small(text: Bytes) -> Body {
        Body::Small(Full::new(text))
    }

    pub(super) fn streamed(lease: Lease, occupied: Occupied, revoked: Revoked, envelopes: Option<Envelopes>) -> Body {
        let held = Held { lease, revoked, envelopes, _occupied: occupied };
        let mut body = StreamedBody { held: Some(held), broken: None };
        body.let_go_at_end();
        Body::Streamed(Box::new(body))
    }
}

impl StreamedBody {
    /// To be called after each frame: when hyper knows that there is no more, it does not ask again.
    fn let_go_at_end(&mut self) {
        if let Some(held) = self.held.take_if(|held| held.lease.is_end_stream()) {
            held.lease.give_back();
        }
    }

    /// Ends the response with an error, in the next poll.
    fn break_off<T>(&mut self, error: BodyError, cx: &mut Context<'_>) -> Poll<T> {
        (self.held, self.broken) = (None, Some(error));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = match self.get_mut() {
            Body::Small(body) => return Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Body::Streamed(body) => body,
        };
        if let Some(error) = body.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            let Some(held) = &mut body.held else { return Poll::Ready(None) };
            let frame = held.lease.poll_frame(cx);
            if !held.lease.is_end_stream()
                && let Poll::Ready(refusal) = held.revoked.as_mut().poll(cx)
            {
                debug!(?refusal, "Response cut off: access was revoked");
                return body.break_off("The client may not read on".into(), cx);
            }
            let frame = ready!(frame);
            match frame {
                Some(Err(error)) => {
                    let Some(end) = held.envelopes.as_ref().and_then(Envelopes::broken_off) else {
                        return body.break_off(error, cx);
                    };
                    debug!(%error, "A guest broke a stream off");
                    body.held = None;
                    return Poll::Ready(Some(Ok(Frame::data(end))));
                }
                // HTTP/2 clients count empty frames against the sender and hang up after some.
                Some(Ok(ref frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => continue,
                None => body.let_go_at_end(),
                Some(Ok(ref frame)) => {
                    if let (Some(envelopes), Some(data)) = (&mut held.envelopes, frame.data_ref()) {
                        envelopes.pass(data);
                    }
                    body.let_go_at_end();
                }
            }
            return Poll::Ready(frame);
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Small(body) => body.is_end_stream(),
            Body::Streamed(body) => body.held.is_none() && body.broken.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Small(body) => body.size_hint(),
            Body::Streamed(body) => body.held.as_ref().map_or(SizeHint::with_exact(0), |held| held.lease.size_hint()),
        }
    }
}
