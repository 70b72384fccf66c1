//! `/mcp`: the tools of `sandpiper-mcp` over HTTP (the Model Context Protocol's streamable HTTP), for agents elsewhere.
//!
//! Every request shows an API key, that of the team whose request began its session. A tool does its work with that key
//! through `/v1`, by way of the loopback: it may do what the key may, is limited, counted and written to the audit as any
//! other caller. A session holds no key, and no more than the ids of its sandboxes; sessions are few for each team, and end
//! when they are idle.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::StatusCode;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sandpiper_client::{Client, ClientError};
use sandpiper_http::error::ApiError;
use sandpiper_mcp::{Caller, Server, Settings};
use tokio_util::sync::CancellationToken;

use crate::auth::WriteAccess;
use crate::state::App;

/// The header that names a session.
const SESSION: &str = "mcp-session-id";

/// Sessions at a time, of one team and in all.
const MAX_SESSIONS_OF_TEAM: usize = 32;
const MAX_SESSIONS: usize = 512;

/// A session ends when nothing has come for this long; a tool takes less.
const IDLE: Duration = Duration::from_secs(3600);

/// Bytes of a request: a file that is written, with escapes.
const MAX_BODY: usize = 12 << 20;

/// What serves `/mcp`.
#[derive(Clone)]
pub struct Mcp(Arc<Parts>);

struct Parts {
    app: App,
    service: StreamableHttpService<Server, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    owners: Mutex<Owners>,
    end: CancellationToken,
}

/// The team of each session.
#[derive(Default)]
struct Owners {
    of: HashMap<String, String>,
    /// Sessions that are being opened have no id yet; each has a number instead.
    opening: HashMap<u64, String>,
    next: u64,
}

impl fmt::Debug for Mcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mcp").finish_non_exhaustive()
    }
}

impl Mcp {
    /// `base_url`: where the API is reached from here.
    ///
    /// # Errors
    ///
    /// Fails if no HTTP client can be made.
    pub fn new(app: App, base_url: &str) -> Result<Self, ClientError> {
        let client = Client::new(base_url, "", None)?;
        let mut session = SessionConfig::default();
        session.keep_alive = Some(IDLE);
        let mut sessions = LocalSessionManager::default();
        sessions.session_config = session;
        let (sessions, end) = (Arc::new(sessions), CancellationToken::new());
        // A key is asked for, which no page of a stranger has: neither host nor origin needs to be known.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(MAX_BODY)
            .with_cancellation_token(end.clone());
        let server = move || Ok(Server::new(Caller::Presented(client.clone()), Settings::default()));
        let service = StreamableHttpService::new(server, Arc::clone(&sessions), config);
        Ok(Self(Arc::new(Parts { app, service, sessions, owners: Mutex::default(), end })))
    }

    /// The route.
    pub fn router(&self) -> Router {
        Router::new().route("/mcp", any(handle)).with_state(self.clone())
    }

    /// Ends all sessions, whose streams would otherwise hold connections open.
    pub fn end(&self) {
        self.0.end.cancel();
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.0.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn respond(&self, request: Request) -> Result<Response, ApiError> {
        let (mut parts, body) = request.into_parts();
        let WriteAccess(caller) = WriteAccess::from_request_parts(&mut parts, &self.0.app).await?;
        let team = caller.team.id.to_string();
        let opening = match parts.headers.get(SESSION) {
            Some(session) => {
                let session = session.to_str().unwrap_or_default();
                if self.owners().of.get(session) != Some(&team) {
                    return Err(ApiError::not_found("There is no such session of this key's team; begin a new one"));
                }
                None
            }
            None => Some(self.open(team).await?),
        };
        let response = self.0.service.handle(Request::from_parts(parts, body)).await;
        if let Some(opening) = opening
            && let Some(session) = response.headers().get(SESSION).and_then(|session| session.to_str().ok())
        {
            opening.opened(session);
        }
        Ok(response.map(Body::new))
    }

    /// Takes the place of a session, if there is one left.
    async fn open(&self, team: String) -> Result<Opening<'_>, ApiError> {
        let live: HashSet<String> = self.0.sessions.sessions.read().await.keys().map(ToString::to_string).collect();
        let mut owners = self.owners();
        owners.of.retain(|session, _| live.contains(session));
        let teams = || owners.of.values().chain(owners.opening.values());
        let of_team = teams().filter(|owner| **owner == team).count();
        if of_team >= MAX_SESSIONS_OF_TEAM || teams().count() >= MAX_SESSIONS {
            let message = format!(
                "Too many sessions of the Model Context Protocol: a team has at most {MAX_SESSIONS_OF_TEAM}. End one \
                 (DELETE /mcp), or wait: they end after {} minutes without a request",
                IDLE.as_secs() / 60
            );
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_sessions", message));
        }
        let number = owners.next;
        owners.next += 1;
        owners.opening.insert(number, team);
        Ok(Opening { mcp: self, number })
    }
}

/// The place of a session that is being opened; given back when this is dropped.
struct Opening<'a> {
    mcp: &'a Mcp,
    number: u64,
}

impl Opening<'_> {
    fn opened(self, session: &str) {
        let mut owners = self.mcp.owners();
        if let Some(team) = owners.opening.remove(&self.number) {
            owners.of.insert(session.to_owned(), team);
        }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.mcp.owners().opening.remove(&self.number);
    }
}

async fn handle(State(mcp): State<Mcp>, request: Request) -> Response {
    mcp.respond(request).await.unwrap_or_else(IntoResponse::into_response)
}
