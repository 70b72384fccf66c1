//! `GET /sandboxes/{id}/metrics`, `GET /sandboxes/metrics`: what machines took of the host, which measures them every few
//! seconds. One that is too young for that is asked itself where no window in the past is asked for.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::{MetricPoint, Usage};
use serde::Serialize;

use super::current;
use crate::agent_client::AgentError;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State as SandboxState};

/// Most sandboxes of one request.
const MAX_IDS: usize = 100;
/// Seconds within which the latest is looked for.
const LATEST: i64 = 60;

/// What a machine uses at one moment. Sizes are in bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxMetric {
    timestamp: Timestamp,
    timestamp_unix: i64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// The latest of several sandboxes.
#[derive(Debug, Serialize)]
pub struct Metrics {
    sandboxes: BTreeMap<String, SandboxMetric>,
}

/// Show what one sandbox used within a window; without one, all that is known.
pub async fn of_one(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<Vec<SandboxMetric>>, ApiError> {
    let (mut start, mut end) = (None, None);
    for (name, value) in pairs {
        let bound: &mut Option<i64> = match name.as_str() {
            "start" => &mut start,
            "end" => &mut end,
            _ => return Err(unknown(&name)),
        };
        *bound = Some(value.parse().map_err(|_| ApiError::invalid_field(name, "must be seconds since 1970"))?);
    }
    if start.zip(end).is_some_and(|(start, end)| start > end) {
        return Err(ApiError::invalid_field("start", "must not be after end"));
    }
    let row = current(&app, &caller, &id).await?;
    let mut metrics = measured(&app, &row, start, end).await?;
    if metrics.is_empty() && start.is_none() && end.is_none() {
        metrics.extend(ask(&app, &row).await?);
    }
    Ok(Json(metrics))
}

/// Show what several sandboxes use. Those that are not there, or do not run, are left out.
pub async fn of_many(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Json<Metrics>, ApiError> {
    let mut ids = Vec::new();
    for (name, value) in pairs {
        match name.as_str() {
            "sandbox_ids" => ids.extend(value.split(',').filter(|id| !id.is_empty()).map(str::to_owned)),
            _ => return Err(unknown(&name)),
        }
    }
    if ids.len() > MAX_IDS {
        return Err(ApiError::invalid_field("sandbox_ids", format!("must have at most {MAX_IDS} ids")));
    }
    let since = app.clock.now().as_second().saturating_sub(LATEST);
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        let row = app.store.sandboxes.get(&caller.team.id, &id).await?;
        let Some(row) = row.filter(|row| is_up(row.state)) else { continue };
        let latest = match measured(&app, &row, Some(since), None).await?.pop() {
            Some(metric) => Some(metric),
            None => ask(&app, &row).await?,
        };
        sandboxes.extend(latest.map(|metric| (id, metric)));
    }
    Ok(Json(Metrics { sandboxes }))
}

fn is_up(state: SandboxState) -> bool {
    matches!(state, SandboxState::Ready | SandboxState::Checkpointing)
}

/// What the host measured; nothing of a sandbox that ended meanwhile.
async fn measured(
    app: &App,
    row: &SandboxRow,
    start: Option<i64>,
    end: Option<i64>,
) -> Result<Vec<SandboxMetric>, ApiError> {
    match app.agent.metrics(&row.id, start, end).await {
        Ok(known) => Ok(known.points.iter().map(|point| SandboxMetric::new(point, row)).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// What the guest says of this moment; `None` where it does not, or does not run.
async fn ask(app: &App, row: &SandboxRow) -> Result<Option<SandboxMetric>, ApiError> {
    if !is_up(row.state) {
        return Ok(None);
    }
    match app.agent.usage(&row.id).await {
        Ok(usage) => Ok(Some(usage.into())),
        Err(AgentError::Refused { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl SandboxMetric {
    /// What the host measured of the sandbox of `row`. What of the memory holds files is for the guest to know.
    fn new(point: &MetricPoint, row: &SandboxRow) -> Self {
        let (mem_total, disk_total) = (u64::from(row.memory_mb) << 20, u64::from(row.disk_gib) << 30);
        Self {
            timestamp: point.time,
            timestamp_unix: point.time.as_second(),
            cpu_count: row.cpu,
            cpu_used_pct: point.cpu_used_pct(row.cpu),
            mem_used: point.memory_bytes.min(mem_total),
            mem_total,
            mem_cache: 0,
            disk_used: point.disk_bytes.min(disk_total),
            disk_total,
        }
    }
}

impl From<Usage> for SandboxMetric {
    fn from(usage: Usage) -> Self {
        Self {
            // A guest may say anything.
            timestamp: Timestamp::from_second(usage.ts).unwrap_or(Timestamp::UNIX_EPOCH),
            timestamp_unix: usage.ts,
            cpu_count: usage.cpu_count,
            cpu_used_pct: usage.cpu_used_pct,
            mem_used: usage.mem_used,
            mem_total: usage.mem_total,
            mem_cache: usage.mem_cache,
            disk_used: usage.disk_used,
            disk_total: usage.disk_total,
        }
    }
}
