//! One request: from its host name to the guest's answer.
//!
//! ```text
//!   host ─▶ route ─▶ sandbox ─▶ port exposed? ─▶ token ─▶ a place free? ─▶ running, or woken? ─▶ vsock ─▶ HTTP/1.1
//! ```
//!
//! Every request has a connection of its own into the guest. It costs two messages between processes of this host, and in
//! return no answer can reach the wrong request, no stale connection needs a second try, and closing it tells the guest at
//! once that the client has gone.
//!
//! The framing of what is forwarded follows the body as hyper parsed it. A request with both `Content-Length` and
//! `Transfer-Encoding` is chunked, loses the former, and ends its connection (RFC 9112 section 6.3); so nothing that a
//! client smuggles is seen as a second request by a guest.

use std::error::Error as _;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, EXPECT, HOST, HeaderValue, ORIGIN, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{Method, Request, Response, StatusCode, Version, request, response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::guest::DATA_PLANE_PORT;
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::body::Body;
use super::credentials::Credentials;
use super::headers::{Origin, prepare_request, remove_hop_by_hop};
use super::idle::IdleIo;
use super::limits::{InFlight, Place};
use super::refusal::{Refusal, RequestedForm};
use super::route::{Door, Route, route};
use super::stats::{Kind, Open, Outcome, Stats};
use super::upgrade::{self, Tunnel};
use super::{Directory, Target};
use crate::session::Sessions;
use crate::vsock::{self, ForwardError};

/// A guest on a busy host may take its time to accept; the E2B SDKs' own probe gives up after 5 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Head of a message in either direction.
pub(super) const MAX_HEAD: usize = 64 * 1024;
pub(super) const MAX_HEADERS: usize = 128;
/// The one operation of the data plane that needs no token, so that anyone may ask whether a sandbox runs.
const HEALTH_PATH: &str = "/health";

/// How long the body of a refused request is read and thrown away.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Whose connection a request came on.
pub(super) struct Client {
    pub(super) ip: IpAddr,
    /// The connection's place among all connections. A tunnel holds on to it: its connection lives on where hyper's ends.
    pub(super) held: Arc<Held>,
}

/// See [`Client::held`].
pub(super) struct Held {
    pub(super) _permit: OwnedSemaphorePermit,
    pub(super) _counted: Open,
}

/// Everything that a request is handled with.
pub(super) struct Proxy<D> {
    pub(super) directory: Arc<D>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) data_plane_host: String,
    /// `http` or `https`, as clients see it.
    pub(super) scheme: &'static str,
    pub(super) idle_timeout: Duration,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) stats: Arc<Stats>,
    /// Ends the tunnels.
    pub(super) stop: CancellationToken,
}

