//! The agent's API, one method per operation; see [`sandpiper_protocol::agent`].
//!
//! One connection per call: on a Unix socket that costs microseconds, and no call can be spoilt by what an earlier one left
//! behind. Every call has a bound, and responses are limited in size.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::{Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{
    Allowance, Allowances, Checkpoint, CheckpointList, CreateCheckpoint, CreateSandbox, CreatedSandbox, DeniedPage,
    EgressProfiles, ErrorBody, ExplainNetwork, ExposedPort, ForkSandbox, ForkedSandboxes, HostInfo, LastingTokens,
    Metrics, Network, NetworkExplanation, PauseSandbox, PlanSizes, PortRecord, QUOTA_EXCEEDED, ResumeSandbox, Revision,
    Revocations, SESSION_KEY, Sandbox, SandboxError, SandboxList, Session, TEAM_DISABLED, TemplateList,
    TemplateVersion, UpdateSandbox, Usage,
};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::SandboxId;
use sandpiper_protocol::interval::{Acknowledgement, IntervalPage};
use sandpiper_protocol::trace::{TRACEPARENT, Trace, TraceList};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use url::form_urlencoded;

mod logs;
pub mod templates;
pub mod volumes;

/// Reads, served from the agent's memory.
const ASK: Duration = Duration::from_secs(5);
/// The next change of the list of sandboxes: longer than the agent waits for one.
const NEXT_CHANGE: Duration = Duration::from_secs(40);
/// Changes to a running sandbox.
const CHANGE: Duration = Duration::from_secs(15);
/// Ending one, with everything that belongs to it.
const DELETE: Duration = Duration::from_secs(30);
/// A start, also when it first waits for other work: the agent gives up on a guest earlier, and then says why.
const WORK: Duration = Duration::from_secs(150);
/// A pause or a checkpoint: as long as the agent, which waits for a monitor until that has responded or is dead.
const UNTIL_DONE: Duration = Duration::MAX;
/// Longest response in bytes.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Why a call had no success.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("Agent socket {socket:?} does not respond; is sandpiper-agent running?")]
    Unreachable { socket: PathBuf, source: std::io::Error },
    #[error("Connection to the agent broke")]
    Broken(#[from] hyper::Error),
    #[error("Agent did not respond within {0:?}")]
    TimedOut(Duration),
    #[error("Agent refused with {status}, {}: {}", body.code, body.message)]
    Refused { status: StatusCode, body: ErrorBody },
    #[error("Agent's response is not of this protocol: {0}")]
    Malformed(String),
}

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let AgentError::Refused { status, ref body } = error else {
            let message = "The host that runs sandboxes does not respond; nothing is lost, try again in a few seconds";
            let unavailable = Self::new(StatusCode::SERVICE_UNAVAILABLE, "host_unavailable", message);
            return unavailable.retry_after(5).because(chain(&error));
        };
        let unavailable = |code| Self::new(StatusCode::SERVICE_UNAVAILABLE, code, body.message.clone()).retry_after(5);
        match (status.as_u16(), body.code.as_str()) {
            (400, _) => Self::invalid(body.message.clone()),
            (403, TEAM_DISABLED) => Self::new(status, "team_disabled", body.message.clone()),
            (404, _) => Self::not_found(body.message.clone()),
            (409, "invalid_state") => Self::invalid_state(body.message.clone()),
            (409, "volume_attached") => Self::new(status, "volume_attached", body.message.clone()),
            (409, "volume_busy") => Self::new(status, "volume_busy", body.message.clone()).retry_after(1),
            (413, _) => Self::new(status, "too_large", body.message.clone()),
            (416, _) => Self::new(status, "range_not_satisfiable", body.message.clone()),
            (422, "build_unavailable") => Self::new(status, "build_unavailable", body.message.clone()),
            (422, "volume_damaged") => Self::new(status, "volume_damaged", body.message.clone()),
            (422, "mount_refused") => Self::new(status, "mount_refused", body.message.clone()),
            (507, _) => Self::new(status, "volume_full", body.message.clone()),
            (409, _) => Self::conflict(body.message.clone()),
            (502, _) => unavailable("guest_failed"),
            (503, _) => unavailable("capacity_unavailable"),
            _ => Self::internal(chain(&error)),
        }
    }
}

impl AgentError {
    /// Whether the agent may be at work although the call has failed, or may have done it.
    pub fn is_in_doubt(&self) -> bool {
        !matches!(self, AgentError::Refused { .. } | AgentError::Unreachable { .. })
    }

