//! HTTP/1: every request names a host, so every request is asked about.
//!
//! Requests are read and written anew by the same library, one after the other. That is how smuggling ends: where a request
//! ends is decided once, and the server gets what was understood, not what was sent. A connection may go on with another host;
//! the server behind it is changed then.
//!
//! Upgrades to WebSocket become tunnels. Any other, HTTP/2 first of all, could name other hosts within, so it is not passed
//! on and the server answers as if it had not been offered. HTTP/2 without an upgrade is refused.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder as ClientBuilder, SendRequest};
use hyper::server::conn::http1::Builder as ServerBuilder;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, on};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tracing::debug;

use super::activity::Activity;
use super::dial::{DialError, Grant, Target, dial};
use super::host::{BadRequest, target};
use super::watched::{Granted, ask_again, watch};
use crate::denials::Seen;
use crate::shared::Shared;

/// A request's head, and what is buffered of its body, each way.
const BUFFERED: usize = 32 * 1024;
/// What concerns only the connection that it comes by (RFC 9110, section 7.6.1), besides `connection` itself.
const HOP_BY_HOP: [HeaderName; 2] =
    [HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")];

pub(super) type Body = Either<Incoming, Full<Bytes>>;

/// The requests of one connection.
struct Conversation {
    shared: Arc<Shared>,
    /// Where the client connected to.
    to: SocketAddr,
    granted: Granted,
    /// The server that was last spoken to. Held while a request is being answered, as there is one at a time.
    server: Mutex<Option<Server>>,
    /// Both sides of what the connection was upgraded to.
    tunnel: std::sync::Mutex<Option<(OnUpgrade, OnUpgrade)>>,
}

struct Server {
    target: Target,
    grant: Grant,
    requests: SendRequest<Incoming>,
}

/// Why a request does not get a server's answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Malformed(#[from] BadRequest),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("The server switched to a protocol that it was not asked for")]
    Upgrade,
}

impl Refusal {
    pub(super) fn response(&self) -> Response<Body> {
        let status = match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Dial(DialError::Denied(_)) => StatusCode::FORBIDDEN,
            Self::Dial(DialError::Unreachable) | Self::Upgrade => StatusCode::BAD_GATEWAY,
        };
        let mut response = Response::new(Either::Right(Full::from(format!("sandpiper: {self}\n"))));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // What follows on this connection is not to be trusted, or not to be had.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

pub(super) async fn serve(shared: &Arc<Shared>, stream: TcpStream, to: SocketAddr) {
    let activity = Activity::default();
    let conversation = Arc::new(Conversation {
        shared: shared.clone(),
        to,
        granted: Granted::default(),
        server: Mutex::default(),
        tunnel: std::sync::Mutex::default(),
    });
    let service = service_fn(|request| {
        let conversation = conversation.clone();
        async move { conversation.answer(request).await }
    });
    let connection =
        server(shared.limits.head).serve_connection(TokioIo::new(activity.of(stream)), service).with_upgrades();
    let work = async {
        if let Err(error) = connection.await {
            debug!(%error, "an HTTP connection ended");
        }
        conversation.tunnel().await;
    };
    watch(shared, Seen::Http, &conversation.granted, &activity, work).await;
}

/// The side that clients see; for the head of a request they have so long.
pub(super) fn server(head: Duration) -> ServerBuilder {
    let mut builder = ServerBuilder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(BUFFERED);
    builder.half_close(true).preserve_header_case(true).auto_date_header(false);
    builder
}

/// The side that servers see.
pub(super) fn client() -> ClientBuilder {
    let mut builder = ClientBuilder::new();
    builder.max_buf_size(BUFFERED).preserve_header_case(true);
    builder
}

impl Conversation {
    async fn answer(&self, request: Request<Incoming>) -> hyper::Result<Response<Body>> {
        match self.pass_on(request).await {
            Ok(answer) => answer,
            Err(refusal) => {
                debug!(%refusal, "an HTTP request was refused");
                Ok(refusal.response())
            }
        }
    }

    /// The inner error is the server's: it went away without an answer, and so does the connection, which has the client do
    /// what it would do then (RFC 9110, section 9.2.2).
    async fn pass_on(&self, mut request: Request<Incoming>) -> Result<hyper::Result<Response<Body>>, Refusal> {
        let target = target(&request)?;
        let mut server = self.server.lock().await;
        let mut current = match server.take() {
            Some(server) if server.target == target && self.goes_on(&server).await => server,
            _ => self.connect(target).await?,
        };
        if let Err(error) = current.requests.ready().await {
            return Ok(Err(error));
        }

        let upgrade = prepare(&mut request).then(|| on(&mut request));
        let mut response = match current.requests.send_request(request).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(upgrade) = upgrade else { return Err(Refusal::Upgrade) };
            *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, on(&mut response)));
        } else {
            *server = Some(current);
        }
        for header in &HOP_BY_HOP {
            response.headers_mut().remove(header);
        }
        Ok(Ok(response.map(Either::Left)))
    }

    async fn goes_on(&self, server: &Server) -> bool {
        !server.requests.is_closed() && server.grant.decide(&self.shared).await.is_allowed()
    }

    async fn connect(&self, target: Target) -> Result<Server, Refusal> {
        let (stream, grant) = dial(&self.shared, Seen::Http, &target, self.to).await?;
        self.granted.set(grant.clone());
        // Whoever watches the connection knows the grant from here on, but not of a change while it was being dialled.
        ask_again(&self.shared, Seen::Http, &grant).await.map_err(DialError::Denied)?;
        let (requests, connection) =
            client().handshake(TokioIo::new(stream)).await.map_err(|_| DialError::Unreachable)?;
        // Ends with `requests`, so with the conversation or its next server.
        self.shared.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                debug!(%error, "a connection to a server ended");
            }
        });
        Ok(Server { target, grant, requests })
    }

    /// What comes after an upgrade, if there was one.
    async fn tunnel(&self) {
        let upgrades = self.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((client, server)) = upgrades else { return };
        if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
            let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
        }
    }
}

/// Makes a request one of this proxy's own. Whether it asks for an upgrade that is passed on.
pub(super) fn prepare(request: &mut Request<Incoming>) -> bool {
    let path = request.uri().path_and_query().cloned();
    // As to a server, also if it was made as to a proxy. The asterisk of OPTIONS is a path here.
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);

    let headers = request.headers_mut();
    let websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    let mut upgrades = headers.get_all(UPGRADE).iter();
    let upgrade = upgrades.next().is_some_and(websocket) && upgrades.next().is_none();
    for header in &HOP_BY_HOP {
        headers.remove(header);
    }
    // The connection to the server is this proxy's, and lasts as long as it likes.
    headers.remove(CONNECTION);
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
    upgrade
}
