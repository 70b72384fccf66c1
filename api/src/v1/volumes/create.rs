//! `POST /v1/volumes`

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::ids::VolumeId;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{VolumeBody, check_name};
use crate::auth::{Caller, WriteAccess};
use crate::orchestration::volume;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::volumes::VolumeRow;

/// The volume to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateVolume, example = json!({"name": "models"}))]
pub struct CreateRequest {
    /// Slug or id of the key's own team, which is also the default.
    pub team: Option<String>,
    /// 1 to 63 letters, digits, `-`, `_` and `.`, not beginning with a dot; no other volume of the team has it.
    pub name: String,
}

/// Create a volume
///
/// An empty file system of the platform's size, which is thin: it holds of the disk what is in it. Sandboxes mount it by its
/// name, one at a time.
#[utoipa::path(
    post,
    path = "/v1/volumes",
    operation_id = "create_volume",
    tag = "volumes",
    request_body = CreateRequest,
    responses((status = 201, description = "Created", body = VolumeBody))
)]
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Json(CreateRequest { team, name }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(team.as_deref())?;
    check_name(&name)?;
    let claim = claim.map(|Extension(claim)| claim);
    Ok(response(&caller, volume::create(&app, &caller, name, claim.as_ref()).await?))
}

/// The response for a volume that an earlier request with the same idempotency key began; `None` if nothing came of it.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn response_for_existing(app: &App, caller: &Caller, id: &VolumeId) -> Result<Option<Response>, ApiError> {
    let row = volume::made_before(app, caller, id).await?;
    Ok(row.map(|row| response(caller, row)))
}

fn response(caller: &Caller, row: VolumeRow) -> Response {
    let location = [(header::LOCATION, format!("/v1/volumes/{}", row.id))];
    let acted = Extension(Acted(vec![row.id.to_string()]));
    (StatusCode::CREATED, location, acted, JsonBody(VolumeBody::new(&caller.team, row))).into_response()
}
