//! Connections into guests, and to the API, that are kept for the next request.
//!
//! A link serves one request at a time, so no response can reach the wrong request and a slow client holds up nobody else.
//! When a response is complete and nothing of its request is left, the link waits in the [`Pool`] for another request to
//! the same server. It does not wait long: a server that handles one connection at a time is not kept from its next
//! visitor, and servers, which themselves close idle connections after a few seconds, hardly ever close one of ours just
//! when we write to it. A response that is given up half-way closes its link, and so the guest learns of it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use foldhash::HashMap;
use http::{Method, Request, Response};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::headers::{MAX_HEAD, Protocol};
use super::http1::{Http1, SendError, Stream};
use super::idle::IdleIo;
use super::memory::{LINK_WINDOW, MAX_IDLE_TOTAL, SEND_BUFFER};
use super::refusal::Refusal;
use super::route::Door;
use super::upload::Upload;

/// How long a link may wait for its next request.
const IDLE_LIFE: Duration = Duration::from_secs(1);
/// Waiting links of one server.
const MAX_IDLE: usize = 128;

/// Why a guest's body has no end; for hyper, which only needs to know that.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to one server in a guest. Dropping it closes it.
pub(super) enum Link {
    Http1(Http1),
    Http2(Http2),
}

/// HTTP/2, with one stream at a time.
pub(super) struct Http2 {
    sender: http2::SendRequest<Upload>,
    _connection: AbortOnDropHandle<()>,
    answer: Option<Incoming>,
}

/// Why there is no response, and the request where it may be sent again.
pub(super) struct Unanswered {
    pub(super) why: Refusal,
    pub(super) again: Option<Request<Upload>>,
}

impl Link {
    /// Speaks `protocol` on `stream`, as long as something moves on it every `idle_timeout`.
    pub(super) async fn open(stream: Stream, protocol: Protocol, idle_timeout: Duration) -> hyper::Result<Link> {
        let stream = IdleIo::new(stream, idle_timeout);
        match protocol {
            Protocol::Http1 => Ok(Link::Http1(Http1::new(stream))),
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(LINK_WINDOW).initial_connection_window_size(LINK_WINDOW);
                builder.max_send_buf_size(SEND_BUFFER);
                builder.max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX));
                let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
                let connection = tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        debug!(%error, "A connection to a guest broke");
                    }
                });
                Ok(Link::Http2(Http2 { sender, _connection: AbortOnDropHandle::new(connection), answer: None }))
            }
        }
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// A link that waited may be closed by the guest at the moment it is used. The request comes back where sending it
    /// again cannot do a thing twice: nothing of it was sent, or it is one that changes nothing and has no body (RFC 9110
    /// section 9.2.2).
    pub(super) async fn send(&mut self, request: Request<Upload>) -> Result<Response<()>, Unanswered> {
        match self {
            Link::Http1(link) => link.send(request).await.map_err(|(error, request)| {
                let again = request.filter(|request| match error {
                    SendError::Unsent => true,
                    SendError::Closed => is_harmless(request),
                    SendError::Guest(_) | SendError::Client(_) => false,
                });
                Unanswered { why: error.into(), again }
            }),
            Link::Http2(link) => match link.sender.try_send_request(request).await {
                Ok(response) => {
                    let (head, answer) = response.into_parts();
                    link.answer = Some(answer);
                    Ok(Response::from_parts(head, ()))
                }
                Err(mut error) => {
                    let again = error.take_message();
                    Err(Unanswered { why: error.into_error().into(), again })
                }
            },
        }
    }

    /// Waits until the last exchange is over on both sides. Whether there can be another.
    async fn ready(&mut self) -> bool {
        match self {
            Link::Http1(link) => link.ready().await,
            Link::Http2(link) => link.sender.ready().await.is_ok(),
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            Link::Http1(link) => link.is_ready(),
            Link::Http2(link) => link.sender.is_ready(),
        }
    }

    /// Whether a link that has waited can be used: the guest has neither closed it nor said something unasked.
    fn is_open(&mut self) -> bool {
        match self {
            Link::Http1(link) => link.is_open(),
            Link::Http2(link) => link.sender.is_ready(),
        }
    }
}

fn is_harmless(request: &Request<Upload>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && request.body().is_end_stream()
}

