//! What pages follow to know when to look again: the team's events, as they happen.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::response::Refusal;
use crate::visit::Visit;

const EVENT_STREAM: &str = "text/event-stream";

/// `GET /dashboard/{team}/changes`
pub(crate) async fn follow(visit: Visit) -> Result<Response, Refusal> {
    let events = visit.stream("/v1/events", Some(EVENT_STREAM)).await?;
    Ok(([(header::CONTENT_TYPE, EVENT_STREAM)], events.into_body()).into_response())
}
