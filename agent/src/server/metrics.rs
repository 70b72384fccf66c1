//! `GET /sandboxes/{id}/metrics`: what a sandbox's machine took of the host lately.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use sandpiper_protocol::agent::Metrics;
use sandpiper_protocol::ids::SandboxId;
use serde::Deserialize;

use super::App;
use super::error::ApiError;
use crate::samples::Window;

/// Seconds since 1970, both included.
#[derive(Debug, Deserialize)]
pub(super) struct Bounds {
    start: Option<i64>,
    end: Option<i64>,
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    Query(bounds): Query<Bounds>,
) -> Result<Json<Metrics>, ApiError> {
    Ok(Json(app.sandboxes.metrics(&id, Window::new(bounds.start, bounds.end)).await?))
}
