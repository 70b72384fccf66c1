//! What there is at a path of a volume, whatever it is: `GET/PATCH/DELETE /v1/volumes/{id}/path?path=`

use axum::Json as JsonBody;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::Pairs;
use sandpiper_protocol::volume::ChangePath;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{EntryBody, PathQuery, checked_mode, checked_path};
use super::detached;
use crate::auth::{ReadAccess, WriteAccess};
use crate::orchestration::{self, Progress};
use crate::state::App;

/// What to change; an omitted field stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangeVolumePath, example = json!({"mode": "0755", "move_to": "/models/old.bin"}))]
pub struct ChangeRequest {
    /// Octal text, such as `0644`.
    pub mode: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// The path that it moves to, where nothing is yet.
    pub move_to: Option<String>,
}

/// Show what is at a path
///
/// Of a symbolic link, the link itself. Refused with 409 `volume_attached` while a sandbox has the volume.
#[utoipa::path(
    get,
    path = "/v1/volumes/{id}/path",
    operation_id = "show_volume_path",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute", example = "/models"),
    ),
    responses((status = 200, description = "What is there", body = EntryBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<JsonBody<EntryBody>, ApiError> {
    let path = PathQuery::only_path(query)?;
    let volume = detached(&app, &caller, &id).await?;
    Ok(JsonBody(app.agent.volume_entry(&volume, &path).await?.into()))
}

/// Change what is at a path
///
/// Its mode, its owner, or where it is.
#[utoipa::path(
    patch,
    path = "/v1/volumes/{id}/path",
    operation_id = "change_volume_path",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute"),
    ),
    request_body = ChangeRequest,
    responses((status = 200, description = "What is there now", body = EntryBody))
)]
pub async fn change(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    Json(request): Json<ChangeRequest>,
) -> Result<JsonBody<EntryBody>, ApiError> {
    let path = PathQuery::only_path(query)?;
    let ChangeRequest { mode, uid, gid, move_to } = request;
    let mode = mode.as_deref().map(checked_mode).transpose()?;
    let move_to = move_to.map(|path| checked_path("move_to", path)).transpose()?;
    let volume = detached(&app, &caller, &id).await?;
    let change = ChangePath { mode, uid, gid, move_to };
    Ok(JsonBody(app.agent.change_volume_entry(&volume, &path, &change).await?.into()))
}

/// Delete what is at a path
///
/// A directory with all that is in it; of a symbolic link, the link itself. Where that takes minutes, the response is 202 and some
/// of it is left: another such request, with another `Idempotency-Key` if any, goes on with it.
#[utoipa::path(
    delete,
    path = "/v1/volumes/{id}/path",
    operation_id = "delete_volume_path",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute"),
    ),
    responses((status = 204, description = "Gone"), (status = 202, description = "Some of it is gone: ask again for the rest"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<StatusCode, ApiError> {
    let path = PathQuery::only_path(query)?;
    let volume = detached(&app, &caller, &id).await?;
    Ok(match orchestration::volume::remove_entry(&app, &volume, &path).await? {
        Progress::Done => StatusCode::NO_CONTENT,
        Progress::UnderWay => StatusCode::ACCEPTED,
    })
}
