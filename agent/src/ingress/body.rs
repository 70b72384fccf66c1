//! Bodies of the proxy's responses.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio_util::task::AbortOnDropHandle;

use super::limits::Place;

/// Either a short text of our own, or what a guest sends, passed on as it comes.
pub(super) enum Body {
    Small(Full<Bytes>),
    Guest(GuestBody),
}

/// A guest's body with what it holds on to. Dropping it, because it is complete or because the client has gone, closes
/// the connection to the guest and frees the sandbox's place.
///
/// An error here (the guest broke off) makes hyper end the client's response abnormally: a missing last chunk, a missing
/// rest, or a reset HTTP/2 stream. Nothing may turn it into a clean end, because that would look like a complete answer.
pub(super) struct GuestBody {
    incoming: Incoming,
    _connection: AbortOnDropHandle<()>,
    _place: Place,
}

impl Body {
    pub(super) fn empty() -> Body {
        Body::Small(Full::default())
    }

    pub(super) fn small(text: Bytes) -> Body {
        Body::Small(Full::new(text))
    }

    pub(super) fn guest(incoming: Incoming, connection: AbortOnDropHandle<()>, place: Place) -> Body {
        Body::Guest(GuestBody { incoming, _connection: connection, _place: place })
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Body::Small(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Body::Guest(body) => loop {
                let frame = ready!(Pin::new(&mut body.incoming).poll_frame(cx));
                // HTTP/2 clients count empty frames against the sender and hang up after some.
                let empty = matches!(&frame, Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty));
                if !empty {
                    return Poll::Ready(frame);
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Small(body) => body.is_end_stream(),
            Body::Guest(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Small(body) => body.size_hint(),
            Body::Guest(body) => body.incoming.size_hint(),
        }
    }
}
