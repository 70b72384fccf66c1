//! `POST /v1/sandboxes/{id}/pause`, and `…/stop`, the same under the specification's other name.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::PauseSandbox;

use serde::Deserialize;
use utoipa::ToSchema;

use super::body::SandboxBody;
use super::{check_usable, owned};
use crate::auth::{Caller, WriteAccess};
use crate::orchestration::{self, Progress};
use crate::pending_audit::PendingAudit;
use crate::state::App;

/// How it is paused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PauseSandbox)]
pub struct PauseRequest {
    /// Also while files on its volumes are open: whoever has them open reads and writes errors from then on. Without it, that
    /// is refused with 409 `volume_busy`.
    #[serde(default)]
    #[schema(default = false)]
    pub force: bool,
}

/// Pause a sandbox
///
/// Stops it and keeps its disk, memory and processes; responds when that is durable. A stopped sandbox holds neither
/// CPUs nor memory of the quota, which says how many of them there may be. One that is stopped already stays so. Where it takes minutes, the response is 202 and a sandbox in `stopping`, which becomes
/// `stopped`, or `ready` again if it cannot be paused; its log says why. Its volumes are free for other sandboxes
/// from then on.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/pause",
    operation_id = "pause_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<PauseRequest>,
    responses(
        (status = 200, description = "The sandbox, `stopped`", body = SandboxBody),
        (status = 202, description = "The sandbox, still `stopping`", body = SandboxBody),
    )
)]
pub async fn pause(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(request): OptionalJson<PauseRequest>,
) -> Result<(StatusCode, Json<SandboxBody>), ApiError> {
    run(&app, &caller, &id, &request, &audit).await
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
    request_body = Option<PauseRequest>,
    responses(
        (status = 200, description = "The sandbox, `stopped`", body = SandboxBody),
        (status = 202, description = "The sandbox, still `stopping`", body = SandboxBody),
    )
)]
pub async fn stop(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(request): OptionalJson<PauseRequest>,
) -> Result<(StatusCode, Json<SandboxBody>), ApiError> {
    run(&app, &caller, &id, &request, &audit).await
}

async fn run(
    app: &App,
    caller: &Caller,
    id: &str,
    request: &PauseRequest,
    audit: &PendingAudit,
) -> Result<(StatusCode, Json<SandboxBody>), ApiError> {
    let row = owned(app, caller, id).await?;
    check_usable(&row)?;
    let order = PauseSandbox { disk_only: false, force: request.force };
    let limits = app.offer.of(caller.team.plan);
    let audit = audit.of_success(StatusCode::OK);
    let status = match orchestration::pause::at_request(app, &row, order, &limits, audit).await? {
        Progress::Done => StatusCode::OK,
        Progress::UnderWay => StatusCode::ACCEPTED,
    };
    Ok((status, Json(SandboxBody::new(&caller.team, owned(app, caller, id).await?))))
}
