//! One request: from its host name to the guest's response. One for the API leaves here early, for [`super::api`].
//!
//! ```text
//!   host ─▶ route ─▶ sandbox ─▶ port exposed? ─▶ token ─▶ a place free? ─▶ running, or woken? ─▶ exchange over a link
//!                                                                                ▲                      │
//!                                                                                └─── paused meanwhile ─┘
//! ```
//!
//! A pause at the deadline waits for nobody. A request that comes while it goes on waits for its end, and wakes the sandbox; so
//! does one that was let through just before and got no response, if it can be sent again. A response that has begun is cut off:
//! where it is a stream of the data plane, with an error in its own form ([`super::envelopes`]).
//!
//! The framing of what is forwarded follows the body as hyper parsed it, never a field; and what hyper gets to parse has
//! passed [`super::framing`], so nothing that a client smuggles is seen as a second request by a guest.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Request, Response, StatusCode, Uri, Version, request, response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::id;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::address::{Address, address, announces_fields};
use super::body::Body;
use super::cors;
use super::credentials::{Credentials, access_token};
use super::envelopes::Envelopes;
use super::exchange::exchange;
use super::forwarded::{Peer, Source, TrustedProxies};
use super::grant::{Grant, RECHECK};
use super::headers::{Protocol, prepare_request, remove_hop_by_hop};
use super::host::requested_host;
use super::limits::{Full, InFlight, Neighbourhood, Place};
use super::link::{Lease, Pool, Server, Unanswered};
use super::memory::Memory;
use super::refusal::{Refusal, RequestedForm};
use super::route::{Door, Route};
use super::signed::SignedUrl;
use super::stats::{Kind, Open, Outcome, Stats};
use super::upgrade::{Tunnel, Wish};
use super::upload::Upload;
use super::{Directory, Target};
use crate::session::Sessions;

/// The one operation of the data plane that needs no token, so that anyone may ask whether a sandbox runs.
const HEALTH_PATH: &str = "/health";
/// What ids of sandboxes begin with.
const SANDBOX_PREFIX: &str = "sbx";
/// For the rest of a refused request to arrive.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// One client's connection, as its requests see it.
pub(super) struct Client {
    pub(super) peer: Peer,
    /// Also held by the connection's tunnel, which outlives it.
    pub(super) held: Arc<Held>,
}

/// See [`Client::held`].
pub(super) struct Held {
    pub(super) _permit: OwnedSemaphorePermit,
    pub(super) _place: Option<Place<Neighbourhood>>,
    pub(super) _counted: Open,
}

/// What is known of a request, however far it came.
struct Seen {
    kind: Kind,
    /// Where the request named the sandbox by it.
    sandbox_id: Option<String>,
}

/// Everything that a request is handled with.
pub(super) struct Proxy<D> {
    pub(super) directory: Arc<D>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) data_plane_host: String,
    /// Where the API listens, if its name is served here.
    pub(super) api: Option<SocketAddr>,
    /// `http` or `https`, as clients see it.
    pub(super) scheme: &'static str,
    pub(super) trusted: TrustedProxies,
    pub(super) idle_timeout: Duration,
    /// How long a client may pause in the middle of a request's body.
    pub(super) body_timeout: Duration,
    pub(super) in_flight: InFlight,
    pub(super) memory: Memory,
    pub(super) pool: Arc<Pool>,
    pub(super) stats: Arc<Stats>,
    /// Ends the tunnels.
    pub(super) stop: CancellationToken,
}

