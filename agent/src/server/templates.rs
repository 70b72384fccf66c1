//! `/templates`: what sandboxes start from.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use http::StatusCode;
use sandpiper_protocol::agent::{ImportTemplate, TemplateList, TemplateVersion};
use sandpiper_protocol::ids::VersionId;

use super::error::{ApiError, Body};
use super::{App, Peer};
use sandpiper_images::templates::Imported;

/// `GET /templates`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<TemplateList> {
    Json(TemplateList { templates: app.sandboxes.templates() })
}

/// `DELETE /templates/{id}`
pub(super) async fn delete(State(app): State<Arc<App>>, Path(id): Path<VersionId>) -> Result<StatusCode, ApiError> {
    if app.sandboxes.delete_template(&id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("template version"))
    }
}

/// `POST /templates`
pub(super) async fn import(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Body(request): Body<ImportTemplate>,
) -> Result<(StatusCode, Json<TemplateVersion>), ApiError> {
    if !peer.is_trusted() {
        return Err(ApiError::forbidden("Only root may import a template by its path on this host"));
    }
    match app.sandboxes.context().templates.import(request).await? {
        Imported::Added(version) => {
            tracing::info!(target: "audit", template = version.slug, version = version.id, "template imported");
            Ok((StatusCode::CREATED, Json(version)))
        }
        Imported::Existing(version) => Ok((StatusCode::OK, Json(version))),
    }
}
