//! `POST /sandboxes/{id}/timeout`, `POST /sandboxes/{id}/refreshes`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::SignedDuration;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::{Json, OptionalJson};
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::{OnTimeout, PauseSandbox, UpdateSandbox};
use serde::Deserialize;

use super::running;
use crate::auth::{Caller, WriteAccess};
use crate::errors;
use crate::orchestration;
use crate::orchestration::delete::remove;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::SandboxRow;
use crate::v1::sandboxes::check_usable;
use crate::v1::sandboxes::validate::Problems;

/// Seconds, when a refresh names none.
const REFRESH: u64 = 15;

/// When the sandbox is over.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    /// Seconds from now; 0 is now.
    timeout: u64,
}

/// How much longer it is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    /// Seconds from now, at least.
    duration: Option<u64>,
}

/// Set a sandbox's deadline, be it sooner or later than before.
pub async fn set(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    Json(Timeout { timeout }): Json<Timeout>,
) -> Result<StatusCode, ApiError> {
    let row = running(&app, &caller, &id).await?;
    check_usable(&row)?;
    if timeout == 0 {
        expire(&app, &row).await?;
    } else {
        move_deadline(&app, &caller, &row, timeout).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Move a sandbox's deadline further out, never closer.
pub async fn refresh(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    OptionalJson(Refresh { duration }): OptionalJson<Refresh>,
) -> Result<StatusCode, ApiError> {
    let row = running(&app, &caller, &id).await?;
    check_usable(&row)?;
    let seconds = duration.unwrap_or(REFRESH);
    let ahead = i64::try_from(seconds).map_or(SignedDuration::MAX, SignedDuration::from_secs);
    let is_further = row.deadline.is_none_or(|deadline| deadline.duration_since(app.clock.now()) < ahead);
    if is_further {
        move_deadline(&app, &caller, &row, seconds).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn move_deadline(app: &App, caller: &Caller, row: &SandboxRow, seconds: u64) -> Result<(), ApiError> {
    let mut problems = Problems::default();
    problems.timeout(seconds, &app.offer.of(caller.team.plan));
    problems.into_result()?;
    let change = UpdateSandbox { timeout_seconds: Some(seconds), ..UpdateSandbox::default() };
    let report = app.agent.update(&row.id, &change).await;
    let report =
        report.map_err(|error| if error.is_not_found() { errors::no_sandbox(&row.id) } else { error.into() })?;
    Ok(app.store.sandboxes.mirror(&report, app.clock.now()).await?)
}

/// What the deadline would do.
async fn expire(app: &App, row: &SandboxRow) -> Result<(), ApiError> {
    match row.lifecycle.on_timeout {
        OnTimeout::Kill => remove(app, row, DeletionReason::TimedOut).await,
        OnTimeout::Pause => {
            // As at the time-out itself, nothing keeps it.
            let order = PauseSandbox { disk_only: !row.lifecycle.pause_memory, force: true };
            orchestration::pause::in_any_case(app, row, order).await.map(drop)
        }
    }
}
