//! `DELETE /v1/sandboxes/{id}`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use super::owned;
use crate::auth::WriteAccess;
use crate::orchestration;
use crate::state::App;
use crate::store::sandbox_row::SandboxRow;

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
    remove(&app, &row).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends the sandbox of `row`; returns when nothing of it is left on the host.
///
/// # Errors
///
/// Those of the agent, unless it does not have the sandbox.
pub async fn remove(app: &App, row: &SandboxRow) -> Result<(), ApiError> {
    let id = &row.id;
    // When it is just being started or removed by another request, that one's task, or after it the synchronisation,
    // removes what the agent still makes of it.
    let is_in_flight = orchestration::sync::is_in_flight(app, row).await?;
    let _in_flight = app.in_flight.enter(id);
    match app.agent.delete(id).await {
        Ok(()) => {}
        // It ended by itself, or failed and was forgotten, or is not there yet.
        Err(error) if error.is_not_found() => {}
        Err(error) if is_in_flight => {
            tracing::debug!(sandbox = id, %error, "deleted while in flight");
        }
        Err(error) => return Err(error.into()),
    }
    app.store.sandboxes.destroy(id, app.clock.now()).await?;
    Ok(())
}
