//! `/uploads`: files that are sent for builds.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use http::StatusCode;
use sandpiper_durable as durable;
use sandpiper_protocol::ids::UploadId;
use sandpiper_protocol::template::Upload;

use super::error::ApiError;
use super::{App, volumes};

/// `PUT /uploads/{id}`
pub(super) async fn receive(
    State(app): State<Arc<App>>,
    Path(id): Path<UploadId>,
    body: Body,
) -> Result<(StatusCode, Json<Upload>), ApiError> {
    let pieces = Box::pin(volumes::paced(body.into_data_stream()));
    let (upload, is_new) = app.uploads.receive(&id, pieces).await?;
    if is_new {
        tracing::info!(target: "audit", upload = id.as_str(), bytes = upload.bytes, "upload received");
    }
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json((*upload).clone())))
}

/// `GET /uploads/{id}`
pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<UploadId>) -> Result<Json<Upload>, ApiError> {
    let uploads = app.uploads.clone();
    // Whoever asks is about to use it: as when it is opened for a build, its time begins anew.
    let opened = durable::blocking(move || uploads.open_data(&id)).await;
    let opened = opened.map_err(|error: io::Error| ApiError::internal(format!("Cannot read the upload: {error}")))?;
    let (upload, _) = opened.ok_or_else(|| ApiError::not_found("upload"))?;
    Ok(Json((*upload).clone()))
}

/// `DELETE /uploads/{id}`
pub(super) async fn delete(State(app): State<Arc<App>>, Path(id): Path<UploadId>) -> Result<StatusCode, ApiError> {
    let uploads = app.uploads.clone();
    if durable::blocking(move || uploads.delete(&id)).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("upload"))
    }
}
