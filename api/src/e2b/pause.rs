//! `POST /sandboxes/{id}/pause`

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::PauseSandbox;
use serde::Deserialize;

use super::current;
use crate::auth::WriteAccess;
use crate::orchestration;
use crate::pending_audit::PendingAudit;
use crate::state::App;
use crate::store::sandbox_row::State as SandboxState;
use crate::v1::sandboxes::check_usable;

/// What is kept.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pause {
    /// False: the disk alone, from which the sandbox boots when it goes on.
    memory: Option<bool>,
    /// A guest that does not respond is never paused at request: there is nothing else to ask for.
    #[serde(rename = "requireHealthyGuest")]
    _require_healthy_guest: Option<bool>,
}

/// Pause a sandbox: 409 on one that is paused already, by which the SDKs tell that nothing was done.
pub async fn pause(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(Pause { memory, .. }): OptionalJson<Pause>,
) -> Result<StatusCode, ApiError> {
    let row = current(&app, &caller, &id).await?;
    if row.state == SandboxState::Stopped {
        return Err(ApiError::conflict(format!("The sandbox {id} is paused already")));
    }
    check_usable(&row)?;
    // One that takes minutes goes on; who connects meanwhile waits for its end.
    // A 409 would say that it is paused already, so what is open on its volumes does not keep it.
    let order = PauseSandbox { disk_only: !memory.unwrap_or(true), force: true };
    let audit = audit.of_success(StatusCode::NO_CONTENT);
    orchestration::pause::at_request(&app, &row, order, &app.offer.of(caller.team.plan), audit).await?;
    Ok(StatusCode::NO_CONTENT)
}
