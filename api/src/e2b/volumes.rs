//! `POST /volumes`, `GET /volumes`, `GET /volumes/{id}`, `DELETE /volumes/{id}`

use axum::Extension;
use axum::Json as JsonBody;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::ids::VolumeId;
use serde::{Deserialize, Serialize};

use super::volume_token;
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::mutation::SessionOf;
use crate::orchestration::volume::{self, find, remove};
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::volumes::VolumeRow;
use crate::v1::volumes::body::check_name;

/// Volumes that are read at a time.
const PAGE: u32 = 100;

/// The volume to create.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    name: String,
}

/// A volume.
#[derive(Debug, Serialize)]
struct VolumeBody {
    #[serde(rename = "volumeID")]
    volume_id: String,
    name: String,
}

/// A volume, and the way into it.
#[derive(Serialize)]
struct VolumeAndToken {
    #[serde(flatten)]
    volume: VolumeBody,
    token: String,
}

impl From<VolumeRow> for VolumeBody {
    fn from(row: VolumeRow) -> Self {
        Self { volume_id: row.id.to_string(), name: row.name }
    }
}

/// Create a volume.
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Json(NewVolume { name }): Json<NewVolume>,
) -> Result<Response, ApiError> {
    check_name(&name)?;
    let claim = claim.map(|Extension(claim)| claim);
    let row = volume::create(&app, &caller, name, claim.as_ref()).await?;
    with_token(&app, &caller, row, StatusCode::CREATED)
}

/// List the team's volumes: all of them, as the SDKs expect.
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
) -> Result<Response, ApiError> {
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = app.store.volumes.list(&caller.team.id, after.as_deref(), PAGE).await?;
        listed.extend(page.volumes.into_iter().map(VolumeBody::from));
        after = page.after;
        if after.is_none() {
            return Ok(JsonBody(listed).into_response());
        }
    }
}

/// Show a volume, with a way into it: of a key that may only read, to read.
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = find(&app, &caller, &id).await?;
    with_token(&app, &caller, row, StatusCode::OK)
}

/// Delete a volume.
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

/// The response for a volume that an earlier request with the same idempotency key began; `None` if nothing came of it.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn response_for_existing(app: &App, caller: &Caller, id: &VolumeId) -> Result<Option<Response>, ApiError> {
    match volume::made_before(app, caller, id).await? {
        Some(row) => with_token(app, caller, row, StatusCode::CREATED).map(Some),
        None => Ok(None),
    }
}

fn with_token(app: &App, caller: &Caller, row: VolumeRow, status: StatusCode) -> Result<Response, ApiError> {
    let token = volume_token::mint(app, caller, &row.id)?;
    let marks = (Extension(Acted(vec![row.id.to_string()])), Extension(SessionOf(vec![row.id.to_string()])));
    Ok((status, marks.0, marks.1, JsonBody(VolumeAndToken { volume: row.into(), token })).into_response())
}
