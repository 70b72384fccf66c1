//! One sandbox: how it is, what it does, and what can be done with it.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::network::{Denied, Network, denied};
use super::no_action;
use crate::api::Problem;
use crate::response::{Refusal, page};
use crate::view::{self, Chart, segment};
use crate::visit::{Order, Visit};

/// Log entries that are shown, the last ones, in pages of the API of a hundred.
const LOG_PAGES: usize = 2;

#[derive(Template)]
#[template(path = "sandbox.html")]
struct Page {
    visit: Visit,
    sandbox: Sandbox,
    ports: Vec<Port>,
    charts: Vec<Chart>,
    log: Vec<LogEntry>,
    denied: Vec<Denied>,
    checkpoints: Vec<Checkpoint>,
}

#[derive(Deserialize)]
struct Sandbox {
    id: String,
    state: String,
    template: String,
    template_version: String,
    timeout: u64,
    deadline: Option<Timestamp>,
    lifecycle: Lifecycle,
    volume_mounts: BTreeMap<String, String>,
    cpu: u32,
    memory_mb: u64,
    disk_gib: u64,
    metadata: BTreeMap<String, String>,
    exposed_ports: Vec<ExposedPort>,
    network: Network,
    capture_output: bool,
    data_plane_url: Option<String>,
    created_at: Timestamp,
    stopped_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    error: Option<Failure>,
}

impl Sandbox {
    fn is_running(&self) -> bool {
        self.state == "ready"
    }

    fn is_stopped(&self) -> bool {
        self.state == "stopped"
    }
}

#[derive(Deserialize)]
struct Lifecycle {
    on_timeout: String,
    auto_resume: bool,
    pause_memory: bool,
}

#[derive(Deserialize)]
struct ExposedPort {
    port: u16,
}

#[derive(Deserialize)]
struct Failure {
    code: String,
    message: String,
}

#[derive(Deserialize)]
struct Port {
    port: u16,
    url: String,
    public: bool,
    status: String,
}

#[derive(Deserialize)]
struct LogPage {
    entries: Vec<LogEntry>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct LogEntry {
    time: Timestamp,
    source: String,
    message: String,
    process: Option<LogProcess>,
}

/// Whose line an entry is.
#[derive(Deserialize)]
struct LogProcess {
    pid: u32,
    command: String,
    tag: Option<String>,
    stream: String,
    cut: bool,
}

impl LogEntry {
    /// How it is marked.
    fn kind(&self) -> &str {
        self.process.as_ref().map_or(&self.source, |process| &process.stream)
    }

    /// Who it comes from, for a person.
    fn origin(&self) -> String {
        match &self.process {
            None => self.source.clone(),
            Some(process) => {
                let name = process.tag.as_ref().unwrap_or(&process.command);
                format!("{} {name}[{}]", process.stream, process.pid)
            }
        }
    }

    fn is_cut(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.cut)
    }
}

#[derive(Deserialize)]
struct CheckpointList {
    checkpoints: Vec<Checkpoint>,
}

#[derive(Deserialize)]
struct Checkpoint {
    id: String,
    name: String,
    state: String,
    created_at: Timestamp,
}

#[derive(Deserialize)]
struct Metrics {
    memory_mb: u64,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    cpu_used_pct: f64,
    memory_bytes: u64,
    disk_bytes: u64,
    received_bytes_per_second: u64,
    sent_bytes_per_second: u64,
}

/// `GET /dashboard/{team}/sandboxes/{id}`
pub(crate) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Result<Response, Refusal> {
    let path = format!("/v1/sandboxes/{}", segment(&id));
    let checkpoints_path = format!("{path}/checkpoints?limit=50");
    let metrics_path = format!("{path}/metrics");
    let (sandbox, log, denied, checkpoints, metrics) = tokio::join!(
        visit.get::<Sandbox>(&path),
        log(&visit, &path),
        denied(&visit, &id),
        visit.get::<CheckpointList>(&checkpoints_path),
        visit.get::<Metrics>(&metrics_path),
    );
    let sandbox = sandbox?;
    let ports = ports(&visit, &path, &sandbox).await;
    // What is missing of a sandbox that is just ending, or while its host is away, is left out.
    let page_of = Page {
        charts: metrics.map(|metrics| charts(&metrics)).unwrap_or_default(),
        denied,
        checkpoints: checkpoints.map(|list| list.checkpoints).unwrap_or_default(),
        log: log.unwrap_or_default(),
        ports,
        sandbox,
        visit,
    };
    Ok(page(&page_of))
}

