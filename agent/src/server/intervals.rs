//! `/intervals`: when machines of sandboxes ran, for whoever bills it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use http::StatusCode;
use sandpiper_durable as durable;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::interval::{Acknowledgement, IntervalPage};
use serde::Deserialize;

use super::App;
use super::error::{ApiError, Body};
use crate::intervals::AcknowledgeError;

/// Most records of a page, and how many there are where none are asked for.
const MOST: usize = 1000;

#[derive(Debug, Deserialize)]
pub(super) struct Bounds {
    limit: Option<usize>,
}

/// `GET /intervals`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Query(bounds): Query<Bounds>,
) -> Result<Json<IntervalPage>, ApiError> {
    let intervals = app.sandboxes.context().intervals.clone();
    let limit = bounds.limit.unwrap_or(MOST).clamp(1, MOST);
    let page = durable::blocking(move || intervals.page(limit)).await;
    Ok(Json(page.map_err(|error| ApiError::internal(format!("Cannot read the journal of intervals: {error}")))?))
}

/// `POST /intervals/acknowledge`
pub(super) async fn acknowledge(
    State(app): State<Arc<App>>,
    Body(Acknowledgement { journal, through }): Body<Acknowledgement>,
) -> Result<StatusCode, ApiError> {
    let intervals = app.sandboxes.context().intervals.clone();
    let acknowledged = durable::blocking(move || intervals.acknowledge(&journal, through)).await;
    acknowledged.map_err(|error| {
        let message = error_chain::chain(&error);
        match error {
            AcknowledgeError::OtherJournal(_) => ApiError::conflict(message),
            AcknowledgeError::NoSuchRecord { .. } => ApiError::invalid(message),
            AcknowledgeError::Storage(_) => ApiError::internal(message),
        }
    })?;
    Ok(StatusCode::NO_CONTENT)
}
