//! `/sandboxes/{id}/checkpoints` and `/checkpoints`: what sandboxes were, for others to go on from.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use sandpiper_protocol::agent::{Checkpoint, CheckpointList, CreateCheckpoint};
use sandpiper_protocol::ids::{CheckpointId, SandboxId};

use super::App;
use super::error::{ApiError, Body};
use sandpiper_images::snapshots::Manifest;

/// `POST /sandboxes/{id}/checkpoints`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    Body(request): Body<CreateCheckpoint>,
) -> Result<(StatusCode, Json<Checkpoint>), ApiError> {
    let manifest = app.sandboxes.checkpoint(&id, request).await?;
    Ok((StatusCode::CREATED, Json(app.view_checkpoint(&manifest))))
}

/// `GET /checkpoints`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<CheckpointList> {
    let manifests = app.sandboxes.context().checkpoints.list();
    Json(CheckpointList { checkpoints: manifests.iter().map(|manifest| app.view_checkpoint(manifest)).collect() })
}

/// `GET /checkpoints/{id}`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<CheckpointId>,
) -> Result<Json<Checkpoint>, ApiError> {
    let manifest = app.sandboxes.context().checkpoints.find(&id).ok_or_else(|| ApiError::not_found("checkpoint"))?;
    Ok(Json(app.view_checkpoint(&manifest)))
}

/// `DELETE /checkpoints/{id}`
pub(super) async fn delete(State(app): State<Arc<App>>, Path(id): Path<CheckpointId>) -> Result<StatusCode, ApiError> {
    if app.sandboxes.delete_checkpoint(&id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("checkpoint"))
    }
}

impl App {
    fn view_checkpoint(&self, manifest: &Manifest) -> Checkpoint {
        manifest.to_contract(self.sandboxes.context().usage.of(&manifest.id))
    }
}
