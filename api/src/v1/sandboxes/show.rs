//! `GET /v1/sandboxes/{id}`

use axum::Json;
use axum::extract::{Path, State};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use super::body::SandboxBody;
use super::owned;
use crate::auth::ReadAccess;
use crate::errors;
use crate::orchestration;
use crate::state::App;

/// Show a sandbox
///
/// Asked of the host; while it does not respond, what was last known of the sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}",
    operation_id = "show_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 200, description = "The sandbox", body = SandboxBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Json<SandboxBody>, ApiError> {
    let row = owned(&app, &caller, &id).await?;
    let row = orchestration::sync::refresh(&app, row).await?.ok_or_else(|| errors::no_sandbox(&id))?;
    Ok(Json(SandboxBody::new(&caller.team, row)))
}
