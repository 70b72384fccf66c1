//! The listening socket, and the connections that come in on it.
//!
//! A connection is TLS first where that is on; ALPN then chooses HTTP/2 or HTTP/1.1. A plain connection is HTTP/1.1, or
//! HTTP/2 when it begins with that protocol's preface ("prior knowledge"); an upgrade from one to the other is not offered.
//! A client that sends its head too slowly, stops reading, or says nothing at all, loses its connection and nobody else's.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::Directory;
use super::framing::StrictIo;
use super::headers::MAX_HEAD;
use super::idle::IdleIo;
use super::limits::{Limit, Neighbourhood};
use super::memory::{SEND_BUFFER, WINDOW_KIB};
use super::proxy::{Client, Held, Proxy};
use super::tls::ALPN_H2;

const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// For a request's head, and also for how long an HTTP/1.1 connection may wait for the next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// What requests in flight get to end when the agent stops.
const GRACE: Duration = Duration::from_secs(5);
/// A connection that was quiet for so long is probed by the kernel, so often, before it counts as dead. Unlike pings of
/// HTTP/2 the probes are no bytes of the stream: one on which nothing moves still ends after the idle time.
const PROBE_AFTER_SECONDS: u32 = 30;
const PROBE_INTERVAL_SECONDS: u32 = 10;
const PROBES: u32 = 3;
/// When the process has no descriptor left, one is likely to come back soon.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const H2_STREAMS: u32 = 250;
/// Streams that a client may reset before they were looked at, and that may be reset for its mistakes. One that makes and
/// ends streams only to keep us busy ("rapid reset", CVE-2023-44487, CVE-2025-8671) loses its connection.
const H2_PENDING_RESETS: usize = 20;
const H2_ERROR_RESETS: usize = 100;
/// The window that every connection of HTTP/2 begins with (RFC 9113 section 6.9.2).
const H2_LEAST_WINDOW: u32 = 65_535;
/// How HTTP/2 begins (RFC 9113 section 3.4), as far as it tells it from HTTP/1.1: no method begins so.
const H2_PREFACE: &[u8] = b"PRI ";

/// What plain-text clients read when there are too many of them.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Accepts connections and serves them.
pub(super) struct Listener<D> {
    pub(super) socket: TcpListener,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) proxy: Arc<Proxy<D>>,
    pub(super) max_connections: usize,
    /// Connections of each client.
    pub(super) clients: Arc<Limit<Neighbourhood>>,
}

impl<D: Directory> Listener<D> {
    /// Serves until `shutdown`; then requests in flight have [`GRACE`] to end.
    pub(super) async fn run(self, shutdown: CancellationToken) {
        let room = Arc::new(Semaphore::new(self.max_connections.min(Semaphore::MAX_PERMITS)));
        let connections = TaskTracker::new();
        let phases = Phases { finish: shutdown.clone(), abort: CancellationToken::new() };
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = shutdown.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer)) => match self.admit(&room, peer.ip()) {
                    Some(held) => {
                        connections.spawn(self.connection(stream, peer, held, phases.clone()));
                    }
                    None => self.turn_away(&stream),
                },
                Err(error) if is_about_one_connection(&error) => {
                    debug!(%error, "A connection ended before it was accepted")
                }
                Err(error) => {
                    warn!(%error, "Cannot accept connections at the moment");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
        drop(self.socket);
        self.proxy.stop.cancel();
        connections.close();
        if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
            phases.abort.cancel();
            connections.wait().await;
        }
    }

    /// A place among all connections, and among those of the client.
    fn admit(&self, room: &Arc<Semaphore>, client: IpAddr) -> Option<Held> {
        let permit = room.clone().try_acquire_owned().ok()?;
        let place = match self.proxy.trusted.contain(client.to_canonical()) {
            true => None,
            false => Some(self.clients.enter(client.into())?),
        };
        Some(Held { _permit: permit, _place: place, _counted: self.proxy.stats.connection() })
    }

    /// Says so where that costs nothing; a client in a TLS handshake only sees the connection close.
    fn turn_away(&self, stream: &TcpStream) {
        self.proxy.stats.connections_refused.inc();
        if self.tls.is_none() {
            let _ = stream.try_write(FULL);
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        held: Held,
        phases: Phases,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (proxy, tls) = (self.proxy.clone(), self.tls.clone());
        async move {
            let client = Client { peer: peer.ip().into(), held: Arc::new(held) };
            if let Err(error) = prepare(&stream) {
                debug!(%error, "Cannot set a connection's socket options; the kernel's defaults stay");
            }
            let idle = proxy.idle_timeout;
            let Some(acceptor) = tls else {
                let beginning = tokio::select! {
                    beginning = tokio::time::timeout(HEAD_TIMEOUT, peek(&stream)) => beginning,
                    () = phases.finish.cancelled() => return,
                };
                return match beginning {
                    Ok(Ok(Beginning::Http1)) => serve_http1(IdleIo::new(stream, idle), client, proxy, phases).await,
                    Ok(Ok(Beginning::Http2)) => serve_http2(IdleIo::new(stream, idle), client, proxy, phases).await,
                    Ok(Err(error)) => debug!(%peer, %error, "A connection broke before its first byte"),
                    Err(_) => debug!(%peer, "A connection timed out before its first byte"),
                };
            };
            let handshake = tokio::select! {
                handshake = tokio::time::timeout(TLS_TIMEOUT, acceptor.accept(stream)) => handshake,
                () = phases.finish.cancelled() => return,
            };
            match handshake {
                Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(ALPN_H2) => {
                    serve_http2(IdleIo::new(stream, idle), client, proxy, phases).await;
                }
                Ok(Ok(stream)) => serve_http1(IdleIo::new(stream, idle), client, proxy, phases).await,
                Ok(Err(error)) => debug!(%peer, %error, "A TLS handshake failed"),
                Err(_) => debug!(%peer, "A TLS handshake timed out"),
            }
        }
    }
}

