//! Snapshots: what [`crate::v1::checkpoints`] calls checkpoints. `POST /sandboxes/{id}/snapshots`, `GET /snapshots`,
//! `DELETE /templates/{id}`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::{NoParameters, Pairs, unknown};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{current, pages, reference};
use crate::auth::{ReadAccess, WriteAccess};
use crate::errors;
use crate::orchestration::Progress;
use crate::orchestration::checkpoint::remove;
use crate::state::App;
use crate::store::checkpoints::{CheckpointRow, State as CheckpointState};
use crate::store::idempotency::Claim;
use crate::v1::checkpoints::{Names, Wanted, take};
use crate::v1::page::{List, Paging};
use crate::v1::templates::change;
use crate::v1::templates::reference::owned;

/// Snapshots of a page, unless a request names fewer.
const LIMIT: u32 = 100;

/// A snapshot.
#[derive(Debug, Serialize)]
pub struct SnapshotInfo {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl From<CheckpointRow> for SnapshotInfo {
    fn from(row: CheckpointRow) -> Self {
        // One that was given no name has its id for one.
        let names = if row.name == row.id { Vec::new() } else { vec![row.name] };
        Self { snapshot_id: row.id, names }
    }
}

/// The snapshot to take.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    name: Option<String>,
    /// False: the disk alone.
    memory: Option<bool>,
}

/// Take a snapshot of a sandbox, which goes on. A name that another snapshot has is the new one's from then on.
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Path(id): Path<String>,
    OptionalJson(NewSnapshot { name, memory }): OptionalJson<NewSnapshot>,
) -> Result<Response, ApiError> {
    let row = current(&app, &caller, &id).await?;
    let claim = claim.map(|Extension(claim)| claim);
    let wanted = Wanted { name, names: Names::Move, memory: memory.unwrap_or(true), force: false };
    let (snapshot, progress) = take(&app, &caller, &row, wanted, claim.as_ref()).await?;
    if progress == Progress::UnderWay {
        let message = format!("The snapshot {} takes long; GET /snapshots lists it when it is there", snapshot.id);
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "timed_out", message));
    }
    let acted = Extension(Acted(vec![id, snapshot.id.clone()]));
    Ok((StatusCode::CREATED, acted, Json(SnapshotInfo::from(snapshot))).into_response())
}

/// List the team's snapshots, or those of one sandbox, or the one of a name.
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut paging = Paging::of_limit(LIMIT);
    let (mut sandbox, mut name) = (None, None);
    for (parameter, value) in pairs {
        match parameter.as_str() {
            "sandboxID" => sandbox = Some(value),
            "name" => name = Some(value),
            "limit" => drop(paging.take("limit", &value)?),
            "nextToken" => drop(paging.take("next_token", &value)?),
            _ => return Err(unknown(&parameter)),
        }
    }
    let is_shown = |row: &CheckpointRow| row.state == CheckpointState::Ready;
    if let Some(name) = name {
        let row = reference::snapshot(&app, &caller, &name).await?;
        let row = row.filter(|row| sandbox.as_ref().is_none_or(|sandbox| *sandbox == row.sandbox_id)).filter(is_shown);
        return Ok(pages::response(&row.map(SnapshotInfo::from).into_iter().collect::<Vec<_>>(), None));
    }
    let list = List::of_ids("ckp", &json!(["e2b", caller.team.id, sandbox]));
    let after = paging.after(&list)?;
    let checkpoints = &app.store.checkpoints;
    let page = checkpoints.list(&caller.team.id, sandbox.as_deref(), after.as_deref(), paging.limit).await?;
    let shown: Vec<_> = page.checkpoints.into_iter().filter(is_shown).map(SnapshotInfo::from).collect();
    Ok(pages::response(&shown, page.after.map(|after| list.token(after))))
}

/// Delete a snapshot, by its id or name; or a template, with all its versions.
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    if let Some(snapshot) = reference::snapshot(&app, &caller, &reference).await? {
        remove(&app, &snapshot).await?;
        return Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![snapshot.id]))).into_response());
    }
    // With a tag it is the name of a snapshot, or of one version: no whole template goes for that.
    if reference::tag(&reference).is_some() {
        return Err(errors::no_template(&reference));
    }
    let template = owned(&app, &caller, &reference).await?;
    change::remove(&app, &template).await?;
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![template.id.to_string()]))).into_response())
}