    /// What a tenant is told of work that came to nothing after the response had been sent.
    pub fn explanation(&self) -> SandboxError {
        match self {
            AgentError::Refused { body, .. } => SandboxError { code: body.code.clone(), message: body.message.clone() },
            _ => SandboxError {
                code: "host_unavailable".to_owned(),
                message: "The host broke off its response; try again".to_owned(),
            },
        }
    }

    /// Whether the agent said that the team's sandboxes hold what they may.
    pub fn is_over_quota(&self) -> bool {
        matches!(self, AgentError::Refused { body, .. } if body.code == QUOTA_EXCEEDED)
    }

    /// Whether the agent said that there is no such thing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, AgentError::Refused { status: StatusCode::NOT_FOUND, .. })
    }
}

/// Calls the agent of this host.
#[derive(Debug, Clone)]
pub struct AgentClient {
    socket: PathBuf,
    /// The API key that sessions in responses are for.
    session_key: Option<String>,
}

impl AgentClient {
    /// A client; it connects when it is used.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, session_key: None }
    }

    /// A client for requests whose responses hold sessions: they end when the API key does.
    pub fn on_behalf_of(&self, key_id: &str) -> Self {
        Self { socket: self.socket.clone(), session_key: Some(key_id.to_owned()) }
    }

    /// Ends the sessions of API keys.
    pub async fn revoke(&self, keys: Vec<String>) -> Result<(), AgentError> {
        self.exchange(Method::POST, "/revocations", Some(&Revocations { keys }), CHANGE).await.map(drop)
    }

    /// When machines ran, as far as that was not acknowledged.
    pub async fn intervals(&self) -> Result<IntervalPage, AgentError> {
        self.ask("/intervals?limit=500").await
    }

    /// What was told of intervals need not be told again.
    pub async fn acknowledge(&self, acknowledgement: &Acknowledgement) -> Result<(), AgentError> {
        self.exchange(Method::POST, "/intervals/acknowledge", Some(acknowledgement), CHANGE).await.map(drop)
    }

    /// Has starts of these teams' sandboxes obey their allowances.
    pub async fn allow(&self, allowances: Vec<Allowance>) -> Result<(), AgentError> {
        self.exchange(Method::PUT, "/allowances", Some(&Allowances { allowances }), CHANGE).await.map(drop)
    }

    /// Has it make snapshots ahead for what plans give sandboxes.
    pub async fn offer(&self, sizes: &PlanSizes) -> Result<(), AgentError> {
        self.exchange(Method::PUT, "/plans", Some(sizes), CHANGE).await.map(drop)
    }

    /// Starts a sandbox; returns when its data plane serves.
    pub async fn create(&self, request: &CreateSandbox) -> Result<CreatedSandbox, AgentError> {
        self.call(Method::POST, "/sandboxes", Some(request), WORK).await
    }

    /// Stops a sandbox and keeps all of it, or its disk; returns when that is durable.
    pub async fn pause(&self, id: &str, request: &PauseSandbox) -> Result<Sandbox, AgentError> {
        self.call(Method::POST, &format!("/sandboxes/{id}/pause"), Some(request), UNTIL_DONE).await
    }

    /// Brings a sandbox back, or moves the deadline of a live one out; a pause under way is waited for.
    pub async fn resume(&self, id: &str, request: &ResumeSandbox) -> Result<CreatedSandbox, AgentError> {
        self.call(Method::POST, &format!("/sandboxes/{id}/resume"), Some(request), WORK).await
    }

    /// Starts copies of a sandbox, all or none.
    pub async fn fork(&self, id: &str, request: &ForkSandbox) -> Result<Vec<CreatedSandbox>, AgentError> {
        let path = format!("/sandboxes/{id}/fork");
        let forked: ForkedSandboxes = self.call(Method::POST, &path, Some(request), WORK).await?;
        if forked.sandboxes.len() == request.ids.len() {
            return Ok(forked.sandboxes);
        }
        Err(AgentError::Malformed(format!("{path}: {} sandboxes for {}", forked.sandboxes.len(), request.ids.len())))
    }

    /// Takes a checkpoint of a sandbox; returns when it is durable.
    pub async fn checkpoint(&self, sandbox: &SandboxId, request: &CreateCheckpoint) -> Result<Checkpoint, AgentError> {
        self.call(Method::POST, &format!("/sandboxes/{sandbox}/checkpoints"), Some(request), UNTIL_DONE).await
    }

    /// All checkpoints of the host.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, AgentError> {
        let list: CheckpointList = self.ask("/checkpoints").await?;
        Ok(list.checkpoints)
    }

    /// One checkpoint.
    pub async fn show_checkpoint(&self, id: &str) -> Result<Checkpoint, AgentError> {
        self.ask(&format!("/checkpoints/{id}")).await
    }

    /// Removes a checkpoint; sandboxes made from it go on.
    pub async fn delete_checkpoint(&self, id: &str) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &format!("/checkpoints/{id}"), None, DELETE).await.map(drop)
    }

    /// All sandboxes of the host.
    pub async fn list(&self) -> Result<SandboxList, AgentError> {
        self.ask("/sandboxes").await
    }

    /// The revision of the list of sandboxes: at once where it is not `known`, otherwise when it changes, or after a while.
    pub async fn changes(&self, known: Option<i64>) -> Result<i64, AgentError> {
        let query = known.map_or_else(String::new, |known| format!("?after={known}"));
        let path = format!("/sandboxes/changes{query}");
        let Revision { revision } = self.call::<(), _>(Method::GET, &path, None, NEXT_CHANGE).await?;
        Ok(revision)
    }

    /// One sandbox.
    pub async fn show(&self, id: &str) -> Result<Sandbox, AgentError> {
        self.ask(&format!("/sandboxes/{id}")).await
    }

    /// Changes deadline or lifecycle.
    pub async fn update(&self, id: &str, update: &UpdateSandbox) -> Result<Sandbox, AgentError> {
        self.call(Method::PATCH, &format!("/sandboxes/{id}"), Some(update), CHANGE).await
    }

    /// Ends a sandbox; returns when nothing of it is left.
    pub async fn delete(&self, id: &str) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &format!("/sandboxes/{id}"), None, DELETE).await.map(drop)
    }

    /// A new session of a live sandbox.
    pub async fn session(&self, id: &str) -> Result<Session, AgentError> {
        self.call::<(), _>(Method::POST, &format!("/sandboxes/{id}/session"), None, CHANGE).await
    }

    /// The tokens of a sandbox that stay the same as long as it is there.
    pub async fn tokens(&self, id: &str) -> Result<LastingTokens, AgentError> {
        self.ask(&format!("/sandboxes/{id}/tokens")).await
    }

    /// A port that is exposed.
    pub async fn port(&self, id: &str, port: u16) -> Result<PortRecord, AgentError> {
        self.ask(&format!("/sandboxes/{id}/ports/{port}")).await
    }

    /// Exposes a port, or changes how.
    pub async fn expose(&self, id: &str, port: &ExposedPort) -> Result<PortRecord, AgentError> {
        self.call(Method::PUT, &format!("/sandboxes/{id}/ports/{}", port.port), Some(port), CHANGE).await
    }

    /// Ends the exposure of a port.
    pub async fn unexpose(&self, id: &str, port: u16) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &format!("/sandboxes/{id}/ports/{port}"), None, CHANGE).await.map(drop)
    }

    /// Gives a sandbox a network policy, unless it has a newer one; the one that it has then.
    pub async fn set_network(&self, id: &str, network: &Network) -> Result<Network, AgentError> {
        self.call(Method::PUT, &format!("/sandboxes/{id}/network"), Some(network), CHANGE).await
    }

    /// What a sandbox was kept from reaching.
    pub async fn denied(&self, id: &str) -> Result<DeniedPage, AgentError> {
        self.ask(&format!("/sandboxes/{id}/network/denied")).await
    }

    /// What a policy would mean on the host.
    pub async fn explain_network(&self, request: &ExplainNetwork) -> Result<NetworkExplanation, AgentError> {
        self.call(Method::POST, "/network/explain", Some(request), ASK).await
    }

    /// Names of the egress profiles of the host.
    pub async fn egress_profiles(&self) -> Result<Vec<String>, AgentError> {
        let known: EgressProfiles = self.ask("/egress-profiles").await?;
        Ok(known.profiles)
    }

    /// What a machine uses now; its guest is asked.
    pub async fn usage(&self, id: &str) -> Result<Usage, AgentError> {
        self.ask(&format!("/sandboxes/{id}/usage")).await
    }

    /// What a machine took of the host within these seconds since 1970; as far as there is anything where there is no bound.
    pub async fn metrics(&self, id: &str, start: Option<i64>, end: Option<i64>) -> Result<Metrics, AgentError> {
        let bound = |name: &str, second: Option<i64>| second.map(|second| format!("{name}={second}"));
        let query: Vec<String> = [bound("start", start), bound("end", end)].into_iter().flatten().collect();
        self.ask(&format!("/sandboxes/{id}/metrics?{}", query.join("&"))).await
    }

    /// The template versions of the host.
    pub async fn templates(&self) -> Result<Vec<TemplateVersion>, AgentError> {
        let list: TemplateList = self.ask("/templates").await?;
        Ok(list.templates)
    }

    /// Where the time of requests that changed something went, those about this sandbox or all, newest first.
    pub async fn traces(&self, sandbox: Option<&str>) -> Result<Vec<Trace>, AgentError> {
        let query = sandbox.map_or_else(String::new, |id| {
            format!("?sandbox={}", form_urlencoded::byte_serialize(id.as_bytes()).collect::<String>())
        });
        let list: TraceList = self.ask(&format!("/traces{query}")).await?;
        Ok(list.traces)
    }

    /// The host itself.
    pub async fn host(&self) -> Result<HostInfo, AgentError> {
        self.ask("/host").await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, AgentError> {
        self.call::<(), T>(Method::GET, path, None, ASK).await
    }

    async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        bound: Duration,
    ) -> Result<T, AgentError> {
        let (_, response) = self.exchange(method, path, body, bound).await?;
        parse(path, &response)
    }

    /// One request; status and body of a success, or the error that the agent gave.
    async fn exchange<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        bound: Duration,
    ) -> Result<(StatusCode, Bytes), AgentError> {
        let json = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| AgentError::Malformed(error.to_string()))?,
            None => Vec::new(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "agent")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.session_key {
            request = request.header(SESSION_KEY, key);
        }
        if let Some(traceparent) = sandpiper_trace::traceparent() {
            request = request.header(TRACEPARENT, traceparent);
        }
        let request =
            request.body(Full::new(Bytes::from(json))).map_err(|error| AgentError::Malformed(error.to_string()))?;
        let (status, body) =
            tokio::time::timeout(bound, self.send(request)).await.map_err(|_| AgentError::TimedOut(bound))??;
        if status.is_success() {
            return Ok((status, body));
        }
        Err(AgentError::Refused { status, body: reason(&body) })
    }

    /// A connection that is driven by a task of its own, for a request or response that is a stream; it ends with both.
    async fn connection<B>(&self) -> Result<http1::SendRequest<B>, AgentError>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = chain(&error), "a stream to or from the agent ended early");
            }
        });
        Ok(sender)
    }

    async fn connect(&self) -> Result<UnixStream, AgentError> {
        UnixStream::connect(&self.socket)
            .await
            .map_err(|source| AgentError::Unreachable { socket: self.socket.clone(), source })
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), AgentError> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, collect(response.into_body()).await?))
        };
        // The connection is driven here, not on a task: it ends with the call.
        tokio::pin!(exchange, connection);
        tokio::select! {
            result = &mut exchange => result,
            ended = &mut connection => {
                ended?;
                exchange.await
            }
        }
    }
}

