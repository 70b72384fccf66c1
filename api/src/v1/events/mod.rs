//! `GET /v1/events`: what happened in a team, page by page or as it happens.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use serde::Serialize;
use utoipa::ToSchema;

use super::page::Paging;
use super::sse;
use crate::auth::ReadAccess;
use crate::errors;
use crate::state::App;
use crate::store::events::{EventFilter, EventPage, EventType};

pub mod body;
mod stream;

use body::EventBody;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventList)]
pub struct EventList {
    /// Oldest first.
    pub events: Vec<EventBody>,
    /// What to send as `after` for those that follow, now or later.
    pub next_after: u64,
    /// Whether to ask for them at once: some may be there already.
    pub has_more: bool,
}

/// Read what happened
///
/// Events of the team's sandboxes, checkpoints, builds and volumes, oldest first, page by page: from the oldest that is kept, or
/// from the one that follows `after`. With `Accept: text/event-stream` as server-sent events that go on with what happens: from
/// now on, or from the one that follows `Last-Event-ID`, or else `after`. The id of each is its `sequence`. The response is 410 where
/// what follows is not kept any more, so that nobody misses an event unawares.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "read_events",
    tag = "events",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("after" = Option<u64>, Query, description = "Only those that follow the event with this `sequence`"),
        ("type" = Option<String>, Query, description = "Only of this type; may be given several times"),
        ("resource" = Option<String>, Query, description = "Only of the resource with this id"),
        ("limit" = Option<u32>, Query, description = "Events per page: 50 by default, 100 at most", minimum = 1),
        ("Last-Event-ID" = Option<u64>, Header, description = "Of the stream: the last event that was read"),
    ),
    responses((status = 200, description = "A page, or the events", content(
        (EventList = "application/json"), (String = "text/event-stream")
    )))
)]
pub async fn read(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    headers: HeaderMap,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let (mut paging, mut filter, mut after) = (Paging::default(), EventFilter::default(), None);
    for (name, value) in pairs {
        match name.as_str() {
            "after" => after = Some(number(&value)?),
            "type" => filter.types.push(event_type(&value)?),
            "resource" => filter.resource = Some(value),
            "team" | "limit" if paging.take(&name, &value)? => {}
            _ => return Err(unknown(&name)),
        }
    }
    caller.check_team(paging.team.as_deref())?;
    let team = &caller.team.id;
    // 0 is no event that was read: from the oldest that is kept.
    let mut read = after.filter(|after| *after > 0);
    if !sse::is_wanted(&headers) {
        let page = app.store.events.page(team, read.unwrap_or_default(), &filter, paging.limit).await?;
        check(read, &page)?;
        let EventPage { events, read_to, last, .. } = page;
        let events = events.into_iter().map(EventBody::from).collect();
        return Ok(Json(EventList { events, next_after: read_to, has_more: read_to < last }).into_response());
    }
    read = sse::last_event_id(&headers, "an event")?.or(read);
    // Nothing of it is read yet; it says whether what follows is there.
    let page = app.store.events.page(team, read.unwrap_or_default(), &filter, 0).await?;
    check(read, &page)?;
    let counted = app.event_streams.enter(team).ok_or_else(|| {
        errors::too_many("Your team follows its events as often as it may at a time; end one, or ask for pages")
    })?;
    let from = read.unwrap_or(if after.is_some() { page.removed } else { page.last });
    Ok(sse::response(stream::events(app, &caller, filter, from, counted)))
}

/// Refuses a reader who has read all up to this number, and would miss something.
fn check(read: Option<u64>, page: &EventPage) -> Result<(), ApiError> {
    match read {
        Some(read) if read > page.last => Err(ApiError::invalid_field(
            "after",
            format!(
                "is {read}, and the last event is {}: it is no event of this team, or of another database",
                page.last
            ),
        )),
        Some(read) if read < page.removed => Err(ApiError::new(
            StatusCode::GONE,
            "events_expired",
            format!(
                "The events from {} to {} are not kept any more; list what there is, and go on with `after={}`",
                read + 1,
                page.removed,
                page.removed
            ),
        )),
        _ => Ok(()),
    }
}

fn number(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_field("after", "must be the sequence of an event, or 0"))
}

fn event_type(text: &str) -> Result<EventType, ApiError> {
    text.parse().map_err(|()| {
        let known: Vec<_> = EventType::ALL.into_iter().map(EventType::as_str).collect();
        ApiError::invalid_field("type", format!("must be one of {}", known.join(", ")))
    })
}
