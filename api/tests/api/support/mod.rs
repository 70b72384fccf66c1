//! One API host in a temporary folder, with keys of two teams.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use sandpiper_api::auth::keys;
use sandpiper_api::config::Config;
use sandpiper_api::orchestration::sync::Synchronizer;
use sandpiper_api::plan::Plan;
use sandpiper_api::service::Service;
use sandpiper_api::state::App;
use sandpiper_api::store::Store;
use sandpiper_api::store::keys::{Capability, NewKey};
use sandpiper_dashboard::data_planes::DataPlanes;
use sandpiper_db::Database;
use sandpiper_db::secrets::Vault;
use sandpiper_db::testing::TestDatabase;
use sandpiper_http::clock::Clock;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tower::ServiceExt;

pub(crate) mod agent;
pub(crate) mod browser;
pub(crate) mod builds;
pub(crate) mod data_plane;
pub(crate) mod intervals;
mod network;
pub(crate) mod provider;
pub(crate) mod shop;
mod snapshots;
mod stored;
pub(crate) mod volumes;

use agent::StubAgent;

/// Longest wait for something that must happen.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// The API, its agent and its keys.
pub(crate) struct Host {
    pub(crate) config: Config,
    pub(crate) database: Database,
    pub(crate) app: App,
    pub(crate) payments: sandpiper_payments::state::App,
    pub(crate) agent: StubAgent,
    /// Of team `acme`, plan Pro.
    pub(crate) write: String,
    pub(crate) read: String,
    /// Of team `rival`, plan Basic.
    pub(crate) foreign: String,
    router: Router,
    metrics_router: Router,
    clock_offset_ms: Arc<AtomicI64>,
    // Removed with the host.
    _folder: TempDir,
    pub(crate) test_database: TestDatabase,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn read(response: axum::response::Response) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Self { status: parts.status, headers: parts.headers, text }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The JSON of an answer that must have this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// Asserts an error envelope; it is returned.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Value {
        let request_id = self.header("x-request-id").expect("a request id").to_owned();
        let body = self.expect(status);
        assert_eq!(body["error"], code, "{body}");
        assert_eq!(body["request_id"], request_id.as_str());
        assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        body
    }

    /// Asserts a 400 that blames `field`.
    #[track_caller]
    pub(crate) fn blames(self, field: &str) {
        let body = self.refused(400, "invalid_request");
        let fields: Vec<_> = body["details"].as_array().unwrap().iter().map(|detail| &detail["field"]).collect();
        assert!(fields.iter().any(|found| *found == field), "{body}");
    }
}