impl<D: Directory> Proxy<D> {
    /// Answers one request of `client`, always.
    pub(super) async fn handle(&self, client: &Client, mut request: Request<Incoming>) -> Response<Body> {
        let form = RequestedForm::of(request.headers());
        let expects = request.headers().contains_key(EXPECT);
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        let mut kind = Kind::Unknown;
        match self.answer(client, head, &mut body, upgrade, &mut kind).await {
            Ok(response) => {
                self.stats.count(kind, Outcome::Answered);
                response
            }
            Err(refusal) => {
                debug!(?kind, ?refusal, "Request refused");
                self.stats.count(kind, refusal.outcome());
                // A client that waits for leave to send must not get it: reading would make hyper say "100 Continue".
                if let Some(body) = body.filter(|body| !body.is_end_stream() && !expects) {
                    tokio::spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(body)));
                }
                refusal.response(&form)
            }
        }
    }

    /// Takes `body` once it goes to a guest, and sets `kind` as soon as it is known.
    async fn answer(
        &self,
        client: &Client,
        mut parts: request::Parts,
        body: &mut Option<Incoming>,
        on_client: OnUpgrade,
        kind: &mut Kind,
    ) -> Result<Response<Body>, Refusal> {
        if parts.method == Method::CONNECT {
            return Err(Refusal::ConnectMethod);
        }
        let host = requested_host(&parts)?;
        let text = host.to_str().map_err(|_| Refusal::UnknownHost)?;
        let Route { token, door } = route(text, &self.data_plane_host).ok_or(Refusal::UnknownHost)?;
        *kind = match door {
            Door::DataPlane => Kind::DataPlane,
            Door::Port(_) => Kind::Preview,
        };
        if door == Door::DataPlane && is_preflight(&parts) {
            return Ok(preflight(&parts));
        }
        let mut target = self.directory.find(&token).await.ok_or(Refusal::SandboxNotFound)?;

        let protocols = upgrade::requested(&parts);
        let mut path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let websocket = upgrade::is_websocket(protocols.as_ref());
        let credentials = Credentials::take(&mut parts.headers, &mut path, websocket);
        let allowed = credentials.check(&self.sessions, &target.sandbox_id);
        // A question that anyone may ask wakes nobody.
        let may_wake = match needs_token(door, &target, &parts)? {
            true => allowed.map(|()| true).map_err(Refusal::Unauthorized)?,
            false => allowed.is_ok() || door != Door::DataPlane,
        };
        let place = self.in_flight.enter(&target.sandbox_id, *kind).ok_or(Refusal::Busy)?;
        if target.wakes && may_wake {
            self.directory.wake(&target.sandbox_id).await.map_err(Refusal::NotWoken)?;
            target = self.directory.find(&token).await.ok_or(Refusal::SandboxNotFound)?;
        }
        // A checkpoint stops the guest for a moment; what arrives meanwhile waits.
        if !matches!(target.state, SandboxState::Ready | SandboxState::Checkpointing) {
            return Err(Refusal::NotRunning(target.state));
        }

        parts.uri = path.parse().map_err(|_| Refusal::Invalid("The request target is not valid"))?;
        prepare_request(&mut parts.headers, &Origin { peer: client.ip, scheme: self.scheme, host: &host });
        let upgrade = protocols.map(|protocols| {
            upgrade::announce(&mut parts.headers, protocols);
            on_client
        });
        let stream = connect(&target, door).await?;
        let exchange = Exchange { stream, idle_timeout: self.idle_timeout, place };
        let body = body.take().ok_or(Refusal::Unreachable)?;
        let (mut response, connection, place) = exchange.send(guest_request(parts, body)).await?;

        let on_guest = hyper::upgrade::on(&mut response);
        let (mut head, body) = response.into_parts();
        let agreed = prepare_response(&mut head, door);
        if head.status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Response::from_parts(head, Body::guest(body, connection, place)));
        }
        let (Some(on_client), Some(agreed)) = (upgrade, agreed) else {
            debug!(sandbox_id = target.sandbox_id, "The guest switched protocols without being asked");
            return Err(Refusal::BrokenAnswer);
        };
        upgrade::announce(&mut head.headers, agreed);
        let tunnel = Tunnel { client: on_client, guest: on_guest, connection, stop: self.stop.clone() };
        let held = (place, client.held.clone(), self.stats.tunnel());
        tokio::spawn(async move {
            tunnel.run().await;
            drop(held);
        });
        Ok(Response::from_parts(head, Body::empty()))
    }
}

/// Reads the rest of a refused request and forgets it. A client that is still sending would otherwise have its connection
/// reset before it reads why it was refused.
async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// One request's connection into a guest.
struct Exchange {
    stream: UnixStream,
    idle_timeout: Duration,
    place: Place,
}

impl Exchange {
    /// Sends `request`; the handle drives the connection, which ends when it is dropped.
    async fn send(
        self,
        request: Request<Incoming>,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>, Place), Refusal> {
        let io = TokioIo::new(IdleIo::new(self.stream, self.idle_timeout));
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(io)
            .await
            .map_err(|error| refusal_of(&error))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                debug!(%error, "A connection to a guest broke");
            }
        }));
        let response = sender.send_request(request).await.map_err(|error| refusal_of(&error))?;
        Ok((response, driver, self.place))
    }
}

/// Who was to blame when no answer came.
fn refusal_of(error: &hyper::Error) -> Refusal {
    if error.is_user() {
        // The only thing of ours that hyper can object to here is the body, which is the client's.
        return Refusal::Invalid("The request's body broke off or is not valid");
    }
    let timed_out = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|source| source.kind() == io::ErrorKind::TimedOut);
    if timed_out { Refusal::TimedOut } else { Refusal::BrokenAnswer }
}

