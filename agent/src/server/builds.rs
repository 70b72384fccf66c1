//! `/builds`: versions of templates that are made here.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use http::StatusCode;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{Build, BuildList, BuildLogPage, MAX_LOG_ENTRIES, StartBuild};
use serde::Deserialize;

use super::App;
use super::error::{ApiError, Body};

/// Which entries of a log are asked for.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Page {
    after: u64,
    limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: 0, limit: MAX_LOG_ENTRIES }
    }
}

/// `POST /builds`
pub(super) async fn start(
    State(app): State<Arc<App>>,
    Body(order): Body<StartBuild>,
) -> Result<(StatusCode, Json<Build>), ApiError> {
    let (build, is_new) = app.builds.start(order).await?;
    Ok((if is_new { StatusCode::ACCEPTED } else { StatusCode::OK }, Json(build)))
}

/// `GET /builds`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<BuildList> {
    Json(app.builds.list())
}

/// `GET /builds/{id}`
pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<VersionId>) -> Result<Json<Build>, ApiError> {
    app.builds.find(&id).map(Json).ok_or_else(|| ApiError::not_found("build"))
}

/// `GET /builds/{id}/logs`
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<VersionId>,
    Query(page): Query<Page>,
) -> Result<Json<BuildLogPage>, ApiError> {
    let page = app.builds.log(&id, page.after, page.limit).await;
    let page = page.map_err(|error| ApiError::internal(format!("Cannot read the build's log: {error}")))?;
    page.map(Json).ok_or_else(|| ApiError::not_found("build"))
}

/// `POST /builds/{id}/cancel`
pub(super) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<VersionId>) -> Result<Json<Build>, ApiError> {
    app.builds.cancel(&id).await.map(Json).ok_or_else(|| ApiError::not_found("build"))
}
