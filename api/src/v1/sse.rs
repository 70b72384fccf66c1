//! What responses that are server-sent events have in common.
//!
//! They end when the process is to end, and say nothing of it: the reader goes on with another, from `Last-Event-ID`.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use sandpiper_http::error::ApiError;
use serde::Serialize;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Between two signs of life, while there is nothing to say.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Whether a request asks for events.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream"))
}

/// The number of the last event that the reader has.
///
/// # Errors
///
/// 400 where it is no number: `what` says of what it should be.
pub fn last_event_id(headers: &HeaderMap, what: &str) -> Result<Option<u64>, ApiError> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    match id.to_str().unwrap_or_default().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(ApiError::invalid_field("Last-Event-ID", format!("must be the number of {what}"))),
    }
}

/// One event.
pub fn event(name: &str, body: &impl Serialize) -> Event {
    // Texts and numbers always have a JSON form, which has no line ends.
    Event::default().event(name).data(serde_json::to_string(body).unwrap_or_default())
}

/// The response.
pub fn response(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    ([(header::CACHE_CONTROL, "no-store")], events).into_response()
}