async fn connect(target: &Target, door: Door) -> Result<UnixStream, Refusal> {
    let result = match door {
        Door::DataPlane => vsock::connect(&target.vsock, DATA_PLANE_PORT, CONNECT_TIMEOUT).await.map_err(Into::into),
        Door::Port(port) => vsock::forward(&target.vsock, port, CONNECT_TIMEOUT).await,
    };
    result.map_err(|error| {
        debug!(sandbox_id = target.sandbox_id, %error, "A guest was not reached");
        match error {
            ForwardError::Refused { port } => Refusal::PortClosed(port),
            ForwardError::Guest(_) => Refusal::Unreachable,
        }
    })
}

/// Whether this request needs the sandbox's token; an error where the port is not exposed at all.
fn needs_token(door: Door, target: &Target, parts: &request::Parts) -> Result<bool, Refusal> {
    match door {
        Door::DataPlane => Ok(!(parts.method == Method::GET && parts.uri.path() == HEALTH_PATH)),
        Door::Port(port) => {
            let exposed = target.exposed_ports.iter().find(|exposed| exposed.port == port);
            let exposed = exposed.ok_or(Refusal::PortNotExposed(port))?;
            Ok(!(exposed.public && target.allow_public_traffic))
        }
    }
}

/// The one host that a request is for, as the client sent it.
fn requested_host(request: &request::Parts) -> Result<HeaderValue, Refusal> {
    let mut fields = request.headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return Err(Refusal::Invalid("A request has one Host field"));
    }
    // `:authority` of HTTP/2, or a target in absolute form, which takes precedence over Host (RFC 9112 section 3.2.2).
    let Some(authority) = request.uri.authority() else {
        return field.cloned().ok_or(Refusal::Invalid("The request names no host"));
    };
    if field.is_some_and(|field| !field.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())) {
        return Err(Refusal::Invalid("The Host field contradicts the request target"));
    }
    HeaderValue::from_str(authority.as_str()).map_err(|_| Refusal::UnknownHost)
}

/// The request in the framing of the next hop.
fn guest_request(mut parts: request::Parts, body: Incoming) -> Request<Incoming> {
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    let had_length = parts.headers.remove(CONTENT_LENGTH).is_some();
    match body.size_hint().exact() {
        Some(0) if !had_length => {}
        Some(length) => {
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        // Said, because hyper takes a GET of unknown length for one without a body.
        None => {
            parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    Request::from_parts(parts, body)
}

/// Makes the head of a guest's answer that of the answer to the client. Returns the protocol it switched to.
fn prepare_response(head: &mut response::Parts, door: Door) -> Option<HeaderValue> {
    head.version = Version::HTTP_11;
    head.extensions.clear();
    let agreed = head.headers.remove(UPGRADE);
    let chunked = head.headers.contains_key(TRANSFER_ENCODING);
    remove_hop_by_hop(&mut head.headers);
    if chunked {
        head.headers.remove(CONTENT_LENGTH);
    }
    if door == Door::DataPlane {
        // Tokens travel in fields that a page must set itself, never in cookies, so any page may call with one.
        head.headers.entry(ACCESS_CONTROL_ALLOW_ORIGIN).or_insert(HeaderValue::from_static("*"));
        head.headers.entry(ACCESS_CONTROL_EXPOSE_HEADERS).or_insert(HeaderValue::from_static("*"));
    }
    agreed
}

/// A browser asks before a page of another origin may call the data plane. It sends no token with that question.
fn is_preflight(request: &request::Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight(request: &request::Parts) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let asked = &request.headers;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    headers.insert(
        VARY,
        HeaderValue::from_static("origin, access-control-request-method, access-control-request-headers"),
    );
    // `*` would leave out Authorization, so the question is given back as the answer.
    let echo = [
        (ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_ALLOW_METHODS),
        (ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_ALLOW_HEADERS),
    ];
    for (question, answer) in echo {
        if let Some(value) = asked.get(question) {
            headers.insert(answer, value.clone());
        }
    }
    response
}
