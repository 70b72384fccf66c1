//! What a create takes of the API itself, rows, quota and audit included. The agent beside it is a stand-in that starts nothing
//! and responds at once; its few hundredths of a millisecond count as the API's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::agent::{
    CreateSandbox, CreatedSandbox, HostInfo, RuntimeBaseline, Sandbox, SandboxList, SandboxState, Session, StartKind,
    StartTimings, TemplateList, TemplateVersion,
};
use sandpiper_protocol::id;
use sandpiper_protocol::template::ImageSettings;
use serde_json::{Value, json};
use support::Samples;
use tokio::net::UnixListener;

use crate::api::{self, Api, Database};
use crate::connection::Connection;
use crate::report::Report;

const CREATES: usize = 1000;
/// Until the API has taken over the templates.
const PATIENCE: Duration = Duration::from_secs(30);

/// One create after the other, each of which is deleted before the next.
pub(super) async fn measure(name: &str, database: &Database, report: &mut Report) -> anyhow::Result<()> {
    let api = Api::start(database, None).await?;
    let agent = tokio::spawn(serve(UnixListener::bind(api.agent_socket())?));
    let key = api.team_key("bench")?;
    let order = json!({"template": "base", "timeout": 3600});
    wait_for_templates(&api, &key, &order).await?;
    let mut connection = Connection::open(api.address).await?;
    let body = order.to_string();
    let mut times = Vec::new();
    for _ in 0..CREATES {
        let begin = Instant::now();
        let response = connection.ask("POST", "/v1/sandboxes", &key, &body).await?;
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
        let created: Value = serde_json::from_slice(response)?;
        ensure!(created["state"] == "ready", "not started: {created}");
        connection.ask("DELETE", &format!("/v1/sandboxes/{}", api::text(&created, "id")?), &key, "").await?;
    }
    agent.abort();
    let p99 = Samples::new(&times).percentile(99).context("too few creates for a 99th percentile")?;
    report.add("api", &format!("{name}_create_without_agent"), "ms", &times);
    report.add("api", &format!("{name}_create_without_agent_p99"), "ms", &[p99]);
    Ok(())
}

async fn wait_for_templates(api: &Api, key: &str, order: &Value) -> anyhow::Result<()> {
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        match api.call("POST", "/v1/sandboxes", key, order).await {
            Ok(created) => {
                let path = format!("/v1/sandboxes/{}", api::text(&created, "id")?);
                Connection::open(api.address).await?.ask("DELETE", &path, key, "").await?;
                return Ok(());
            }
            Err(error) if Instant::now() > give_up_at => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

type Sandboxes = Arc<Mutex<BTreeMap<String, Sandbox>>>;

/// The stand-in.
async fn serve(listener: UnixListener) -> std::io::Result<()> {
    let templates = vec![template()];
    let router = Router::new()
        .route("/host", get(async || Json(host())))
        .route("/templates", get(async move || Json(TemplateList { templates })))
        .route("/sandboxes", post(create).get(list))
        .route("/sandboxes/{id}", delete(remove))
        .route("/revocations", post(async || StatusCode::NO_CONTENT))
        .route("/allowances", put(async || StatusCode::NO_CONTENT))
        .route("/plans", put(async || StatusCode::NO_CONTENT))
        .with_state(Sandboxes::default());
    axum::serve(listener, router).await
}

async fn create(
    State(sandboxes): State<Sandboxes>,
    Json(order): Json<CreateSandbox>,
) -> (StatusCode, Json<CreatedSandbox>) {
    let now = Timestamp::now();
    let timeout = SignedDuration::from_secs(i64::try_from(order.timeout_seconds).unwrap_or_default());
    let data_plane_url = format!("http://{}.sandbox.localhost", order.id);
    let sandbox = Sandbox {
        id: order.id.clone(),
        state: SandboxState::Ready,
        template_version: order.template_version,
        cpu: order.cpu,
        memory_mb: order.memory_mb,
        disk_gib: order.disk_gib,
        timeout_seconds: order.timeout_seconds,
        deadline: now + timeout,
        lifecycle: order.lifecycle,
        exposed_ports: order.exposed_ports,
        allow_public_traffic: order.allow_public_traffic,
        previews: order.previews,
        network_version: order.network.version,
        volume_mounts: order.volume_mounts,
        capture_output: order.capture_output,
        data_plane_url: data_plane_url.clone(),
        created_at: now,
        started_at: Some(now),
        stopped_at: None,
        error: None,
        timings: StartTimings::default(),
        start: StartKind::Warm,
        is_bare: false,
        retained_bytes: 0,
    };
    let session = Session { data_plane_url, access_token: "none".to_owned(), expires_at: now + timeout };
    sandboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(order.id.to_string(), sandbox.clone());
    (StatusCode::CREATED, Json(CreatedSandbox { sandbox, session }))
}

async fn list(State(sandboxes): State<Sandboxes>) -> Json<SandboxList> {
    let sandboxes = sandboxes.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    Json(SandboxList { sandboxes, unreadable: Vec::new() })
}

async fn remove(State(sandboxes): State<Sandboxes>, UrlPath(id): UrlPath<String>) -> StatusCode {
    match sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) {
        Some(_) => StatusCode::NO_CONTENT,
        None => StatusCode::NOT_FOUND,
    }
}

fn host() -> HostInfo {
    HostInfo {
        version: "bench".to_owned(),
        cpus: 64,
        memory_mb: 1 << 20,
        memory_available_mb: 1 << 20,
        sandboxes_live: 0,
        sandboxes_max: 1000,
        vcpus_max: 8,
        data_plane_host: "sandbox.localhost".to_owned(),
    }
}

fn template() -> TemplateVersion {
    TemplateVersion {
        id: id::generate("ver"),
        slug: "base".to_owned(),
        digest: "00".repeat(32),
        key: None,
        created_at: Timestamp::UNIX_EPOCH,
        baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
        team: None,
        disk_gib: 0,
        settings: ImageSettings::default(),
        start: None,
        command: None,
        images: BTreeMap::new(),
        retained_bytes: 0,
    }
}
