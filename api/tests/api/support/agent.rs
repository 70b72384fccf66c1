//! A stand-in for the agent: the protocol over a real Unix socket, sandboxes and checkpoints that are only records.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::agent::{
    Allowance, Allowances, Checkpoint, CreateCheckpoint, CreateSandbox, CreatedSandbox, Denied, ErrorBody, ExposedPort,
    HostInfo, LastingTokens, LogEntry, LogPage, LogQuery, LogSource, MAX_LOG_ENTRIES, MetricPoint, Metrics, Network,
    NetworkPolicy, PlanSizes, PortRecord, PortStatus, Previews, Revision, Revocations, RuntimeBaseline, SESSION_KEY,
    Sandbox, SandboxError, SandboxList, SandboxState, Session, StartKind, StartTimings, TemplateList, TemplateVersion,
    UpdateSandbox, Usage,
};
use sandpiper_protocol::template::ImageSettings;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::builds::StubBuild;
use super::intervals::Journal;
use super::volumes::StubVolume;
use super::{builds, intervals, network, snapshots, volumes};

/// Ids of the versions of `base`, older first.
pub(crate) const VERSIONS: [&str; 2] = ["ver0000000000000000000001", "ver0000000000000000000002"];

/// What every sandbox holds of the disk.
pub(crate) const RETAINED: u64 = 1000;