fn parse<T: DeserializeOwned>(path: &str, response: &[u8]) -> Result<T, AgentError> {
    // A response may hold a session: its text is not repeated in the error, only where it is wrong.
    serde_json::from_slice(response)
        .map_err(|error| AgentError::Malformed(format!("{path}: line {} column {}", error.line(), error.column())))
}

/// The whole body of a response.
async fn collect(body: Incoming) -> Result<Bytes, AgentError> {
    let body =
        Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => AgentError::Broken(*error),
            Err(error) if error.is::<LengthLimitError>() => AgentError::Malformed("response too long".into()),
            Err(error) => AgentError::Malformed(error.to_string()),
        })?;
    Ok(body.to_bytes())
}

/// The error that the agent gave, where a response is a stream otherwise.
async fn refusal(response: Response<Incoming>) -> AgentError {
    let status = response.status();
    match tokio::time::timeout(ASK, collect(response.into_body())).await {
        Ok(Ok(body)) => AgentError::Refused { status, body: reason(&body) },
        Ok(Err(error)) => error,
        Err(_) => AgentError::TimedOut(ASK),
    }
}

/// What a refusing response says.
fn reason(body: &[u8]) -> ErrorBody {
    serde_json::from_slice(body)
        .unwrap_or_else(|_| ErrorBody { code: "unknown".into(), message: "The agent gave no reason".into() })
}
