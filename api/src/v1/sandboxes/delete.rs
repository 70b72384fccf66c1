//! `DELETE /v1/sandboxes/{id}`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use super::owned;
use crate::auth::WriteAccess;
use crate::orchestration::delete::remove;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;

/// Delete a sandbox
///
/// Ends it at once, with its disk. Responds when nothing of it is left on the host.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{id}",
    operation_id = "delete_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let row = owned(&app, &caller, &id).await?;
    remove(&app, &row, DeletionReason::Requested).await?;
    Ok(StatusCode::NO_CONTENT)
}