/// What a link leads to. A resumed sandbox has the same socket, but another monitor: the links to the old one are closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Server {
    Guest {
        /// Unix socket of the sandbox's monitor. No `PathBuf`, which takes paths apart to compare them.
        vsock: OsString,
        door: Door,
        protocol: Protocol,
    },
    /// The API's listener, without TLS.
    Api(SocketAddr),
}

impl Server {
    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Server::Guest { protocol, .. } => *protocol,
            Server::Api(_) => Protocol::Http1,
        }
    }
}

/// Links that wait for a request.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<Idle>,
    /// There is a first one.
    filled: Notify,
}

#[derive(Default)]
struct Idle {
    /// Oldest first.
    links: HashMap<Server, Vec<(Link, Instant)>>,
    total: usize,
}

impl Pool {
    /// The link to `server` that was used last.
    pub(super) fn take(&self, server: &Server) -> Option<Link> {
        let mut idle = self.idle();
        loop {
            let (mut link, _) = idle.links.get_mut(server)?.pop()?;
            idle.total -= 1;
            if link.is_open() {
                return Some(link);
            }
        }
    }

    fn put(&self, server: Server, link: Link) {
        let mut idle = self.idle();
        if idle.total >= MAX_IDLE_TOTAL {
            return;
        }
        let links = idle.links.entry(server).or_default();
        if links.len() < MAX_IDLE {
            links.push((link, Instant::now()));
            idle.total += 1;
            if idle.total == 1 {
                self.filled.notify_one();
            }
        }
    }

    /// Closes links that have waited for too long, for ever; sleeps while none waits.
    pub(super) async fn tidy(self: Arc<Self>) {
        loop {
            self.filled.notified().await;
            while self.close_old() > 0 {
                tokio::time::sleep(IDLE_LIFE / 4).await;
            }
        }
    }

    /// Closes links that have waited for too long; how many are left.
    fn close_old(&self) -> usize {
        let mut idle = self.idle();
        if let Some(oldest) = Instant::now().checked_sub(IDLE_LIFE) {
            idle.links.retain(|_, links| {
                links.retain_mut(|(link, since)| *since > oldest && link.is_open());
                !links.is_empty()
            });
            idle.total = idle.links.values().map(Vec::len).sum();
        }
        idle.total
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // No code panics between taking and releasing the lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link in use. Dropping it closes the link.
pub(super) struct Lease {
    link: Link,
    server: Server,
    pool: Arc<Pool>,
}

impl Lease {
    pub(super) fn new(link: Link, server: Server, pool: Arc<Pool>) -> Lease {
        Lease { link, server, pool }
    }

    /// The next piece of the response's body.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.link {
            Link::Http1(link) => link.poll_frame(cx).map_err(Into::into),
            Link::Http2(Http2 { answer: Some(answer), .. }) => Pin::new(answer).poll_frame(cx).map_err(Into::into),
            Link::Http2(Http2 { answer: None, .. }) => Poll::Ready(None),
        }
    }

    /// Whether all of the response's body has been taken.
    pub(super) fn is_end_stream(&self) -> bool {
        match &self.link {
            Link::Http1(link) => link.is_complete(),
            Link::Http2(link) => link.answer.as_ref().is_none_or(Incoming::is_end_stream),
        }
    }

    /// How much of the response's body is left.
    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.link {
            Link::Http1(link) => link.left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Link::Http2(link) => link.answer.as_ref().map_or_else(SizeHint::default, Incoming::size_hint),
        }
    }

    /// The connection, after the guest has agreed to change the protocol.
    pub(super) fn into_stream(self) -> Option<(IdleIo<Stream>, Bytes)> {
        match self.link {
            Link::Http1(link) => link.into_stream(),
            Link::Http2(_) => None,
        }
    }

    /// Keeps the link for another request, once the guest has taken all of the last one; for that it has the time that a
    /// link may wait.
    pub(super) fn give_back(self) {
        let Lease { mut link, server, pool } = self;
        if link.is_ready() {
            return pool.put(server, link);
        }
        tokio::spawn(async move {
            if let Ok(true) = tokio::time::timeout(IDLE_LIFE, link.ready()).await {
                pool.put(server, link);
            }
        });
    }
}
