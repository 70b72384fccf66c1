//! Connections into guests that are kept for the next request.
//!
//! A link serves one request at a time, so no answer can reach the wrong request and a slow client holds up nobody else.
//! When an answer is complete and nothing of its request is left, the link waits in the [`Pool`] for another request to
//! the same server. It does not wait long: a server that handles one connection at a time is not kept from its next
//! visitor, and servers, which themselves close idle connections after a few seconds, hardly ever close one of ours just
//! when we write to it. An answer that is given up half-way closes its link, and so the guest learns of it.
//!
//! Someone must poll a connection for anything to move on it. Most requests have no body, and then it is enough that
//! whoever waits for the answer, or for the next piece of it, does so: all is done in one task, without waking another for
//! every step. A body must go on while nobody reads the answer, so the connection gets a task of its own for it.

use std::ffi::OsString;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::HashMap;
use http::header::UPGRADE;
use http::{Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::headers::Protocol;
use super::idle::IdleIo;
use super::proxy::MAX_HEAD;
use super::route::Door;
use super::upload::Upload;

/// How long a link may wait for its next request.
const IDLE_LIFE: Duration = Duration::from_secs(1);
/// Waiting links of one server.
const MAX_IDLE: usize = 128;
/// Waiting links of all servers together.
const MAX_IDLE_TOTAL: usize = 1024;
/// What a gRPC server may send ahead of being read.
const H2_WINDOW: u32 = 1 << 20;

/// A connection to one server in a guest. Dropping it closes it.
pub(super) struct Link {
    sender: Sender,
    connection: Connection,
}

enum Sender {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
}

/// hyper's side of a link, and who polls it.
enum Connection {
    /// Whoever uses the link.
    Here(Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>),
    Task {
        _handle: AbortOnDropHandle<()>,
    },
    Ended,
}

impl Connection {
    fn in_task(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> Connection {
        let drive = async move { note_end(connection.await) };
        Connection::Task { _handle: AbortOnDropHandle::new(tokio::spawn(drive)) }
    }

    /// Does what can be done now, unless a task does it.
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Connection::Here(connection) = self
            && let Poll::Ready(result) = connection.as_mut().poll(cx)
        {
            note_end(result);
            *self = Connection::Ended;
        }
    }
}

fn note_end(result: hyper::Result<()>) {
    if let Err(error) = result {
        debug!(%error, "A connection to a guest broke");
    }
}

impl Link {
    /// Speaks `protocol` on `stream`, as long as something moves on it every `idle_timeout`.
    pub(super) async fn open(stream: UnixStream, protocol: Protocol, idle_timeout: Duration) -> hyper::Result<Link> {
        let io = TokioIo::new(IdleIo::new(stream, idle_timeout));
        match protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(MAX_HEAD);
                let (sender, connection) = builder.handshake(io).await?;
                Ok(Link {
                    sender: Sender::Http1(sender),
                    connection: Connection::Here(Box::pin(connection.with_upgrades())),
                })
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(H2_WINDOW).initial_connection_window_size(H2_WINDOW);
                builder.max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX));
                let (sender, connection) = builder.handshake(io).await?;
                Ok(Link { sender: Sender::Http2(sender), connection: Connection::in_task(connection) })
            }
        }
    }

    /// Sends a request and waits for the head of its answer. The error has the request where nothing of it was sent.
    pub(super) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        if !request.body().is_end_stream() || request.headers().contains_key(UPGRADE) {
            self.drive_apart();
        }
        match &mut self.sender {
            Sender::Http1(sender) => {
                let mut answer = pin!(sender.try_send_request(request));
                poll_fn(|cx| {
                    self.connection.poll(cx);
                    answer.as_mut().poll(cx)
                })
                .await
            }
            Sender::Http2(sender) => sender.try_send_request(request).await,
        }
    }

    /// Gives the connection a task of its own, for good.
    fn drive_apart(&mut self) {
        self.connection = match std::mem::replace(&mut self.connection, Connection::Ended) {
            Connection::Here(connection) => Connection::in_task(connection),
            other => other,
        };
    }

    /// Waits until the last exchange is over on both sides; an error when the guest has closed.
    async fn ready(&mut self) -> hyper::Result<()> {
        poll_fn(|cx| {
            self.connection.poll(cx);
            match &mut self.sender {
                Sender::Http1(sender) => sender.poll_ready(cx),
                Sender::Http2(sender) => sender.poll_ready(cx),
            }
        })
        .await
    }

    fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    /// Whether a link that has waited can be used: the guest has neither closed it nor said something unasked.
    fn is_open(&mut self) -> bool {
        // Nobody is to be woken: this only looks at what has come.
        self.connection.poll(&mut Context::from_waker(Waker::noop()));
        self.is_ready()
    }
}

/// What a link leads to. A resumed sandbox has the same socket, but another monitor: the links to the old one are closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    /// Unix socket of the sandbox's monitor. No `PathBuf`, which takes paths apart to compare them.
    pub(super) vsock: OsString,
    pub(super) door: Door,
    pub(super) protocol: Protocol,
}

/// Links that wait for a request.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<Idle>,
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
        }
    }

    /// Closes links that have waited for too long, for ever.
    pub(super) async fn tidy(self: Arc<Self>) {
        loop {
            tokio::time::sleep(IDLE_LIFE / 4).await;
            let Some(oldest) = Instant::now().checked_sub(IDLE_LIFE) else { continue };
            let mut idle = self.idle();
            idle.links.retain(|_, links| {
                links.retain_mut(|(link, since)| *since > oldest && link.is_open());
                !links.is_empty()
            });
            idle.total = idle.links.values().map(Vec::len).sum();
        }
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

    /// Lets the answer come, while whoever reads it waits for a piece.
    pub(super) fn poll_link(&mut self, cx: &mut Context<'_>) {
        self.link.connection.poll(cx);
    }

    /// Keeps the link for another request, once the guest has taken all of the last one; for that it has the time that a
    /// link may wait.
    pub(super) fn give_back(self) {
        let Lease { mut link, server, pool } = self;
        if link.is_ready() {
            return pool.put(server, link);
        }
        tokio::spawn(async move {
            if let Ok(Ok(())) = tokio::time::timeout(IDLE_LIFE, link.ready()).await {
                pool.put(server, link);
            }
        });
    }
}
