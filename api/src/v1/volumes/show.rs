//! `GET /v1/volumes/{id}`

use axum::Json;
use axum::extract::{Path, State};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::NoParameters;

use super::body::VolumeBody;
use crate::auth::ReadAccess;
use crate::orchestration::volume::find;
use crate::state::App;

/// Show a volume
///
/// The volume, and the live sandbox that has it, as they were last known.
#[utoipa::path(
    get,
    path = "/v1/volumes/{id}",
    operation_id = "show_volume",
    tag = "volumes",
    params(("id" = String, Path, description = "The volume")),
    responses((status = 200, description = "The volume", body = VolumeBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Json<VolumeBody>, ApiError> {
    let row = find(&app, &caller, &id).await?;
    Ok(Json(VolumeBody::new(&caller.team, row)))
}