/// What the agent has and how it behaves.
#[derive(Default)]
pub(crate) struct Records {
    pub(crate) sandboxes: BTreeMap<String, Sandbox>,
    /// How often it says that its sandboxes have changed.
    pub(crate) revision: i64,
    /// Ids of sandboxes of which it cannot read what it keeps.
    pub(crate) unreadable: Vec<String>,
    pub(crate) templates: Vec<TemplateVersion>,
    /// How often it was asked for them.
    pub(crate) template_lists: u32,
    /// Create requests as they arrived.
    pub(crate) orders: Vec<CreateSandbox>,
    /// Ids of delete requests as they arrived.
    pub(crate) deletes: Vec<String>,
    /// Deadlines asked for by updates and resumes, seconds.
    pub(crate) timeouts: Vec<Option<u64>>,
    /// Whether pauses kept, and resumes began with, the disk alone, as the requests arrived.
    pub(crate) disk_only: Vec<bool>,
    pub(crate) checkpoints: BTreeMap<String, Checkpoint>,
    /// Ids of checkpoints asked for, as the requests arrived.
    pub(crate) checkpoint_orders: Vec<String>,
    /// Network policies of sandboxes that were given one.
    pub(crate) policies: BTreeMap<String, NetworkPolicy>,
    /// Versions of network policies, as they arrived.
    pub(crate) policy_orders: Vec<u64>,
    /// What sandboxes used.
    pub(crate) metrics: BTreeMap<String, Vec<MetricPoint>>,
    /// Logs of sandboxes; of others there is one entry.
    pub(crate) logs: BTreeMap<String, Vec<LogEntry>>,
    /// Sandboxes that have ended so long ago that their logs are gone.
    pub(crate) forgotten_logs: Vec<String>,
    /// What every sandbox was kept from reaching.
    pub(crate) denied: Vec<Denied>,
    pub(crate) profiles: Vec<String>,
    /// Where data planes are; none is there where it is missing.
    pub(crate) data_plane: Option<String>,
    /// What every sandbox's log says besides.
    pub(crate) message: Option<String>,
    /// What to answer to a start, pause, resume, checkpoint, fork or network policy.
    pub(crate) refuse: Option<(u16, &'static str)>,
    /// What to answer when tokens are asked for.
    pub(crate) refuse_tokens: Option<(u16, &'static str)>,
    /// What to answer to a network policy.
    pub(crate) refuse_policies: Option<(u16, &'static str)>,
    /// What one sandbox may have.
    pub(crate) vcpus_max: u32,
    pub(crate) volumes: BTreeMap<String, StubVolume>,
    pub(crate) builds: BTreeMap<String, StubBuild>,
    /// Files for builds, by their ids: how many bytes each has.
    pub(crate) uploads: BTreeMap<String, u64>,
    /// Ids of versions that were to be removed, as the requests arrived.
    pub(crate) removed_versions: Vec<String>,
    /// How many requests it still takes to remove what is at a path; without any, one.
    pub(crate) turns_left: u32,
    /// Whether pauses, checkpoints and forks were to pass over open files, as the requests arrived.
    pub(crate) forced: Vec<bool>,
    sessions: u32,
    /// For which API keys sessions were made, in their order.
    pub(crate) session_keys: Vec<String>,
    /// API keys whose sessions were ended, as the requests arrived.
    pub(crate) revocations: Vec<Vec<String>>,
    /// What teams may hold, as it arrived: with a start, or by itself.
    pub(crate) allowances: Vec<Allowance>,
    /// In which sizes sandboxes come, as it arrived.
    pub(crate) plan_sizes: Vec<PlanSizes>,
    pub(crate) intervals: Journal,
}

#[derive(Clone)]
pub(super) struct Shared {
    records: Arc<Mutex<Records>>,
    /// A start, pause, resume, checkpoint, fork or network policy passes with a permit.
    gate: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    /// Waits until work may go on, and says whether it is refused.
    pub(super) async fn pass(&self) -> Option<Response> {
        self.gate.acquire().await.unwrap().forget();
        self.records().refuse.map(|(status, code)| refusal(status, code))
    }
}

/// The agent.
pub(crate) struct StubAgent {
    shared: Shared,
    socket: PathBuf,
    /// Of its own: ended, it takes its connections along, as a process does.
    runtime: Option<Runtime>,
}

impl Drop for StubAgent {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StubAgent {
    pub(crate) fn start(socket: &Path) -> Self {
        let templates = VERSIONS.iter().zip(1..).map(|(id, day)| TemplateVersion {
            id: (*id).to_owned(),
            slug: "base".to_owned(),
            digest: "00".repeat(32),
            key: None,
            created_at: Timestamp::from_second(day * 86_400).unwrap(),
            baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
            team: None,
            disk_gib: 0,
            settings: ImageSettings::default(),
            start: None,
            command: None,
            images: BTreeMap::new(),
            retained_bytes: 0,
        });
        let profiles = vec!["package-registries".to_owned(), "weather".to_owned()];
        let records = Records { templates: templates.collect(), profiles, vcpus_max: 64, ..Records::default() };
        let shared =
            Shared { records: Arc::new(Mutex::new(records)), gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)) };
        let mut agent = Self { shared, socket: socket.to_owned(), runtime: None };
        agent.resume();
        agent
    }

    /// What it has.
    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.shared.records.lock().unwrap()
    }

    /// From now on a start, pause, resume, checkpoint, fork or network policy waits for [`Self::admit`].
    pub(crate) fn hold(&self) {
        self.shared.gate.forget_permits(usize::MAX);
    }

    /// Lets `count` of them pass.
    pub(crate) fn admit(&self, count: usize) {
        self.shared.gate.add_permits(count);
    }

    /// A checkpoint of a sandbox that is there, which nobody ordered, or whose order is not known any more.
    pub(crate) fn insert_checkpoint(&self, id: &str, sandbox: &str) {
        let mut records = self.records();
        let request = CreateCheckpoint { id: id.into(), memory: false, force: false };
        let checkpoint = snapshots::checkpoint(&records.sandboxes[sandbox], &request);
        records.checkpoints.insert(id.to_owned(), checkpoint);
    }

    /// The process is gone; its sandboxes are not.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // Missing when it was stopped before.
        let _ = std::fs::remove_file(&self.socket);
    }

