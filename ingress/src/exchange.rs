//! One request and its answer, over a link of the pool or a new one.
//!
//! A link that waited may be closed by the guest at the moment it is used. The request is then sent again, once and over a
//! new link, where that cannot do a thing twice: nothing of it was sent, or it is one that changes nothing and has no body
//! (RFC 9110 section 9.2.2). Anything else is answered 502.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use sandpiper_protocol::guest::DATA_PLANE_PORT;
use tokio::net::UnixStream;
use tracing::debug;

use super::link::{Lease, Link, Pool, Server};
use super::refusal::Refusal;
use super::route::Door;
use super::upload::{Upload, UploadError};
use crate::vsock::{self, ForwardError};

/// A guest on a busy host may take its time to accept; the E2B SDKs' own probe gives up after 5 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends `request` to `server` and waits for the head of the answer. Nothing may move for `idle_timeout` at most.
pub(super) async fn exchange(
    pool: &Arc<Pool>,
    server: Server,
    mut request: Request<Upload>,
    idle_timeout: Duration,
) -> Result<(Response<Incoming>, Lease), Refusal> {
    if let Some(mut link) = pool.take(&server) {
        let copy = harmless(&request).then(|| duplicate(&request));
        match link.send(request).await {
            Ok(response) => return Ok((response, Lease::new(link, server, pool.clone()))),
            Err(mut error) => {
                let unsent = error.take_message();
                let error = error.into_error();
                request = unsent.or(copy.filter(|_| broke_off(&error))).ok_or_else(|| refusal_of(&error))?;
            }
        }
    }
    let stream = connect(&server).await?;
    let mut link = Link::open(stream, server.protocol, idle_timeout).await.map_err(|error| refusal_of(&error))?;
    let response = link.send(request).await.map_err(|error| refusal_of(error.error()))?;
    Ok((response, Lease::new(link, server, pool.clone())))
}

fn harmless(request: &Request<Upload>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && request.body().is_end_stream()
}

/// The same request again; it has no body.
fn duplicate(request: &Request<Upload>) -> Request<Upload> {
    let mut copy = Request::new(Upload::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

async fn connect(server: &Server) -> Result<UnixStream, Refusal> {
    let path = Path::new(&server.vsock);
    let result = match server.door {
        Door::DataPlane => vsock::connect(path, DATA_PLANE_PORT, CONNECT_TIMEOUT).await.map_err(Into::into),
        Door::Port(port) => vsock::forward(path, port, CONNECT_TIMEOUT).await,
    };
    result.map_err(|error| {
        debug!(vsock = %path.display(), %error, "A guest was not reached");
        match error {
            ForwardError::Refused { port } => Refusal::PortClosed(port),
            ForwardError::Guest(_) => Refusal::Unreachable,
        }
    })
}

/// Whether the guest closed the connection, rather than saying something wrong or nothing for too long.
fn broke_off(error: &hyper::Error) -> bool {
    !error.is_user() && !error.is_parse() && !timed_out(error)
}

/// Who was to blame when no answer came.
fn refusal_of(error: &hyper::Error) -> Refusal {
    if error.is_user() {
        // The only thing of ours that hyper can object to here is the body, which is the client's.
        return match error.source().and_then(|source| source.downcast_ref()) {
            Some(UploadError::TooSlow) => Refusal::SlowUpload,
            _ => Refusal::Invalid("The request's body broke off or is not valid"),
        };
    }
    if timed_out(error) { Refusal::TimedOut } else { Refusal::BrokenAnswer }
}

fn timed_out(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::TimedOut)
}
