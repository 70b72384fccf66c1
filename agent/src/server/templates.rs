//! `/templates`: what sandboxes start from.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, State};
use http::StatusCode;
use sandpiper_protocol::agent::{ImportTemplate, TemplateList, TemplateVersion};

use super::error::{ApiError, Body};
use super::{App, Peer};
use crate::helpers;
use sandpiper_images::templates::Imported;

/// `GET /templates`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<TemplateList> {
    let mut templates = app.sandboxes.context().templates.list();
    // The agent's own is nobody's to start from.
    templates.retain(|template| !helpers::is_helper(&template.slug));
    Json(TemplateList { templates })
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
