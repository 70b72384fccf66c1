//! `DELETE /v1/sandboxes/{id}`

use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::owned;
use crate::app::App;
use crate::auth::WriteAccess;
use crate::error::ApiError;

/// Delete a sandbox
///
/// Ends it at once, with its disk. Answers when nothing of it is left on the host.
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
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    owned(&app, &caller, &id).await?;
    // `None` when it is just being started or removed by another request: then that one's task, or after it the
    // synchronisation, removes what the agent still makes of it.
    let guard = app.in_flight.enter(&id);
    match app.agent.delete(&id).await {
        Ok(()) => {}
        // It ended by itself, or failed and was forgotten, or is not there yet.
        Err(error) if error.is_not_found() => {}
        Err(error) if guard.is_none() => {
            tracing::debug!(sandbox = id, %error, "deleted while in flight");
        }
        Err(error) => return Err(error.into()),
    }
    app.store.sandboxes.destroy(&id, app.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}