    /// The process is back.
    pub(crate) fn resume(&mut self) {
        let listener = UnixListener::bind(&self.socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = router(self.shared.clone());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        self.runtime = Some(runtime);
    }

    /// A sandbox that ended by itself, as earlier agents have it: nothing is left of it.
    pub(crate) fn fail(&self, id: &str) {
        self.lose(id);
        self.records().sandboxes.get_mut(id).unwrap().state = SandboxState::Failed;
    }

    /// A sandbox that ended by itself.
    pub(crate) fn lose(&self, id: &str) {
        let mut records = self.records();
        let sandbox = records.sandboxes.get_mut(id).unwrap();
        sandbox.state = SandboxState::Stopped;
        sandbox.error = Some(SandboxError { code: "guest_panicked".into(), message: "The kernel panicked".into() });
        sandbox.stopped_at = Some(after(sandbox.started_at));
    }

    /// A sandbox that stopped or woke by itself.
    pub(crate) fn turn(&self, id: &str, state: SandboxState) {
        self.records().sandboxes.get_mut(id).unwrap().turn(state);
    }

    /// The network policy that a sandbox has.
    pub(crate) fn network(&self, id: &str) -> Network {
        self.records().network(id)
    }

    /// What a sandbox used until this second: half a CPU, and so on.
    pub(crate) fn measure(&self, id: &str, second: i64) {
        let point = MetricPoint {
            time: Timestamp::from_second(second).unwrap(),
            cpu_millis: 500,
            memory_bytes: 64 << 20,
            disk_bytes: 3 << 20,
            received_bytes_per_second: 70,
            sent_bytes_per_second: 80,
        };
        self.records().metrics.entry(id.to_owned()).or_default().push(point);
    }

    /// A sandbox that nobody ordered, or whose order is not known any more.
    pub(crate) fn insert(&self, id: &str) {
        self.records().sandboxes.insert(id.to_owned(), sandbox(&order(id)));
    }
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/sandboxes", get(list).post(create))
        .route("/sandboxes/changes", get(changes))
        .route("/sandboxes/{id}", get(show).patch(update).delete(delete))
        .route("/sandboxes/{id}/session", post(session))
        .route("/sandboxes/{id}/tokens", get(tokens))
        .route("/sandboxes/{id}/ports/{port}", get(port).put(expose).delete(unexpose))
        .route("/sandboxes/{id}/logs", get(logs))
        .route("/sandboxes/{id}/usage", get(usage))
        .route("/sandboxes/{id}/metrics", get(metrics))
        .route("/templates", get(templates))
        .route("/host", get(host))
        .route("/revocations", post(revoke))
        .route("/allowances", put(allow))
        .route("/plans", put(offer))
        .merge(snapshots::router())
        .merge(network::router())
        .merge(volumes::router())
        .merge(builds::router())
        .merge(intervals::router())
        .with_state(shared)
}

async fn changes(State(shared): State<Shared>, Query(query): Query<BTreeMap<String, i64>>) -> Json<Revision> {
    let revision = || shared.records().revision;
    while query.get("after") == Some(&revision()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Json(Revision { revision: revision() })
}

fn order(id: &str) -> CreateSandbox {
    CreateSandbox {
        id: id.into(),
        template_version: VERSIONS[1].to_owned(),
        checkpoint: None,
        cpu: 1,
        memory_mb: 256,
        disk_gib: 20,
        timeout_seconds: 300,
        lifecycle: sandpiper_protocol::agent::Lifecycle::default(),
        envs: BTreeMap::new(),
        exposed_ports: Vec::new(),
        allow_public_traffic: true,
        previews: Previews::default(),
        network: Network::default(),
        volume_mounts: Vec::new(),
        capture_output: false,
        allowance: None,
    }
}

pub(super) fn sandbox(order: &CreateSandbox) -> Sandbox {
    let now = Timestamp::now();
    Sandbox {
        id: order.id.clone(),
        state: SandboxState::Ready,
        template_version: order.template_version.clone(),
        cpu: order.cpu,
        memory_mb: order.memory_mb,
        disk_gib: order.disk_gib,
        timeout_seconds: order.timeout_seconds,
        deadline: now + seconds(order.timeout_seconds),
        lifecycle: order.lifecycle,
        exposed_ports: order.exposed_ports.clone(),
        allow_public_traffic: order.allow_public_traffic,
        previews: order.previews.clone(),
        network_version: order.network.version,
        volume_mounts: order.volume_mounts.clone(),
        capture_output: order.capture_output,
        data_plane_url: format!("http://{}.sandbox.localhost:8080", order.id),
        created_at: now,
        started_at: Some(now),
        stopped_at: None,
        error: None,
        timings: StartTimings::default(),
        start: StartKind::Cold,
        is_bare: false,
        retained_bytes: RETAINED,
    }
}

/// What follows from a new state.
pub(super) trait Turn {
    fn turn(&mut self, state: SandboxState);
}

impl Turn for Sandbox {
    fn turn(&mut self, state: SandboxState) {
        self.state = state;
        match state {
            SandboxState::Stopped => self.stopped_at = Some(after(self.started_at)),
            SandboxState::Ready => {
                if self.stopped_at.is_some() {
                    self.started_at = Some(after(self.stopped_at));
                }
                (self.stopped_at, self.error) = (None, None);
            }
            _ => {}
        }
    }
}

/// Now, and later than `time`: the real agent takes longer than a millisecond for anything.
fn after(time: Option<Timestamp>) -> Timestamp {
    let now = Timestamp::now();
    time.map_or(now, |time| now.max(time + SignedDuration::from_millis(1)))
}

pub(super) fn seconds(count: u64) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(count).unwrap())
}