/// Whether an error of accept(2) concerns the connection that it would have returned, and no other (accept(2), "Error handling").
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable
    )
}

/// Sends small pieces at once, and notices when the client has vanished.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &PROBE_AFTER_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_INTERVAL_SECONDS)?;
    setsockopt(stream, sockopt::TcpKeepCount, &PROBES)?;
    Ok(())
}

/// What a plain connection speaks.
enum Beginning {
    Http1,
    Http2,
}

/// Waits for the first bytes and looks at them without taking them. Clients send the preface in one piece.
async fn peek(stream: &TcpStream) -> io::Result<Beginning> {
    let mut beginning = [0; H2_PREFACE.len()];
    let length = stream.peek(&mut beginning).await?;
    Ok(if beginning[..length] == *H2_PREFACE { Beginning::Http2 } else { Beginning::Http1 })
}

/// How connections are told to end.
#[derive(Clone)]
pub(super) struct Phases {
    /// Answer what was asked, take nothing new.
    pub(super) finish: CancellationToken,
    /// Now.
    pub(super) abort: CancellationToken,
}

/// Drives a hyper connection through the phases. A macro, because hyper's connections share the method but no trait.
macro_rules! drive {
    ($connection:expr, $phases:expr) => {{
        let mut connection = pin!($connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = $phases.finish.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    result = connection.as_mut() => result,
                    () = $phases.abort.cancelled() => return,
                }
            }
        };
        if let Err(error) = result {
            debug!(%error, "A client's connection broke");
        }
    }};
}

pub(super) async fn serve_http1<D: Directory, S>(stream: S, client: Client, proxy: Arc<Proxy<D>>, phases: Phases)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| async { Ok::<_, Infallible>(proxy.handle(&client, request).await) });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(StrictIo::new(stream)), service)
        .with_upgrades();
    drive!(connection, phases);
}

async fn serve_http2<D: Directory, S>(stream: S, client: Client, proxy: Arc<Proxy<D>>, phases: Phases)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let client = Arc::new(client);
    let room = proxy.memory.window();
    let window = if room.is_some() { WINDOW_KIB * 1024 } else { H2_LEAST_WINDOW };
    let service = service_fn(move |request| {
        let (client, proxy) = (client.clone(), proxy.clone());
        async move { Ok::<_, Infallible>(proxy.handle(&client, request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS)
        .max_pending_accept_reset_streams(H2_PENDING_RESETS)
        .max_local_error_reset_streams(H2_ERROR_RESETS)
        .enable_connect_protocol()
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .serve_connection(TokioIo::new(stream), service);
    drive!(connection, phases);
}