impl Host {
    /// A host with a template `base` (two versions) and an agent that answers at once.
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Likewise, with changes to its configuration.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agent = StubAgent::start(&folder.path().join("agent.sock"));
        let mut config = Config::default();
        config.state_dir = folder.path().join("state");
        let test_database = TestDatabase::new().await;
        config.database = Some(test_database.location.parse().unwrap());
        config.agent_socket = folder.path().join("agent.sock");
        // Many requests at once are no concern of most tests.
        config.rate_limit.burst = NonZeroU32::MAX;
        config.team_rate_limit.burst = NonZeroU32::MAX;
        change(&mut config);
        let database = Database::open(&config.database()).await.unwrap();
        let store = Store::new(database.clone());
        let write = key(&store, "acme", Plan::Pro, Capability::Write).await;
        let read = key(&store, "acme", Plan::Pro, Capability::Read).await;
        let foreign = key(&store, "rival", Plan::Basic, Capability::Write).await;
        let clock_offset_ms = Arc::new(AtomicI64::new(0));
        let (app, payments) = assemble(&config, &database, &clock_offset_ms);
        let service = service(&database, &app, &payments);
        Self {
            router: service.router(&config),
            metrics_router: service.metrics_router(),
            config,
            database,
            app,
            payments,
            agent,
            write,
            read,
            foreign,
            clock_offset_ms,
            _folder: folder,
            test_database,
        }
    }

    /// Ends this process's part without closing anything, as a kill would, and starts anew on the same files.
    pub(crate) async fn restart(self) -> Self {
        let database = Database::open(&self.config.database()).await.unwrap();
        let (app, payments) = assemble(&self.config, &database, &self.clock_offset_ms);
        let service = service(&database, &app, &payments);
        let (router, metrics_router) = (service.router(&self.config), service.metrics_router());
        Self { router, metrics_router, database, app, payments, ..self }
    }

    /// The routes of another process on the same database, with the same agent.
    pub(crate) async fn other_process(&self) -> Router {
        let database = Database::open(&self.config.database()).await.unwrap();
        let (app, payments) = assemble(&self.config, &database, &self.clock_offset_ms);
        Service::new(database, Some(app), Some(payments)).router(&self.config)
    }

    /// What this process serves, once more.
    pub(crate) fn service(&self) -> Service {
        service(&self.database, &self.app, &self.payments)
    }

    /// Moves the API's clock on.
    pub(crate) fn pass(&self, time: SignedDuration) {
        self.clock_offset_ms.fetch_add(i64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Any request.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        Answer::read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, key: &str, body: Option<Value>) -> Answer {
        self.send(request(method, path, key, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &self.read, None).await
    }

    /// The metrics, from the listener of their own.
    pub(crate) async fn metrics(&self) -> Answer {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        Answer::read(self.metrics_router.clone().oneshot(request).await.unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, &self.write, Some(body)).await
    }

    /// A create request of team `acme`.
    pub(crate) async fn create(&self, body: Value) -> Answer {
        self.post("/v1/sandboxes", body).await
    }

    /// The id of a new, ready sandbox of team `acme`.
    pub(crate) async fn sandbox(&self) -> String {
        let created = self.create(serde_json::json!({"template": "base"})).await.expect(201);
        created["id"].as_str().unwrap().to_owned()
    }

    /// The checkpoint of a sandbox of team `acme`, taken with this body.
    pub(crate) async fn checkpoint(&self, sandbox: &str, body: Value) -> Value {
        self.post(&format!("/v1/sandboxes/{sandbox}/checkpoints"), body).await.expect(201)
    }

    /// What the quota says is in use by team `acme`.
    pub(crate) async fn usage(&self) -> Value {
        self.get("/v1/sandbox_limits").await.expect(200)["quota"]["usage"].take()
    }

    /// One round of synchronisation by a task that has seen nothing before.
    pub(crate) async fn sync(&self) {
        Synchronizer::new(self.app.clone()).round().await.unwrap();
    }

    /// A router for requests from other tasks.
    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    /// The answers to requests that are made at the same time. On one thread they would take turns, so the test needs several.
    pub(crate) async fn at_once(&self, requests: impl IntoIterator<Item = Request<Body>>) -> Vec<Answer> {
        assert!(Handle::current().metrics().num_workers() > 1, "this test needs the flavor `multi_thread`");
        let requests: Vec<_> = requests.into_iter().collect();
        let start = Arc::new(Barrier::new(requests.len()));
        let tasks: JoinSet<Answer> = requests
            .into_iter()
            .map(|request| {
                let (router, start) = (self.router(), Arc::clone(&start));
                async move {
                    start.wait().await;
                    Answer::read(router.oneshot(request).await.unwrap()).await
                }
            })
            .collect();
        tasks.join_all().await
    }
}

/// A request with a key and, where given, a JSON body.
pub(crate) fn request(method: &str, path: &str, key: &str, body: Option<Value>) -> Request<Body> {
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}")).body(body).unwrap()
}

/// The same request with one more header.
pub(crate) fn with_header(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    eventually_within(BOUND, what, condition).await;
}

/// Likewise, for what takes longer than most.
pub(crate) async fn eventually_within(bound: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(bound, holds).await.unwrap_or_else(|_| panic!("not within {bound:?}: {what}"));
}

fn assemble(
    config: &Config,
    database: &Database,
    clock_offset_ms: &Arc<AtomicI64>,
) -> (App, sandpiper_payments::state::App) {
    let vault = || Vault::open(&config.secrets_key_file()).unwrap();
    let offset = Arc::clone(clock_offset_ms);
    let clock = Clock::from_fn(move || Timestamp::now() + SignedDuration::from_millis(offset.load(Ordering::Relaxed)));
    let app = App::new(config.sandboxes(), Store::new(database.clone()), vault(), clock.clone()).unwrap();
    let payments = sandpiper_payments::store::Store::new(database.clone());
    (app, sandpiper_payments::state::App::new(config.payments(), payments, vault(), clock))
}

/// A new key of a team, made with it where missing.
fn service(database: &Database, app: &App, payments: &sandpiper_payments::state::App) -> Service {
    let service = Service::new(database.clone(), Some(app.clone()), Some(payments.clone()));
    service.with_dashboard(DataPlanes::new().unwrap())
}

pub(crate) async fn key(store: &Store, team: &str, plan: Plan, capability: Capability) -> String {
    let now = Timestamp::now();
    let team = store.teams.ensure(team, plan, now).await.unwrap();
    let key = keys::generate();
    let hash = keys::hash(&key).unwrap();
    let new = NewKey { name: "test", hash: &hash, capability, created_by: None, expires_at: None };
    store.keys.add(&team, &new, now).await.unwrap();
    key.to_string()
}