impl<D: Directory> Proxy<D> {
    /// Responds to one request of `client`, always.
    pub(super) async fn handle(&self, client: &Client, mut request: Request<Incoming>) -> Response<Body> {
        let form = RequestedForm::of(request.headers());
        let expects = request.headers().contains_key(EXPECT);
        let may_leave_http = request.method() == Method::CONNECT || request.headers().contains_key(UPGRADE);
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        let mut seen = Seen { kind: Kind::Unknown, sandbox_id: None };
        let mut response = match self.answer(client, head, &mut body, upgrade, &mut seen).await {
            Ok(response) => {
                self.stats.count(seen.kind, Outcome::Answered);
                response
            }
            Err(refusal) => {
                self.stats.count(seen.kind, refusal.outcome());
                // A client that waits for leave to send must not get it: reading would make hyper say "100 Continue".
                if let Some(body) = body.filter(|body| !body.is_end_stream() && !expects) {
                    tokio::spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(body)));
                }
                refusal.response(&form, seen.sandbox_id.as_deref()).map(Body::small)
            }
        };
        if may_leave_http && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            // What follows on this connection was not looked at for its framing. HTTP/2 has no use for the field, and
            // hyper leaves it out there.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Takes `body` once it goes to a guest or the API, and fills `seen` in as soon as it is known.
    async fn answer(
        &self,
        client: &Client,
        mut parts: request::Parts,
        body: &mut Option<Incoming>,
        on_client: OnUpgrade,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Refusal> {
        let wish = Wish::of(&parts);
        if parts.method == Method::CONNECT && wish.is_none() {
            return Err(Refusal::ConnectMethod);
        }
        let host = requested_host(&parts)?;
        let text = host.to_str().map_err(|_| Refusal::UnknownHost)?;
        let signed = SignedUrl::of(&parts);
        let Route { token, door } = match address(text, &parts.headers, &self.data_plane_host)? {
            Address::Sandbox(route) => route,
            Address::Api => {
                let api = self.api.ok_or(Refusal::UnknownHost)?;
                seen.kind = Kind::Api;
                // Boxed: it would make the future of every request larger.
                return Box::pin(self.forward_to_api(api, client, parts, body, &host)).await;
            }
            Address::Plain if cors::is_preflight(&parts) && announces_fields(&parts.headers) => {
                return Ok(cors::preflight(&parts));
            }
            Address::Plain => {
                let found = self.signer(signed.as_ref()).or_else(|| self.opened(&parts.headers));
                found.ok_or(Refusal::UnknownHost)?
            }
        };
        seen.sandbox_id = id::is_valid(SANDBOX_PREFIX, &token).then(|| token.clone());
        seen.kind = match door {
            Door::DataPlane => Kind::DataPlane,
            Door::Port(_) => Kind::Preview,
        };
        if door == Door::DataPlane && cors::is_preflight(&parts) {
            return Ok(cors::preflight(&parts));
        }

        let mut path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let websocket = wish.as_ref().is_some_and(Wish::is_websocket);
        let credentials = Credentials::take(&mut parts.headers, &mut path, websocket);
        let is_health = door == Door::DataPlane && parts.method == Method::GET && parts.uri.path() == HEALTH_PATH;
        let (directory, sessions) = (Arc::clone(&self.directory), Arc::clone(&self.sessions));
        let grant = Arc::new(Grant { directory, sessions, route_token: token, door, is_health, credentials, signed });
        let mut target = grant.check().await?;
        let mut checked = Instant::now();
        let source = Source::of(&client.peer, self.scheme, &parts.headers, &self.trusted);
        let protocol = match door {
            Door::DataPlane => Protocol::Http1,
            Door::Port(_) => Protocol::of(parts.version, &parts.headers),
        };
        let occupied = self.in_flight.enter(&target.sandbox_id, seen.kind, source.client, protocol);
        let occupied = occupied.map_err(|full| match full {
            Full::Sandbox => Refusal::SandboxBusy,
            Full::Visitor => Refusal::TooMany,
            Full::Memory => Refusal::NoMemory,
        })?;
        if target.wakes && grant.may_wake(&target) {
            target = self.wake(&grant, &target).await?;
            checked = Instant::now();
        }
        // A checkpoint stops the guest for a moment; what arrives meanwhile waits.
        if !matches!(target.state, SandboxState::Ready | SandboxState::Checkpointing) {
            return Err(Refusal::NotRunning(target.state));
        }

        prepare_request(&mut parts.headers, protocol, &host, source);
        let shown = shown_host(&target, door, &host);
        if protocol == Protocol::Http1 {
            parts.headers.insert(HOST, shown.clone());
        }
        if let Some(wish) = &wish {
            wish.announce(&mut parts);
        }
        let upload = body.take().ok_or(Refusal::Unreachable)?;
        let upload = Upload::new(upload, self.body_timeout(protocol), || grant.watch());
        let request =
            forwarded_request(parts, protocol, shown.to_str().map_err(|_| Refusal::UnknownHost)?, &path, upload)?;
        let server = Server::Guest { vsock: target.vsock.into_os_string(), door, protocol };
        let (response, lease) = self.exchange(&grant, server, request).await?;
        if checked.elapsed() >= RECHECK {
            grant.check().await?;
        }

        let (mut head, ()) = response.into_parts();
        let agreed = prepare_response(&mut head);
        if door == Door::DataPlane {
            cors::open(&mut head.headers);
        }
        if head.status != StatusCode::SWITCHING_PROTOCOLS {
            if wish.is_some_and(|wish| wish.would_take(head.status)) {
                return Err(Refusal::BrokenAnswer);
            }
            let envelopes = Envelopes::of(&head).filter(|_| door == Door::DataPlane);
            return Ok(Response::from_parts(head, Body::streamed(lease, occupied, grant.watch(), envelopes)));
        }
        let (Some(wish), Some(agreed)) = (wish, agreed) else {
            debug!(sandbox_id = target.sandbox_id, "The guest switched protocols without being asked");
            return Err(Refusal::BrokenAnswer);
        };
        let (guest, beginning) = lease.into_stream().ok_or(Refusal::BrokenAnswer)?;
        wish.fulfil(&mut head, agreed);
        let tunnel = Tunnel { client: on_client, guest, beginning, stop: self.stop.clone(), revoked: grant.watch() };
        let held = (occupied, client.held.clone(), self.stats.tunnel());
        tokio::spawn(async move {
            tunnel.run().await;
            drop(held);
        });
        Ok(Response::from_parts(head, Body::empty()))
    }

    /// Has a sandbox go on; as it is then.
    async fn wake(&self, grant: &Grant<D>, target: &Target) -> Result<Target, Refusal> {
        let _waits = self.stats.wake();
        self.directory.wake(&target.sandbox_id).await.map_err(Refusal::NotWoken)?;
        grant.check().await
    }

    /// Sends a request to a guest; once more, if the guest was paused meanwhile and the request may wake it.
    async fn exchange(
        &self,
        grant: &Grant<D>,
        server: Server,
        request: Request<Upload>,
    ) -> Result<(Response<()>, Lease), Refusal> {
        let Unanswered { why, again } =
            match exchange(&self.pool, server.clone(), request, self.server_idle_timeout()).await {
                Ok(answered) => return Ok(answered),
                Err(unanswered) => unanswered,
            };
        let is_gone = matches!(why, Refusal::Unreachable | Refusal::BrokenAnswer);
        let Some(request) = again.filter(|_| is_gone) else { return Err(why) };
        let target = grant.check().await?;
        if !(target.wakes && grant.may_wake(&target)) {
            return Err(why);
        }
        debug!(sandbox_id = target.sandbox_id, "A guest was paused before it answered; waking it");
        self.wake(grant, &target).await?;
        let answered = exchange(&self.pool, server, request, self.server_idle_timeout()).await;
        answered.map_err(|unanswered| unanswered.why)
    }

    /// The sandbox whose token made the signature of a URL that names none. Of each sandbox a few hashes are made: there are as
    /// many as a host has memory for.
    fn signer(&self, signed: Option<&SignedUrl>) -> Option<Route> {
        let signed = signed?;
        let token = self.directory.ids().into_iter().find(|id| signed.is_of(&self.sessions, id))?;
        Some(Route { token, door: Door::DataPlane })
    }

    /// The sandbox whose access token a request has that names none. Whether the token still opens it is asked later.
    fn opened(&self, headers: &HeaderMap) -> Option<Route> {
        let token = self.sessions.subject(access_token(headers)?)?;
        Some(Route { token, door: Door::DataPlane })
    }

    /// A little less than for clients, so that a client whose server says nothing is still there to be told.
    pub(super) fn server_idle_timeout(&self) -> Duration {
        self.idle_timeout - self.idle_timeout / 10
    }

    /// How long a client may pause in its request. A gRPC stream may, as long as the connection itself.
    fn body_timeout(&self, protocol: Protocol) -> Duration {
        match protocol {
            Protocol::Http1 => self.body_timeout,
            Protocol::Http2 => self.idle_timeout,
        }
    }
}

