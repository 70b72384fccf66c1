//! `GET /v1/volumes`

use axum::Json;
use axum::extract::State;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::body::VolumeBody;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::v1::page::{List, Paging};

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct VolumeList {
    /// Newest first.
    pub volumes: Vec<VolumeBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List volumes
///
/// The team's volumes, newest first, page by page.
#[utoipa::path(
    get,
    path = "/v1/volumes",
    operation_id = "list_volumes",
    tag = "volumes",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("limit" = Option<u32>, Query, description = "Volumes per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = VolumeList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<VolumeList>, ApiError> {
    let paging = Paging::of_team(query, &caller)?;
    let list = List::of_ids("vol", &json!([caller.team.id]));
    let after = paging.after(&list)?;

    let page = app.store.volumes.list(&caller.team.id, after.as_deref(), paging.limit).await?;

    Ok(Json(VolumeList {
        volumes: page.volumes.into_iter().map(|row| VolumeBody::new(&caller.team, row)).collect(),
        next_token: page.after.map(|after| list.token(after)),
    }))
}
