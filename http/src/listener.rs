//! Sockets: accepting connections, bounding them, and ending them well.
//!
//! A connection is TLS first where that is on; ALPN then chooses HTTP/2 or HTTP/1.1. A plain one is HTTP/1.1, or HTTP/2 when it
//! begins with that protocol's preface ("prior knowledge").

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use sandpiper_ingress::ALPN_H2;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::unread::drained;

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 4096;
/// From a connection's first byte, or the end of the request before, to the end of the next request's head. Ends idle
/// connections too, but for HTTP/2.
const HEAD: Duration = Duration::from_secs(60);
/// For the handshake.
const TLS: Duration = Duration::from_secs(10);
/// A connection of HTTP/2 takes no more requests after this, so that none is kept for nothing for ever.
const HTTP2_LIFE: Duration = Duration::from_secs(300);
const HTTP2_STREAMS: u32 = 250;
/// How long requests may go on after the signal to stop.
const DRAIN: Duration = Duration::from_secs(30);
/// How long a peer may leave what was sent to it, before its connection is ended: most of all one that follows events, and has
/// stopped reading them.
const UNREAD: Duration = Duration::from_secs(60);
/// After an accept that failed, which for lack of descriptors it would do in a busy loop.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How HTTP/2 begins (RFC 9113, 3.4), as far as it tells it from HTTP/1.1: no method begins so.
const HTTP2_PREFACE: &[u8] = b"PRI ";

/// Serves `router` until `stop`, then lets the requests under way finish.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router, stop: impl Future<Output = ()>) {
    let (connections, finish) = (TaskTracker::new(), CancellationToken::new());
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    tokio::pin!(stop);
    loop {
        let permit = tokio::select! {
            permit = permits.clone().acquire_owned() => permit,
            () = &mut stop => break,
        };
        // The semaphore is never closed.
        let Ok(permit) = permit else { break };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let (tls, router, finish) = (tls.clone(), router.clone(), finish.clone());
        connections.spawn(async move {
            let _permit = permit;
            // Until it has said what it speaks, there is nothing to finish.
            let begun = tokio::select! {
                begun = begin(stream, tls) => begun,
                () = finish.cancelled() => return,
            };
            match begun {
                Ok(Begun::Plain(stream, protocol)) => serve_connection(stream, protocol, router, finish).await,
                Ok(Begun::Tls(stream, protocol)) => serve_connection(stream, protocol, router, finish).await,
                Err(error) => tracing::debug!(%error, "connection ended before its first request"),
            }
        });
    }
    drop(listener);
    finish.cancel();
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::warn!("connections were cut off at shutdown");
    }
}

#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

enum Begun {
    Plain(TcpStream, Protocol),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>, Protocol),
}

/// Finds out what a new connection speaks.
async fn begin(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Begun> {
    // Responses are written whole: waiting for more to send only delays them. A failure costs nothing else.
    let _ = stream.set_nodelay(true);
    end_where_unread(&stream, UNREAD)?;
    let Some(tls) = tls else {
        let protocol = tokio::time::timeout(HEAD, peek(&stream)).await??;
        return Ok(Begun::Plain(stream, protocol));
    };
    let stream = tokio::time::timeout(TLS, tls.accept(stream)).await??;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_H2);
    Ok(Begun::Tls(Box::new(stream), if is_http2 { Protocol::Http2 } else { Protocol::Http1 }))
}

/// Has the kernel end a connection whose peer does not take what is sent to it for so long (`tcp(7)`, `TCP_USER_TIMEOUT`): the
/// next write fails.
fn end_where_unread(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    Ok(setsockopt(stream, sockopt::TcpUserTimeout, &limit)?)
}

/// Waits for the first bytes and looks at them without taking them. Clients send the preface in one piece.
async fn peek(stream: &TcpStream) -> io::Result<Protocol> {
    let mut beginning = [0; HTTP2_PREFACE.len()];
    let length = stream.peek(&mut beginning).await?;
    Ok(if beginning[..length] == *HTTP2_PREFACE { Protocol::Http2 } else { Protocol::Http1 })
}

async fn serve_connection<S>(stream: S, protocol: Protocol, router: Router, finish: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => {
            let service = router.map_request(|request: Request<Incoming>| drained(request).map(Body::new));
            let service = TowerToHyperService::new(assert_infallible(service));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // For WebSockets.
            let connection = http.serve_connection(stream, service).with_upgrades();
            drive(connection, http1::UpgradeableConnection::graceful_shutdown, finish.cancelled()).await;
        }
        Protocol::Http2 => {
            let service = router.map_request(|request: Request<Incoming>| request.map(Body::new));
            let service = TowerToHyperService::new(assert_infallible(service));
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new()).max_concurrent_streams(HTTP2_STREAMS);
            let over = async {
                // Either way it is time to end.
                let _ = tokio::time::timeout(HTTP2_LIFE, finish.cancelled()).await;
            };
            let connection = http.serve_connection(stream, service);
            drive(connection, http2::Connection::graceful_shutdown, over).await;
        }
    }
}

/// Serves a connection; after `over` it finishes what it has and takes nothing new, as `finish` has it do.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    finish: impl FnOnce(Pin<&mut C>),
    over: impl Future<Output = ()>,
) {
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = over => {
            finish(connection.as_mut());
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Names the error type: a router has a response to everything.
fn assert_infallible<S: tower::Service<Request<Incoming>, Error = Infallible>>(service: S) -> S {
    service
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_peer_that_stops_reading_loses_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        end_where_unread(&stream, Duration::from_millis(200)).unwrap();

        let write = async {
            loop {
                if let Err(error) = stream.write_all(&[b'x'; 64 * 1024]).await {
                    return error;
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(60), write).await.expect("an end of it");

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
