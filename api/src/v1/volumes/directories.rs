//! Directories of a volume: `GET/POST /v1/volumes/{id}/directories?path=`

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::volume::MAX_DEPTH;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::body::{EntryBody, PathQuery, checked_mode, number};
use super::detached;
use crate::agent_client::volumes::{Attributes, Entries};
use crate::auth::{ReadAccess, WriteAccess};
use crate::state::App;
use crate::v1::page::{List, Paging};

/// The directory to make.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MakeVolumeDirectory)]
pub struct MakeRequest {
    /// Octal text; `0755` by default.
    pub mode: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VolumeDirectory)]
pub struct DirectoryBody {
    /// By name.
    pub entries: Vec<EntryBody>,
    /// For the next page, with the same parameters; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List a directory
///
/// By name, page by page. Refused with 409 `volume_attached` while a sandbox has the volume.
#[utoipa::path(
    get,
    path = "/v1/volumes/{id}/directories",
    operation_id = "list_volume_directory",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute", example = "/"),
        ("depth" = Option<u32>, Query, description = "Levels down: 1 by default, which is what is in the directory itself; \
            32 at most", minimum = 1),
        ("limit" = Option<u32>, Query, description = "Entries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same path and depth"),
    ),
    responses((status = 200, description = "A page", body = DirectoryBody))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<DirectoryBody>, ApiError> {
    let (mut paging, mut query, mut depth) = (Paging::default(), PathQuery::default(), 1);
    for (name, value) in pairs {
        match name.as_str() {
            "limit" | "next_token" => drop(paging.take(&name, &value)?),
            "path" => drop(query.take(&name, &value)?),
            "depth" => depth = checked_depth(number("depth", &value)?)?,
            _ => return Err(unknown(&name)),
        }
    }
    let path = query.path()?;
    let list = List::of_keys(&json!(["directory", id, path, depth]));
    let entries = Entries { depth, limit: paging.limit, after: paging.after(&list)? };
    let volume = detached(&app, &caller, &id).await?;
    let page = app.agent.volume_directory(&volume, &path, &entries).await?;
    Ok(Json(DirectoryBody {
        entries: page.entries.into_iter().map(EntryBody::from).collect(),
        next_token: page.next.map(|after| list.token(after)),
    }))
}

/// How many levels down a list goes.
///
/// # Errors
///
/// 400.
pub fn checked_depth(depth: u32) -> Result<u32, ApiError> {
    if (1..=MAX_DEPTH).contains(&depth) {
        return Ok(depth);
    }
    Err(ApiError::invalid_field("depth", format!("must be from 1 to {MAX_DEPTH}")))
}

/// Make a directory
///
/// And those above it. One that is there stays as it is.
#[utoipa::path(
    post,
    path = "/v1/volumes/{id}/directories",
    operation_id = "make_volume_directory",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute"),
    ),
    request_body = Option<MakeRequest>,
    responses(
        (status = 201, description = "Made", body = EntryBody),
        (status = 200, description = "It was there", body = EntryBody),
    )
)]
pub async fn make(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    OptionalJson(MakeRequest { mode, uid, gid }): OptionalJson<MakeRequest>,
) -> Result<(StatusCode, Json<EntryBody>), ApiError> {
    let path = PathQuery::only_path(query)?;
    let attributes = Attributes { mode: mode.as_deref().map(checked_mode).transpose()?, uid, gid };
    let volume = detached(&app, &caller, &id).await?;
    let (entry, is_new) = app.agent.make_volume_directory(&volume, &path, &attributes).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(entry.into())))
}
