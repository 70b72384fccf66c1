//! `GET /sandboxes/{id}/metrics`, `GET /sandboxes/metrics`: what machines use, asked of their guests at that moment. Nothing is
//! kept of it, so a window that has not got the present in it is empty.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::Usage;
use serde::Serialize;

use super::current;
use crate::agent_client::AgentError;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::store::sandbox_row::State as SandboxState;

/// Most sandboxes of one request.
const MAX_IDS: usize = 100;

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

/// Show what one sandbox uses.
pub async fn of_one(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<Vec<SandboxMetric>>, ApiError> {
    let (mut start, mut end) = (i64::MIN, i64::MAX);
    for (name, value) in pairs {
        let bound = match name.as_str() {
            "start" => &mut start,
            "end" => &mut end,
            _ => return Err(unknown(&name)),
        };
        *bound = value.parse().map_err(|_| ApiError::invalid_field(name, "must be seconds since 1970"))?;
    }
    if start > end {
        return Err(ApiError::invalid_field("start", "must not be after end"));
    }
    let row = current(&app, &caller, &id).await?;
    let metric = if is_up(row.state) { ask(&app, &id).await? } else { None };
    let is_within = |metric: &SandboxMetric| (start..=end).contains(&metric.timestamp_unix);
    Ok(Json(metric.into_iter().filter(is_within).collect()))
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
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        let row = app.store.sandboxes.get(&caller.team.id, &id).await?;
        if row.is_some_and(|row| is_up(row.state))
            && let Some(metric) = ask(&app, &id).await?
        {
            sandboxes.insert(id, metric);
        }
    }
    Ok(Json(Metrics { sandboxes }))
}

fn is_up(state: SandboxState) -> bool {
    matches!(state, SandboxState::Ready | SandboxState::Checkpointing)
}

/// `None` where the guest does not say, or the sandbox ended meanwhile.
async fn ask(app: &App, id: &str) -> Result<Option<SandboxMetric>, ApiError> {
    match app.agent.usage(id).await {
        Ok(usage) => Ok(Some(usage.into())),
        Err(AgentError::Refused { .. }) => Ok(None),
        Err(error) => Err(error.into()),
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
