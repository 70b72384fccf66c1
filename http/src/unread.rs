//! Request bodies that nobody reads to their end, as of a request that was refused for its key.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Request;
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;

/// How long the rest of a body is read for.
const DRAIN: Duration = Duration::from_secs(10);

/// A body of HTTP/1.1 whose rest is read and forgotten when it is dropped. hyper would end the connection, without a word of it
/// before: a client that had sent its next request there, or was sending still, would not know what became of it.
pub(crate) struct Drained {
    body: Option<Incoming>,
    /// The client waits for leave to send, which it must not get: reading would make hyper say "100 Continue".
    expects: bool,
}

/// Has what the handlers of a request leave of its body read.
pub(crate) fn drained(request: Request<Incoming>) -> Request<Drained> {
    let expects = request.headers().contains_key(EXPECT);
    request.map(|body| Drained { body: Some(body), expects })
}

impl Body for Drained {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream() && !self.expects);
        // Without a runtime there is no connection either.
        if let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(DRAIN, drain(rest)));
        }
    }
}

async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}