pub(super) fn refusal(status: u16, code: &str) -> Response {
    let body = ErrorBody { code: code.into(), message: format!("stub says {code}") };
    (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
}

impl Records {
    pub(super) fn network(&self, id: &str) -> Network {
        let policy = self.policies.get(id).cloned().unwrap_or_default();
        Network { version: self.sandboxes[id].network_version, policy }
    }

    pub(super) fn session(&mut self, headers: &HeaderMap, id: &str) -> Session {
        self.sessions += 1;
        self.session_keys.push(headers[SESSION_KEY].to_str().unwrap().to_owned());
        Session {
            data_plane_url: self.data_plane.clone().unwrap_or_else(|| format!("http://{id}.sandbox.localhost:8080")),
            access_token: format!("token-{}", self.sessions),
            expires_at: Timestamp::now() + SignedDuration::from_hours(1),
        }
    }
}

async fn list(State(shared): State<Shared>) -> Json<SandboxList> {
    let records = shared.records.lock().unwrap();
    Json(SandboxList {
        sandboxes: records.sandboxes.values().cloned().collect(),
        unreadable: records.unreadable.clone(),
    })
}

async fn create(State(shared): State<Shared>, headers: HeaderMap, Json(order): Json<CreateSandbox>) -> Response {
    shared.records().orders.push(order.clone());
    shared.records().allowances.extend(order.allowance.clone());
    if let Some(refusal) = shared.pass().await {
        return refusal;
    }
    let mut records = shared.records.lock().unwrap();
    let sandbox = sandbox(&order);
    records.sandboxes.insert(order.id.to_string(), sandbox.clone());
    records.policies.insert(order.id.to_string(), order.network.policy.clone());
    let session = records.session(&headers, &order.id);
    (StatusCode::CREATED, Json(CreatedSandbox { sandbox, session })).into_response()
}

async fn show(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let records = shared.records.lock().unwrap();
    match records.sandboxes.get(&id) {
        Some(sandbox) => Json(sandbox).into_response(),
        None if records.unreadable.contains(&id) => refusal(500, "internal"),
        None => refusal(404, "not_found"),
    }
}

async fn update(
    State(shared): State<Shared>,
    UrlPath(id): UrlPath<String>,
    Json(change): Json<UpdateSandbox>,
) -> Response {
    let mut records = shared.records.lock().unwrap();
    records.timeouts.push(change.timeout_seconds);
    let Some(sandbox) = records.sandboxes.get_mut(&id) else { return refusal(404, "not_found") };
    if let Some(timeout) = change.timeout_seconds {
        sandbox.timeout_seconds = timeout;
        sandbox.deadline = Timestamp::now() + seconds(timeout);
    }
    if let Some(lifecycle) = change.lifecycle {
        sandbox.lifecycle = lifecycle;
    }
    if let Some(allowed) = change.allow_public_traffic {
        sandbox.allow_public_traffic = allowed;
    }
    if let Some(capture) = change.capture_output {
        sandbox.capture_output = capture;
    }
    Json(&*sandbox).into_response()
}

async fn delete(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let mut records = shared.records.lock().unwrap();
    records.deletes.push(id.clone());
    match records.sandboxes.remove(&id) {
        Some(_) => StatusCode::NO_CONTENT.into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn session(State(shared): State<Shared>, UrlPath(id): UrlPath<String>, headers: HeaderMap) -> Response {
    let mut records = shared.records.lock().unwrap();
    match records.sandboxes.get(&id).map(|sandbox| sandbox.state) {
        None => refusal(404, "not_found"),
        Some(SandboxState::Ready) => Json(records.session(&headers, &id)).into_response(),
        Some(_) => refusal(409, "invalid_state"),
    }
}

async fn tokens(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let records = shared.records();
    if let Some((status, code)) = records.refuse_tokens {
        return refusal(status, code);
    }
    match records.sandboxes.contains_key(&id) {
        true => Json(LastingTokens { access_token: format!("access-{id}"), traffic_token: format!("traffic-{id}") })
            .into_response(),
        false => refusal(404, "not_found"),
    }
}

fn record(id: &str, port: ExposedPort) -> PortRecord {
    let host = format!("p{}-{id}.sandbox.localhost", port.port);
    PortRecord {
        port: port.port,
        url: format!("http://{host}:8080"),
        host,
        protocol: port.protocol,
        public: port.public,
        status: PortStatus::Closed,
    }
}

async fn port(State(shared): State<Shared>, UrlPath((id, port)): UrlPath<(String, u16)>) -> Response {
    let records = shared.records.lock().unwrap();
    let ports = records.sandboxes.get(&id).map(|sandbox| sandbox.exposed_ports.as_slice()).unwrap_or_default();
    match ports.iter().find(|exposed| exposed.port == port) {
        Some(exposed) => Json(record(&id, *exposed)).into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn expose(
    State(shared): State<Shared>,
    UrlPath((id, _)): UrlPath<(String, u16)>,
    Json(port): Json<ExposedPort>,
) -> Response {
    let mut records = shared.records.lock().unwrap();
    let Some(sandbox) = records.sandboxes.get_mut(&id) else { return refusal(404, "not_found") };
    sandbox.exposed_ports.retain(|exposed| exposed.port != port.port);
    sandbox.exposed_ports.push(port);
    Json(record(&id, port)).into_response()
}

async fn unexpose(State(shared): State<Shared>, UrlPath((id, port)): UrlPath<(String, u16)>) -> Response {
    let mut records = shared.records.lock().unwrap();
    let Some(sandbox) = records.sandboxes.get_mut(&id) else { return refusal(404, "not_found") };
    let before = sandbox.exposed_ports.len();
    sandbox.exposed_ports.retain(|exposed| exposed.port != port);
    if sandbox.exposed_ports.len() == before {
        return refusal(404, "not_found");
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn usage(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let state = shared.records().sandboxes.get(&id).map(|sandbox| sandbox.state);
    match state {
        None => refusal(404, "not_found"),
        Some(SandboxState::Ready) => Json(Usage {
            ts: Timestamp::now().as_second(),
            cpu_count: 2,
            cpu_used_pct: 12.5,
            mem_used: 100,
            mem_total: 1000,
            mem_cache: 50,
            disk_used: 10,
            disk_total: 20,
        })
        .into_response(),
        Some(_) => refusal(502, "guest_failed"),
    }
}

async fn metrics(
    State(shared): State<Shared>,
    UrlPath(id): UrlPath<String>,
    Query(bounds): Query<BTreeMap<String, i64>>,
) -> Response {
    let records = shared.records();
    if !records.sandboxes.contains_key(&id) {
        return refusal(404, "not_found");
    }
    let bound = |name: &str, otherwise| bounds.get(name).copied().unwrap_or(otherwise);
    let window = bound("start", i64::MIN)..=bound("end", i64::MAX);
    let points = records.metrics.get(&id).into_iter().flatten().copied();
    let points = points.filter(|point| window.contains(&point.time.as_second())).collect();
    Json(Metrics { step_seconds: 5, points }).into_response()
}

/// Like the real one, it keeps a log after the end: here for every id that was ever ordered.
async fn logs(State(shared): State<Shared>, UrlPath(id): UrlPath<String>, Query(query): Query<LogQuery>) -> Response {
    let records = shared.records();
    if !records.orders.iter().any(|order| *order.id == *id) || records.forgotten_logs.contains(&id) {
        return refusal(404, "not_found");
    }
    let mut own = records.logs.get(&id).cloned().unwrap_or_else(|| vec![log_entry(1, "started")]);
    own.extend(records.message.as_ref().map(|message| log_entry(2, message)));
    let last = own.last().map_or(0, |entry| entry.sequence);
    let first = own.first().map_or(0, |entry| entry.sequence);
    let time = |entry: &LogEntry| entry.time.as_millisecond();
    let mut entries: Vec<_> = own
        .into_iter()
        .filter(|entry| query.after.is_none_or(|after| entry.sequence > after))
        .filter(|entry| query.before.is_none_or(|before| entry.sequence < before))
        .filter(|entry| query.since_ms.is_none_or(|since| time(entry) >= since))
        .filter(|entry| query.until_ms.is_none_or(|until| time(entry) <= until))
        .filter(|entry| query.source.is_none_or(|source| entry.source == source))
        .filter(|entry| query.search.as_ref().is_none_or(|search| entry.message.contains(search)))
        .collect();
    if query.newest_first {
        entries.reverse();
    }
    let limit = query.limit.unwrap_or(MAX_LOG_ENTRIES);
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    let is_truncated = first > query.after.unwrap_or_default() + 1;
    let is_ended = !records.sandboxes.contains_key(&id);
    Json(LogPage { entries, has_more, last, is_truncated, is_ended }).into_response()
}

/// An entry of the host.
pub(crate) fn log_entry(sequence: u64, message: &str) -> LogEntry {
    LogEntry { sequence, time: Timestamp::now(), source: LogSource::Host, message: message.to_owned(), process: None }
}

async fn revoke(State(shared): State<Shared>, Json(revocations): Json<Revocations>) -> StatusCode {
    shared.records().revocations.push(revocations.keys);
    StatusCode::NO_CONTENT
}

async fn allow(State(shared): State<Shared>, Json(new): Json<Allowances>) -> StatusCode {
    shared.records().allowances.extend(new.allowances);
    StatusCode::NO_CONTENT
}

async fn offer(State(shared): State<Shared>, Json(sizes): Json<PlanSizes>) -> StatusCode {
    shared.records().plan_sizes.push(sizes);
    StatusCode::NO_CONTENT
}

async fn host(State(shared): State<Shared>) -> Json<HostInfo> {
    Json(HostInfo {
        version: "stub".into(),
        cpus: 64,
        memory_mb: 1 << 20,
        memory_available_mb: 1 << 20,
        sandboxes_live: 0,
        sandboxes_max: 100,
        vcpus_max: shared.records().vcpus_max,
        data_plane_host: "sandbox.localhost".into(),
    })
}

async fn templates(State(shared): State<Shared>) -> Json<TemplateList> {
    let mut records = shared.records();
    records.template_lists += 1;
    Json(TemplateList { templates: records.templates.clone() })
}
