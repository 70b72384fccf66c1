//! What a sandbox used over time.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::MetricPoint;
use serde::Serialize;
use utoipa::ToSchema;

use super::sandboxes::owned;
use crate::auth::ReadAccess;
use crate::errors;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State as SandboxState};

/// Most sandboxes of one request.
const MAX_IDS: usize = 100;
/// Seconds within which the latest is looked for.
const LATEST: i64 = 60;

/// What a sandbox used over time, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Metrics)]
pub struct MetricsBody {
    /// Seconds from one point to the next while the sandbox runs: 5, or more where the window would have more than 720 points.
    /// Then each point is the mean of what was measured within.
    pub step: u32,
    /// What it has: CPUs.
    pub cpu: u32,
    /// What it has: memory in MiB.
    pub memory_mb: u32,
    /// What it has: size of the root disk.
    pub disk_gib: u32,
    pub points: Vec<MetricPointBody>,
}

/// What a sandbox used until one moment.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MetricPoint)]
pub struct MetricPointBody {
    pub time: Timestamp,
    /// Of all CPUs together: 100 is all of them. A little more is possible, since the host works for the sandbox too.
    pub cpu_used_pct: f64,
    /// Memory of the host that it holds: what it ever touched, also where it is free for the guest.
    pub memory_bytes: u64,
    /// What its disk holds on the host, its template's part included.
    pub disk_bytes: u64,
    pub received_bytes_per_second: u64,
    pub sent_bytes_per_second: u64,
}

/// What several sandboxes use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LatestMetrics)]
pub struct LatestBody {
    /// By their ids.
    pub sandboxes: BTreeMap<String, LatestOfOneBody>,
}

/// What a sandbox uses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LatestMetricsOfOne)]
pub struct LatestOfOneBody {
    /// What it has: CPUs.
    pub cpu: u32,
    /// What it has: memory in MiB.
    pub memory_mb: u32,
    /// What it has: size of the root disk.
    pub disk_gib: u32,
    pub point: MetricPointBody,
}

impl MetricPointBody {
    fn new(point: &MetricPoint, cpus: u32) -> Self {
        Self {
            time: point.time,
            cpu_used_pct: point.cpu_used_pct(cpus),
            memory_bytes: point.memory_bytes,
            disk_bytes: point.disk_bytes,
            received_bytes_per_second: point.received_bytes_per_second,
            sent_bytes_per_second: point.sent_bytes_per_second,
        }
    }
}

/// Show what a sandbox used over time
///
/// CPU, memory, disk and network as the host sees them, measured every 5 seconds while the sandbox runs and kept for a day; a
/// stopped one keeps those of the day before. What the guest itself calls used is at `GET /metrics` of the data plane.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/metrics",
    operation_id = "show_metrics",
    tag = "sandboxes",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("start" = Option<Timestamp>, Query, description = "The first moment; without it, the first that is known"),
        ("end" = Option<Timestamp>, Query, description = "The last moment; without it, the last that is known"),
    ),
    responses((status = 200, description = "What was measured in the window", body = MetricsBody))
)]
pub async fn metrics(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Json<MetricsBody>, ApiError> {
    let row = owned(&app, &caller, &id).await?;
    let (start, end) = window(query)?;
    let known = app.agent.metrics(&id, start, end).await;
    let known = known.map_err(|error| if error.is_not_found() { errors::no_sandbox(&id) } else { error.into() })?;
    Ok(Json(MetricsBody {
        step: known.step_seconds,
        cpu: row.cpu,
        memory_mb: row.memory_mb,
        disk_gib: row.disk_gib,
        points: known.points.iter().map(|point| MetricPointBody::new(point, row.cpu)).collect(),
    }))
}

/// Show what several sandboxes use
///
/// The latest that the host measured of each, a minute ago at most. Those that do not run, were not measured yet, or are not the
/// team's, are left out.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/metrics",
    operation_id = "show_latest_metrics",
    tag = "sandboxes",
    params(("ids" = String, Query, description = "The sandboxes, with commas between them: 100 at most")),
    responses((status = 200, description = "What they use", body = LatestBody))
)]
pub async fn latest(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Json<LatestBody>, ApiError> {
    let mut ids = BTreeSet::new();
    for (name, value) in pairs {
        match name.as_str() {
            "ids" => ids.extend(value.split(',').filter(|id| !id.is_empty()).map(str::to_owned)),
            _ => return Err(unknown(&name)),
        }
    }
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(ApiError::invalid_field("ids", format!("must have between 1 and {MAX_IDS} ids")));
    }
    let since = app.clock.now().as_second().saturating_sub(LATEST);
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        let row = app.store.sandboxes.get(&caller.team.id, &id).await?;
        let Some(row) = row.filter(|row| SandboxState::LIVE.contains(&row.state)) else { continue };
        let known = match app.agent.metrics(&id, Some(since), None).await {
            Err(error) if error.is_not_found() => continue,
            known => known?,
        };
        let Some(point) = known.points.last() else { continue };
        let SandboxRow { cpu, memory_mb, disk_gib, .. } = row;
        sandboxes.insert(id, LatestOfOneBody { cpu, memory_mb, disk_gib, point: MetricPointBody::new(point, cpu) });
    }
    Ok(Json(LatestBody { sandboxes }))
}

/// Seconds since 1970.
fn window(Pairs(pairs): Pairs) -> Result<(Option<i64>, Option<i64>), ApiError> {
    let (mut start, mut end) = (None, None);
    for (name, value) in pairs {
        let bound = match name.as_str() {
            "start" => &mut start,
            "end" => &mut end,
            _ => return Err(unknown(&name)),
        };
        let moment: Timestamp = value.parse().map_err(|_| {
            ApiError::invalid_field(name, "must be a time with its zone, such as 2026-01-31T12:00:00Z (a `+` is `%2B`)")
        })?;
        *bound = Some(moment.as_second());
    }
    if start.zip(end).is_some_and(|(start, end)| start > end) {
        return Err(ApiError::invalid_field("start", "must not be after end"));
    }
    Ok((start, end))
}
