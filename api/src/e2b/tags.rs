//! Tags of templates: `POST /templates/tags`, `DELETE /templates/tags`, `GET /templates/{id}/tags`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::build_id;
use super::reference::{DEFAULT_TAG, name, own, tag};
use crate::auth::{ReadAccess, WriteAccess};
use crate::errors;
use crate::state::App;
use crate::store::templates::versions::{TagRow, Tagged};
use crate::v1::sandboxes::validate::Problems;
use crate::v1::templates::body::check_tags;
use crate::v1::templates::reference::{owned, visible};

/// Tags for a version.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTags {
    /// `name:tag`, or `name` for the newest.
    target: String,
    tags: Vec<String>,
}

/// Tags that are to go.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OldTags {
    name: String,
    tags: Vec<String>,
}

/// A tag, and what it stands for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TagBody {
    tag: String,
    #[serde(rename = "buildID")]
    build_id: String,
    /// Of the version.
    created_at: Timestamp,
}

/// Has tags stand for a version.
pub async fn assign(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(NewTags { target, tags }): Json<NewTags>,
) -> Result<Response, ApiError> {
    check(&tags)?;
    let bare = own(&caller, &target).ok_or_else(|| errors::no_template(&target))?;
    let template = owned(&app, &caller, name(bare)).await?;
    let reference = tag(bare).unwrap_or(DEFAULT_TAG);
    let version = match app.store.templates.version(&template.id, reference).await? {
        None if reference == DEFAULT_TAG => template.latest.clone(),
        found => found,
    };
    let version = version.ok_or_else(|| errors::no_version(&template.slug, reference))?;
    match app.store.templates.set_tags(&template.id, &version.id, &tags).await? {
        Tagged::Done => {}
        Tagged::NotReady => {
            return Err(ApiError::invalid_state(format!("{target} is {}; only what is ready has tags", version.state)));
        }
        Tagged::TooMany => return Err(errors::too_many_tags()),
    }
    let acted = Extension(Acted(vec![version.id.to_string()]));
    let body = json!({"tags": tags, "buildID": build_id::to_uuid(&version.id)});
    Ok((StatusCode::CREATED, acted, JsonBody(body)).into_response())
}

/// Remove tags.
pub async fn remove(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(OldTags { name: full, tags }): Json<OldTags>,
) -> Result<Response, ApiError> {
    check(&tags)?;
    let bare = own(&caller, &full).ok_or_else(|| errors::no_template(&full))?;
    let template = owned(&app, &caller, name(bare)).await?;
    if !app.store.templates.remove_tags(&template.id, &tags).await? {
        return Err(ApiError::not_found(format!("The template {full} has none of these tags")));
    }
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![template.id.to_string()]))).into_response())
}

/// List the tags of a template.
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let bare = own(&caller, &id).unwrap_or(&id);
    let template = visible(&app, &caller, name(bare)).await?;
    let body =
        |row: TagRow| TagBody { tag: row.tag, build_id: build_id::to_uuid(&row.version), created_at: row.created_at };
    let listed: Vec<_> = app.store.templates.tags(&template.id).await?.into_iter().map(body).collect();
    Ok(JsonBody(listed).into_response())
}

fn check(tags: &[String]) -> Result<(), ApiError> {
    let mut problems = Problems::default();
    check_tags("tags", tags, &mut problems);
    if tags.is_empty() {
        problems.add("tags", "must not be empty");
    }
    problems.into_result()
}