/// What the guest's server reads as `Host`.
fn shown_host(target: &Target, door: Door, asked: &HeaderValue) -> HeaderValue {
    let (Door::Port(port), Some(mask)) = (door, &target.previews.mask_host) else { return asked.clone() };
    HeaderValue::try_from(mask.replace("${PORT}", &port.to_string())).unwrap_or_else(|_| asked.clone())
}

/// Reads the rest of a refused request and forgets it. A client that is still sending would otherwise have its connection
/// reset before it reads why it was refused.
async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// The request in the form and the framing of the next hop.
pub(super) fn forwarded_request(
    mut parts: request::Parts,
    protocol: Protocol,
    host: &str,
    path: &str,
    body: Upload,
) -> Result<Request<Upload>, Refusal> {
    let invalid = Refusal::Invalid("The request target is not valid");
    parts.extensions.clear();
    let had_length = parts.headers.remove(CONTENT_LENGTH).is_some();
    let length = body.size_hint().exact();
    if let Some(length) = length.filter(|length| *length > 0 || had_length) {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    match protocol {
        Protocol::Http1 => {
            parts.version = Version::HTTP_11;
            parts.uri = path.parse().map_err(|_| invalid)?;
            if length.is_none() {
                // Said, because hyper takes a GET of unknown length for one without a body.
                parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        Protocol::Http2 => {
            parts.version = Version::HTTP_2;
            let uri = Uri::builder().scheme("http").authority(host).path_and_query(path);
            parts.uri = uri.build().map_err(|_| invalid)?;
        }
    }
    Ok(Request::from_parts(parts, body))
}

/// Makes the head of a server's response that of the response to the client. Returns the protocol it switched to.
pub(super) fn prepare_response(head: &mut response::Parts) -> Option<HeaderValue> {
    head.version = Version::HTTP_11;
    head.extensions.clear();
    let agreed = head.headers.remove(UPGRADE);
    let chunked = head.headers.contains_key(TRANSFER_ENCODING);
    remove_hop_by_hop(&mut head.headers);
    if chunked {
        head.headers.remove(CONTENT_LENGTH);
    }
    agreed
}
