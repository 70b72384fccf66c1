//! `POST /v1/sandboxes/{id}/connect`, and `…/resume`, the same under the specification's other name.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{SandboxBody, SessionBody};
use super::validate::Problems;
use super::{check_usable, owned};
use crate::auth::{Caller, WriteAccess};
use crate::mutation::SessionOf;
use crate::orchestration;
use crate::orchestration::resume::Wish;
use crate::pending_audit::PendingAudit;
use crate::state::App;

/// How long the sandbox should live on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectSandbox)]
pub struct ConnectRequest {
    /// Seconds from now, or from the moment it is ready; the sandbox's own `timeout` by default. The deadline is never moved
    /// closer.
    #[schema(minimum = 1)]
    pub timeout: Option<u64>,
}

/// The way in.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConnectedSandbox {
    pub session: SessionBody,
    pub sandbox: SandboxBody,
}

/// Connect to a sandbox
///
/// Gives a new session for its data plane. A stopped sandbox is resumed, which needs room in the quota; one that is being
/// paused is resumed when that is done. The deadline of a live one moves further out.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/connect",
    operation_id = "connect_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<ConnectRequest>,
    responses((status = 200, description = "The way in", body = ConnectedSandbox))
)]
pub async fn connect(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(request): OptionalJson<ConnectRequest>,
) -> Result<Response, ApiError> {
    run(&app, &caller, &id, &request, &audit).await
}

/// Resume a sandbox
///
/// The same as connect.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/resume",
    operation_id = "resume_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<ConnectRequest>,
    responses((status = 200, description = "The way in", body = ConnectedSandbox))
)]
pub async fn resume(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(request): OptionalJson<ConnectRequest>,
) -> Result<Response, ApiError> {
    run(&app, &caller, &id, &request, &audit).await
}

async fn run(
    app: &App,
    caller: &Caller,
    id: &str,
    request: &ConnectRequest,
    audit: &PendingAudit,
) -> Result<Response, ApiError> {
    let row = owned(app, caller, id).await?;
    let limits = &app.offer.of(caller.team.plan);
    if let Some(seconds) = request.timeout {
        let mut problems = Problems::default();
        problems.timeout(seconds, limits);
        problems.into_result()?;
    }
    check_usable(&row)?;
    let timeout = request.timeout.unwrap_or(row.timeout_seconds);
    let audit = audit.of_success(StatusCode::OK);
    let wish = Wish { timeout, disk_only: false };
    let session = orchestration::resume::run(app, caller, &row, wish, Some(&audit)).await?;
    let sandbox = SandboxBody::new(&caller.team, owned(app, caller, id).await?);
    let body = ConnectedSandbox { session: session.into(), sandbox };
    Ok((Extension(SessionOf(vec![id.to_owned()])), Json(body)).into_response())
}
