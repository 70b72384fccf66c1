//! Requests for `api.<data_plane_host>`: on to the API, which listens on this machine.
//!
//! The E2B SDKs are told one domain and ask for the API and for sandboxes below it; so one listener, one wildcard name and one
//! certificate serve both. A request goes through like one to a guest's port: the same fields pass, the same limits and
//! time-outs hold. What is different:
//!
//! * No sandbox is looked up, and nothing is asked for: whoever may reach the ingress may reach the API.
//! * Credentials are the API's to judge, and pass as they came: in their fields, cookies and the query.
//! * The protocol stays HTTP: the API has no WebSockets.

use std::net::SocketAddr;

use http::{HeaderValue, Response, StatusCode, request};
use hyper::body::Incoming;
use tracing::debug;

use super::Directory;
use super::body::Body;
use super::exchange::exchange;
use super::forwarded::Source;
use super::grant::Revoked;
use super::headers::{Protocol, prepare_request};
use super::limits::Full;
use super::link::Server;
use super::proxy::{Client, Proxy, forwarded_request, prepare_response};
use super::refusal::{ApiRefusal, Refusal};
use super::stats::Kind;
use super::upgrade::Wish;
use super::upload::Upload;

/// What the API is counted as where sandboxes are: no id is so short.
const COUNTED_AS: &str = "api";

impl<D: Directory> Proxy<D> {
    /// Forwards a request for `host`, the API's name, to the API's listener at `api`. Takes `body` once it goes there.
    ///
    /// # Errors
    ///
    /// The request asks for another protocol, a limit is reached, or there is no response.
    pub(super) async fn forward_to_api(
        &self,
        api: SocketAddr,
        client: &Client,
        mut parts: request::Parts,
        body: &mut Option<Incoming>,
        host: &HeaderValue,
    ) -> Result<Response<Body>, Refusal> {
        if Wish::of(&parts).is_some() {
            return Err(Refusal::Invalid("The API speaks HTTP alone: send the request without Upgrade"));
        }
        let source = Source::of(&client.peer, self.scheme, &parts.headers, &self.trusted);
        let occupied = self.in_flight.enter(COUNTED_AS, Kind::Api, source.client, Protocol::Http1);
        let occupied = occupied.map_err(|full| match full {
            Full::Sandbox => Refusal::Api(ApiRefusal::Busy),
            Full::Visitor => Refusal::Api(ApiRefusal::TooMany),
            Full::Memory => Refusal::Api(ApiRefusal::NoMemory),
        })?;
        prepare_request(&mut parts.headers, Protocol::Http1, host, source);
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let shown = host.to_str().map_err(|_| Refusal::UnknownHost)?;
        let upload = body.take().ok_or(Refusal::Api(ApiRefusal::Down))?;
        let upload = Upload::new(upload, self.body_timeout, never_revoked);
        let request = forwarded_request(parts, Protocol::Http1, shown, &path, upload)?;
        let exchanged = exchange(&self.pool, Server::Api(api), request, self.server_idle_timeout()).await;
        let (response, lease) = exchanged.map_err(|unanswered| of_api(unanswered.why))?;

        let (mut head, ()) = response.into_parts();
        prepare_response(&mut head);
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            debug!(%api, "The API switched protocols without being asked");
            return Err(Refusal::Api(ApiRefusal::BrokenAnswer));
        }
        Ok(Response::from_parts(head, Body::streamed(lease, occupied, never_revoked(), None)))
    }
}

/// The API judges each request itself; what has begun goes on.
fn never_revoked() -> Revoked {
    Box::pin(std::future::pending())
}

/// The same refusal, where the API did not respond instead of a guest.
fn of_api(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Unreachable => Refusal::Api(ApiRefusal::Down),
        Refusal::BrokenAnswer => Refusal::Api(ApiRefusal::BrokenAnswer),
        Refusal::TimedOut => Refusal::Api(ApiRefusal::TimedOut),
        other => other,
    }
}
