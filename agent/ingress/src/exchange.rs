//! One request and its response, over a link of the pool or a new one.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use sandpiper_protocol::guest::DATA_PLANE_PORT;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::either::Either;
use tracing::debug;

use super::http1::{SendError, Stream};
use super::link::{Lease, Link, Pool, Server, Unanswered};
use super::refusal::Refusal;
use super::route::Door;
use super::upload::{Upload, UploadError};
use crate::vsock::{self, ForwardError};

/// A guest on a busy host may take its time to accept; the E2B SDKs' own probe gives up after 5 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends `request` to `server` and waits for the head of the response. Nothing may move for `idle_timeout` at most.
///
/// # Errors
/// Without a response, with the request if nothing can happen twice when it is sent again.
pub(super) async fn exchange(
    pool: &Arc<Pool>,
    server: Server,
    mut request: Request<Upload>,
    idle_timeout: Duration,
) -> Result<(Response<()>, Lease), Unanswered> {
    if let Some(mut link) = pool.take(&server) {
        match link.send(request).await {
            Ok(head) => return Ok((head, Lease::new(link, server, pool.clone()))),
            Err(Unanswered { again: Some(again), .. }) => request = again,
            Err(unanswered) => return Err(unanswered),
        }
    }
    let opened = match connect(&server).await {
        Ok(stream) => Link::open(stream, server.protocol(), idle_timeout).await.map_err(Refusal::from),
        Err(refusal) => Err(refusal),
    };
    let mut link = match opened {
        Ok(link) => link,
        Err(why) => return Err(Unanswered { why, again: Some(request) }),
    };
    let head = link.send(request).await?;
    Ok((head, Lease::new(link, server, pool.clone())))
}

async fn connect(server: &Server) -> Result<Stream, Refusal> {
    match server {
        Server::Guest { vsock, door, .. } => connect_to_guest(Path::new(vsock), *door).await.map(Either::Left),
        Server::Api(address) => connect_to_api(*address).await.map(Either::Right),
    }
}

async fn connect_to_guest(path: &Path, door: Door) -> Result<UnixStream, Refusal> {
    let result = match door {
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

async fn connect_to_api(address: SocketAddr) -> Result<TcpStream, Refusal> {
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connected.unwrap_or_else(|elapsed| Err(elapsed.into())).and_then(|stream| {
        // A head and a body are two writes.
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    stream.map_err(|error| {
        debug!(%address, %error, "The API was not reached");
        Refusal::Unreachable
    })
}

/// Who was to blame when no response came.
impl From<SendError> for Refusal {
    fn from(error: SendError) -> Refusal {
        match error {
            SendError::Client(error) => of_upload(Some(&error)),
            SendError::Guest(error) if error.kind() == io::ErrorKind::TimedOut => Refusal::TimedOut,
            SendError::Guest(_) | SendError::Unsent | SendError::Closed => Refusal::BrokenAnswer,
        }
    }
}

impl From<hyper::Error> for Refusal {
    fn from(error: hyper::Error) -> Refusal {
        if error.is_user() {
            // The only thing of ours that hyper can object to here is the body, which is the client's.
            return of_upload(error.source().and_then(|source| source.downcast_ref()));
        }
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        match source.is_some_and(|source| source.kind() == io::ErrorKind::TimedOut) {
            true => Refusal::TimedOut,
            false => Refusal::BrokenAnswer,
        }
    }
}

fn of_upload(error: Option<&UploadError>) -> Refusal {
    match error {
        Some(UploadError::TooSlow) => Refusal::SlowUpload,
        Some(UploadError::Revoked(refusal)) => *refusal,
        _ => Refusal::Invalid("The request's body broke off or is not valid"),
    }
}
