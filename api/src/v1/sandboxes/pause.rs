//! `POST /v1/sandboxes/{id}/pause`, and `…/stop`, the same under the specification's other name.

use axum::Json;
use axum::extract::{Path, State};

use super::body::SandboxBody;
use super::{check_usable, owned};
use crate::app::App;
use crate::auth::{Caller, WriteAccess};
use crate::dispatch;
use crate::error::ApiError;

/// Pause a sandbox
///
/// Stops it and keeps its disk, memory and processes; answers when that is durable. A stopped sandbox holds no quota. One
/// that is stopped already stays so.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/pause",
    operation_id = "pause_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 200, description = "The sandbox, `stopped`", body = SandboxBody))
)]
pub async fn pause(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<SandboxBody>, ApiError> {
    run(&app, &caller, &id).await
}

/// Stop a sandbox
///
/// The same as pause.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/stop",
    operation_id = "stop_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 200, description = "The sandbox, `stopped`", body = SandboxBody))
)]
pub async fn stop(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<SandboxBody>, ApiError> {
    run(&app, &caller, &id).await
}

async fn run(app: &App, caller: &Caller, id: &str) -> Result<Json<SandboxBody>, ApiError> {
    let row = owned(app, caller, id).await?;
    check_usable(&row)?;
    dispatch::pause::run(app, &row).await?;
    Ok(Json(SandboxBody::new(&caller.team, owned(app, caller, id).await?)))
}
