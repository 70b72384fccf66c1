//! `DELETE /sandboxes/{id}`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use crate::auth::WriteAccess;
use crate::orchestration::delete::remove;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::v1::sandboxes::owned;

/// End a sandbox, running or paused, with all that it has.
pub async fn kill(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    remove(&app, &owned(&app, &caller, &id).await?, DeletionReason::Requested).await?;
    Ok(StatusCode::NO_CONTENT)
}
