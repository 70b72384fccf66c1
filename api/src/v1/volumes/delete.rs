//! `DELETE /v1/volumes/{id}`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use crate::auth::WriteAccess;
use crate::orchestration::volume::{find, remove};
use crate::state::App;

/// Delete a volume
///
/// With all that is in it; responds when its bytes are free. Refused with 409 `volume_attached` while a sandbox has it. A
/// stopped sandbox that mounts it cannot be resumed any more.
#[utoipa::path(
    delete,
    path = "/v1/volumes/{id}",
    operation_id = "delete_volume",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let row = find(&app, &caller, &id).await?;
    remove(&app, &row).await?;
    Ok(StatusCode::NO_CONTENT)
}
