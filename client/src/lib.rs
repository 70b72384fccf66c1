//! A client of the control plane (`/v1`) and, through a session, of a sandbox's data plane: what a Rust program that drives
//! sandboxes would use.
//!
//! What a guest sends is not trusted: responses are bounded in bytes and in time, and names in them are plain data.

mod data_plane;
mod event_stream;
mod events;
mod files;
mod localhost;
mod logs;
mod metrics;
mod network;
mod snapshots;
mod streams;
mod teams;
mod templates;
mod usage;
mod volumes;
mod webhooks;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use data_plane::{Command, DataPlane, Output, ProcessStream, Stdin, decode};
pub use events::{Event, EventFilter, EventResource, Events};
pub use files::Download;
pub use logs::{LogEntry, LogProcess, SandboxLog};
pub use metrics::{History, Metrics, Point};
pub use network::{Denied, DeniedList, Network, NetworkPolicy};
pub use snapshots::{Checkpoint, NewCheckpoint};
pub use templates::{Baseline, BuildLog, LatestVersion, NewTemplate, NewVersion, Source, Template, Upload, Version};
pub use usage::{Usage, UsageAmounts, UsageBucket};
pub use volumes::{Volume, VolumeEntry, VolumeFiles};

/// Longest wait for a response of the control plane: longer than the API itself takes for anything.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Longest wait for a sandbox whose start takes longer than the API waits for it.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// Between two looks at it.
const START_POLL: Duration = Duration::from_millis(250);