/// The last entries of the log, oldest first.
async fn log(visit: &Visit, path: &str) -> Result<Vec<LogEntry>, Problem> {
    let path = format!("{path}/logs?order=desc&limit=100");
    let (mut entries, mut next) = (Vec::new(), Some(path.clone()));
    for _ in 0..LOG_PAGES {
        let Some(page) = next else { break };
        let read: LogPage = visit.get(&page).await?;
        entries.extend(read.entries);
        next = read.next_token.map(|token| format!("{path}&next_token={}", segment(&token)));
    }
    entries.reverse();
    Ok(entries)
}

async fn ports(visit: &Visit, path: &str, sandbox: &Sandbox) -> Vec<Port> {
    let mut ports = Vec::new();
    for exposed in &sandbox.exposed_ports {
        if let Ok(port) = visit.get(&format!("{path}/ports/{}", exposed.port)).await {
            ports.push(port);
        }
    }
    ports
}

fn charts(Metrics { memory_mb, points }: &Metrics) -> Vec<Chart> {
    // Shown with one decimal place: what a float loses of so many bytes is not seen.
    #[expect(clippy::cast_precision_loss)]
    let of_bytes = |value: fn(&Point) -> u64| points.iter().map(|point| value(point) as f64).collect::<Vec<_>>();
    let cpu: Vec<_> = points.iter().map(|point| point.cpu_used_pct).collect();
    #[expect(clippy::cast_precision_loss)]
    let memory_top = (memory_mb << 20) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let bytes = |value: f64| view::bytes(&(value as u64));
    let rate = |value: f64| format!("{}/s", bytes(value));
    let charts = [
        Chart::new("CPU", &cpu, 100.0, |value| format!("{value:.0} %")),
        Chart::new("Memory", &of_bytes(|point| point.memory_bytes), memory_top, bytes),
        Chart::new("Disk", &of_bytes(|point| point.disk_bytes), 0.0, bytes),
        Chart::new("Received", &of_bytes(|point| point.received_bytes_per_second), 0.0, rate),
        Chart::new("Sent", &of_bytes(|point| point.sent_bytes_per_second), 0.0, rate),
    ];
    charts.into_iter().flatten().collect()
}

/// `POST /dashboard/{team}/sandboxes/{id}/do`: what the field `action` names.
pub(crate) async fn act(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    let path = format!("/v1/sandboxes/{}", segment(&id));
    let page = format!("sandboxes/{}", segment(&id));
    let (method, path, body, then) = match order.fields.text("action").unwrap_or_default() {
        "pause" => (Method::POST, format!("{path}/pause"), Some(json!({})), page),
        "stop" => (Method::POST, format!("{path}/stop"), None, page),
        "resume" => (Method::POST, format!("{path}/resume"), Some(json!({})), page),
        "checkpoint" => {
            let mut body = json!({"memory": order.fields.is_ticked("memory")});
            if let Some(name) = order.fields.text("name") {
                body["name"] = json!(name);
            }
            (Method::POST, format!("{path}/checkpoints"), Some(body), page)
        }
        "fork" => {
            let count = order.fields.number("count")?.unwrap_or(1);
            (Method::POST, format!("{path}/fork"), Some(json!({"count": count})), "sandboxes".to_owned())
        }
        "extend" => {
            let timeout = order.fields.number("minutes")?.unwrap_or(5).saturating_mul(60);
            (Method::PATCH, path, Some(json!({"timeout": timeout})), page)
        }
        "capture" => {
            let capture = order.fields.is_ticked("capture_output");
            (Method::PATCH, path, Some(json!({"capture_output": capture})), page)
        }
        "delete" => (Method::DELETE, path, None, "sandboxes".to_owned()),
        other => return Err(no_action(other).into()),
    };
    order.send::<IgnoredAny>(method, &path, body).await?;
    Ok(order.then(&then))
}

/// `POST /dashboard/{team}/sandboxes/{id}/ports`: exposes a port, or hides it again.
pub(crate) async fn change_port(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    let id = segment(&id);
    let path = format!("/v1/sandboxes/{id}/ports/{}", order.fields.number("port")?.unwrap_or_default());
    if order.fields.is_ticked("hide") {
        order.send::<IgnoredAny>(Method::DELETE, &path, None).await?;
    } else {
        let body = json!({"protocol": "http", "public": order.fields.is_ticked("public")});
        order.send::<IgnoredAny>(Method::PUT, &path, Some(body)).await?;
    }
    Ok(order.then(&format!("sandboxes/{id}")))
}
