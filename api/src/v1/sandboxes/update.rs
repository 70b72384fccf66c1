//! `PATCH /v1/sandboxes/{id}`

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::body::SandboxBody;
use super::owned;
use super::validate::{LifecycleRequest, Problems};
use crate::auth::WriteAccess;
use crate::errors;
use crate::state::App;
use crate::store::sandbox_row::State as SandboxState;
use crate::store::sandboxes::Change;

/// What to change; an omitted field stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateSandbox)]
pub struct UpdateRequest {
    /// Seconds from now to the new deadline; of a stopped sandbox, from its next start.
    #[schema(minimum = 1)]
    pub timeout: Option<u64>,
    /// Replaces all metadata.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub metadata: Option<BTreeMap<String, Value>>,
    /// What it leaves out stays as it is, too.
    pub lifecycle: Option<LifecycleRequest>,
    /// Whether public preview ports are reached without the access token.
    pub allow_public_traffic: Option<bool>,
    /// Whether what processes write goes into the log, from now on: also of those that run already.
    pub capture_output: Option<bool>,
}

/// Update a sandbox
///
/// Changes deadline, metadata, lifecycle, whether previews may be public, or whether process output is captured.
#[utoipa::path(
    patch,
    path = "/v1/sandboxes/{id}",
    operation_id = "update_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = UpdateRequest,
    responses((status = 200, description = "The sandbox as it is now", body = SandboxBody))
)]
pub async fn update(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    Json(request): Json<UpdateRequest>,
) -> Result<axum::Json<SandboxBody>, ApiError> {
    let row = owned(&app, &caller, &id).await?;
    let mut problems = Problems::default();
    if let Some(seconds) = request.timeout {
        problems.timeout(seconds, &app.offer.of(caller.team.plan));
    }
    let lifecycle = request.lifecycle.map(|lifecycle| problems.lifecycle(lifecycle, false, row.lifecycle));
    let metadata = request.metadata.map(|metadata| problems.metadata(metadata));
    problems.into_result()?;

    let UpdateRequest { timeout: timeout_seconds, allow_public_traffic, capture_output, .. } = request;
    let change = agent::UpdateSandbox { timeout_seconds, lifecycle, allow_public_traffic, capture_output };
    if change != agent::UpdateSandbox::default() {
        if matches!(row.state, SandboxState::Failed | SandboxState::Creating) {
            return Err(ApiError::invalid_state(format!("{id} is {}; only its metadata can be changed", row.state)));
        }
        let report = app
            .agent
            .update(&id, &change)
            .await
            .map_err(|error| if error.is_not_found() { errors::no_sandbox(&id) } else { error.into() })?;
        app.store.sandboxes.mirror(&report, app.clock.now()).await?;
    }
    app.store.sandboxes.change(&id, &Change { timeout_seconds, metadata }).await?;
    Ok(axum::Json(SandboxBody::new(&caller.team, owned(&app, &caller, &id).await?)))
}
