//! `POST /v1/sandboxes/{id}/connect`, and `…/resume`, the same under the specification's other name.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::SignedDuration;
use sandpiper_protocol::agent;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{SandboxBody, SessionBody};
use super::owned;
use super::validate::Problems;
use crate::app::App;
use crate::auth::{Caller, WriteAccess};
use crate::dispatch::{self, AgentError};
use crate::error::ApiError;
use crate::http::OptionalJson;
use crate::http::mutation::SessionOf;
use crate::store::sandbox_row::{SandboxRow, State as SandboxState};

/// How long the sandbox should live on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectSandbox)]
pub struct ConnectRequest {
    /// Seconds from now; the sandbox's own `timeout` by default. The deadline is never moved closer.
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
/// Moves the deadline of a live sandbox further out and gives a new session for its data plane.
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
    Path(id): Path<String>,
    OptionalJson(request): OptionalJson<ConnectRequest>,
) -> Result<Response, ApiError> {
    run(&app, &caller, &id, &request).await
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
    Path(id): Path<String>,
    OptionalJson(request): OptionalJson<ConnectRequest>,
) -> Result<Response, ApiError> {
    run(&app, &caller, &id, &request).await
}

async fn run(app: &App, caller: &Caller, id: &str, request: &ConnectRequest) -> Result<Response, ApiError> {
    let row = owned(app, caller, id).await?;
    if let Some(seconds) = request.timeout {
        let mut problems = Problems::default();
        problems.timeout(seconds, app.config.plans.of(caller.team.plan));
        problems.into_result()?;
    }
    // The deadline that is compared must be the agent's, not one of a second ago.
    let row = dispatch::sync::refresh(app, row).await?.ok_or_else(|| ApiError::no_sandbox(id))?;
    check_live(&row)?;

    let gone = |error: AgentError| if error.is_not_found() { ApiError::no_sandbox(id) } else { error.into() };
    let timeout = request.timeout.unwrap_or(row.timeout_seconds);
    let wanted = SignedDuration::from_secs(i64::try_from(timeout).unwrap_or(i64::MAX));
    let remaining = row.deadline.map(|deadline| deadline.duration_since(app.clock.now()));
    if remaining.is_none_or(|remaining| remaining < wanted) {
        let change = agent::UpdateSandbox { timeout_seconds: Some(timeout), lifecycle: None };
        let report = app.agent.update(id, &change).await.map_err(gone)?;
        app.store.sandboxes.mirror(&report).await?;
    }
    let session = app.agent.session(id).await.map_err(gone)?;
    let sandbox = SandboxBody::new(&caller.team, owned(app, caller, id).await?);
    let body = ConnectedSandbox { session: session.into(), sandbox };
    Ok((Extension(SessionOf(id.to_owned())), Json(body)).into_response())
}

fn check_live(row: &SandboxRow) -> Result<(), ApiError> {
    let SandboxRow { id, state, .. } = row;
    match state {
        SandboxState::Ready | SandboxState::Checkpointing => Ok(()),
        SandboxState::Creating | SandboxState::Restoring => {
            Err(ApiError::invalid_state(format!("{id} is still starting; try again when it is ready")))
        }
        SandboxState::Stopping | SandboxState::Stopped => {
            Err(ApiError::invalid_state(format!("{id} is {state}; this host cannot resume it yet")))
        }
        SandboxState::Failed | SandboxState::Destroyed => {
            let why = row.error.as_ref().map_or("it ended", |error| error.message.as_str());
            Err(ApiError::invalid_state(format!("{id} has failed and cannot be used any more: {why}")))
        }
    }
}