/// The control plane of one Sandpiper, as one API key or login session sees it.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base_url: String,
    /// Or the token of a login session.
    api_key: String,
    /// The team that a login session acts for.
    team: Option<String>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("Cannot reach {url}: is Sandpiper running there? Start it with `sandpiper up`, or name another with --url")]
    Unreachable {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{message} [{status} {code}, request {request_id}]")]
    Refused { status: u16, code: String, message: String, request_id: String },
    #[error("The response of {url} is not what this version of the client understands: {detail}")]
    Malformed { url: String, detail: String },
    #[error("The stream broke off: {0}")]
    Broken(String),
    #[error("Sandbox {id} did not start: {reason}. See `sandpiper logs {id}`")]
    NotStarted { id: String, reason: String },
    #[error("Cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}

impl ClientError {
    /// The API's error code, such as `not_found`, where the API responded.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// The HTTP status, where there was a response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// What a new sandbox should be; `Default` is the `base` template with its own defaults.
#[derive(Debug, Clone, Serialize)]
pub struct CreateSandbox {
    /// A template, or `None` with a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Id of a checkpoint to start from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Absolute paths in the sandbox, and the names of the volumes that are mounted there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_mounts: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed_ports: Vec<ExposedPort>,
    /// Whether what its processes write goes into its log.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub capture_output: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
}

impl Default for CreateSandbox {
    fn default() -> Self {
        Self {
            template: Some("base".into()),
            snapshot_id: None,
            timeout: None,
            lifecycle: None,
            cpu: None,
            memory_mb: None,
            envs: BTreeMap::new(),
            volume_mounts: BTreeMap::new(),
            metadata: BTreeMap::new(),
            exposed_ports: Vec::new(),
            capture_output: false,
            network: None,
        }
    }
}

/// What happens at a sandbox's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lifecycle {
    pub on_timeout: OnTimeout,
    /// Whether a request to the data plane or a preview resumes the sandbox; only with `Pause`.
    pub auto_resume: bool,
    /// Whether the pause keeps the memory; without, the sandbox boots from its disk when it goes on.
    pub pause_memory: bool,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { on_timeout: OnTimeout::default(), auto_resume: false, pause_memory: true }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    #[default]
    Kill,
    Pause,
}

#[derive(Debug, Clone, Serialize)]
pub struct ExposedPort {
    pub port: u16,
    pub protocol: &'static str,
    pub public: bool,
}

impl ExposedPort {
    /// A port whose preview anybody who knows the URL may open.
    pub fn public(port: u16) -> Self {
        Self { port, protocol: "http", public: true }
    }

    /// A port whose preview needs the sandbox's access token.
    pub fn private(port: u16) -> Self {
        Self { port, protocol: "http", public: false }
    }
}

/// A sandbox as the API shows it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Sandbox {
    pub id: String,
    pub state: String,
    pub template: String,
    pub cpu: u32,
    pub memory_mb: u32,
    pub created_at: String,
    /// Of a stopped sandbox: none.
    pub deadline: Option<String>,
    pub lifecycle: Lifecycle,
    #[serde(default)]
    pub error: Option<SandboxError>,
    #[serde(skip)]
    pub raw: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub struct SandboxError {
    pub code: String,
    pub message: String,
}

/// The credential for a sandbox's data plane.
#[derive(Clone, Deserialize)]
pub struct Session {
    pub data_plane_url: String,
    pub access_token: String,
    pub expires_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Port {
    pub port: u16,
    pub url: String,
    pub public: bool,
    pub status: String,
}

#[derive(Deserialize)]
struct ErrorEnvelope {
    error: String,
    message: String,
    #[serde(default)]
    request_id: String,
    #[serde(default)]
    details: Vec<ErrorDetail>,
}

#[derive(Deserialize)]
struct ErrorDetail {
    field: String,
    reason: String,
}

impl Client {
    /// A client of the API at `base_url`, such as `http://127.0.0.1:7070`. `ca` is a PEM certificate to trust beside the
    /// system's, as for a host with its own local CA.
    pub fn new(base_url: &str, api_key: &str, ca: Option<&[u8]>) -> Result<Self, ClientError> {
        let mut builder = Self::http_builder();
        if let Some(pem) = ca {
            builder = builder.add_root_certificate(reqwest::Certificate::from_pem(pem).map_err(ClientError::Setup)?);
        }
        Ok(Self::with_http(builder.build().map_err(ClientError::Setup)?, base_url, api_key))
    }

    /// What [`Client::new`] builds its HTTP client from, for a caller that wants to set more.
    pub fn http_builder() -> reqwest::ClientBuilder {
        reqwest::Client::builder()
            .dns_resolver(localhost::Resolver)
            .no_proxy()
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
    }

    /// A client over the caller's own HTTP client.
    pub fn with_http(http: reqwest::Client, base_url: &str, api_key: &str) -> Self {
        Self { http, base_url: base_url.trim_end_matches('/').to_owned(), api_key: api_key.to_owned(), team: None }
    }

    /// The same API, with another key.
    #[must_use]
    pub fn with_key(&self, api_key: &str) -> Self {
        Self { api_key: api_key.to_owned(), ..self.clone() }
    }

    /// Creates a sandbox; returns once it is ready.
    pub async fn create(&self, request: &CreateSandbox) -> Result<(Sandbox, Session), ClientError> {
        let body = serde_json::to_value(request).map_err(|error| self.malformed("/sandboxes", &error.to_string()))?;
        let mut response = self.call(Method::POST, "/sandboxes", Some(body)).await?;
        let session = response.get_mut("session").map(Value::take).unwrap_or_default();
        let sandbox = self.sandbox(response)?;
        // A start that takes longer than the API waits gets a response without one.
        if session.is_null() {
            return self.started(sandbox).await;
        }
        Ok((sandbox, self.parse("/sandboxes", session)?))
    }

    /// Waits until a sandbox that is being created is ready.
    async fn started(&self, mut sandbox: Sandbox) -> Result<(Sandbox, Session), ClientError> {
        let not_started = |id: String, reason| Err(ClientError::NotStarted { id, reason });
        let give_up_at = Instant::now() + START_TIMEOUT;
        while sandbox.state == "creating" {
            if Instant::now() >= give_up_at {
                return not_started(sandbox.id, format!("it is not ready after {} s", START_TIMEOUT.as_secs()));
            }
            tokio::time::sleep(START_POLL).await;
            sandbox = self.show(&sandbox.id).await?;
        }
        if let Some(error) = sandbox.error {
            return not_started(sandbox.id, error.message);
        }
        let session = self.connect(&sandbox.id).await?;
        Ok((sandbox, session))
    }

    /// All sandboxes of the key's team that match `query` (`query[state][]=running`, …), page after page.
    pub async fn list(&self, query: &str) -> Result<Vec<Sandbox>, ClientError> {
        let sandboxes = self.pages("/sandboxes", query, "sandboxes").await?;
        sandboxes.into_iter().map(|value| self.sandbox(value)).collect()
    }

    pub async fn show(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.sandbox(self.call(Method::GET, &format!("/sandboxes/{id}"), None).await?)
    }

    pub async fn delete(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/sandboxes/{id}"), None).await.map(drop)
    }

    /// A fresh session of a sandbox, which is resumed if it is stopped.
    pub async fn connect(&self, id: &str) -> Result<Session, ClientError> {
        let path = format!("/sandboxes/{id}/connect");
        let mut response = self.call(Method::POST, &path, Some(json!({}))).await?;
        self.parse(&path, response.get_mut("session").map(Value::take).unwrap_or_default())
    }

    pub async fn port(&self, id: &str, port: u16) -> Result<Port, ClientError> {
        let path = format!("/sandboxes/{id}/ports/{port}");
        self.parse(&path, self.call(Method::GET, &path, None).await?)
    }

    /// The ports that have a preview URL.
    pub async fn ports(&self, id: &str) -> Result<Vec<Port>, ClientError> {
        let sandbox = self.show(id).await?;
        let exposed = sandbox.raw.get("exposed_ports").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut ports = Vec::with_capacity(exposed.len());
        for port in exposed.iter().filter_map(|exposed| exposed.get("port")?.as_u64()) {
            let path = format!("/sandboxes/{id}/ports/{port}");
            ports.push(self.parse(&path, self.call(Method::GET, &path, None).await?)?);
        }
        Ok(ports)
    }

    /// Ends a port's preview.
    pub async fn unexpose(&self, id: &str, port: u16) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/sandboxes/{id}/ports/{port}"), None).await.map(drop)
    }

    /// What the key's team may use, and what it uses.
    pub async fn limits(&self) -> Result<Value, ClientError> {
        self.call(Method::GET, "/sandbox_limits", None).await
    }

    /// Gives a port a preview URL, or changes whether that is public.
    pub async fn expose(&self, id: &str, port: u16, public: bool) -> Result<Port, ClientError> {
        let path = format!("/sandboxes/{id}/ports/{port}");
        self.parse(&path, self.call(Method::PUT, &path, Some(json!({"public": public}))).await?)
    }

    /// The same, acting for this team of the user who is signed in.
    #[must_use]
    pub fn for_team(self, team: Option<String>) -> Self {
        Self { team, ..self }
    }

    /// With what the caller has to show.
    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        // None: there is nothing to show yet.
        let request = if self.api_key.is_empty() { request } else { request.bearer_auth(&self.api_key) };
        match &self.team {
            Some(team) => request.header("Sandpiper-Team", team),
            None => request,
        }
    }

    /// Any call of the control plane: `path` follows `/v1`. An empty response is `null`.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, ClientError> {
        let url = format!("{}/v1{path}", self.base_url);
        let mut request = self.authorized(self.http.request(method, &url)).timeout(TIMEOUT);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let unreachable = |source| ClientError::Unreachable { url: self.base_url.clone(), source };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if !status.is_success() {
            return Err(refusal(status, &bytes));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|error| self.malformed(path, &error.to_string()))
    }

    /// The data plane that `session` opens.
    pub fn data_plane(&self, session: &Session) -> DataPlane {
        DataPlane::new(self.http.clone(), session)
    }

    /// The HTTP client underneath, which resolves `*.localhost` to this machine.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The entries of a list, `field` of each of its pages.
    async fn pages(&self, path: &str, query: &str, field: &str) -> Result<Vec<Value>, ClientError> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let path = format!("{path}?{query}{token}");
            let mut page = self.call(Method::GET, &path, None).await?;
            let entries: Vec<Value> = self.parse(&path, page.get_mut(field).map(Value::take).unwrap_or_default())?;
            all.extend(entries);
            match page.get("next_token").and_then(Value::as_str) {
                Some(next) => token = format!("&next_token={next}"),
                None => return Ok(all),
            }
        }
    }

    fn sandbox(&self, raw: Value) -> Result<Sandbox, ClientError> {
        let sandbox: Sandbox = self.parse("/sandboxes", raw.clone())?;
        Ok(Sandbox { raw, ..sandbox })
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, path: &str, value: Value) -> Result<T, ClientError> {
        serde_json::from_value(value).map_err(|error| self.malformed(path, &error.to_string()))
    }

    fn malformed(&self, path: &str, detail: &str) -> ClientError {
        ClientError::Malformed { url: format!("{}/v1{path}", self.base_url), detail: detail.to_owned() }
    }
}

/// What the routes for the E2B SDKs say of an error.
#[derive(Deserialize)]
struct PlainError {
    message: String,
}

/// The error that a refusing response carries, in the API's envelope or, from elsewhere on the way, in none.
fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    let status = status.as_u16();
    let plain = || match serde_json::from_slice(body) {
        Ok(PlainError { message }) => message,
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(500)]).trim().to_owned(),
    };
    match serde_json::from_slice::<ErrorEnvelope>(body) {
        Ok(envelope) => {
            let details: String =
                envelope.details.iter().map(|detail| format!("; {}: {}", detail.field, detail.reason)).collect();
            let message = format!("{}{details}", envelope.message);
            ClientError::Refused { status, code: envelope.error, message, request_id: envelope.request_id }
        }
        Err(_) => {
            ClientError::Refused { status, code: "unknown".into(), message: plain(), request_id: "unknown".into() }
        }
    }
}
