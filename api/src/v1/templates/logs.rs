//! `GET /v1/templates/{slug}/versions/{version}/logs`: how a build goes, page by page or as it goes on.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{BuildLogEntry, BuildLogPage, LogLevel, MAX_LOG_ENTRIES};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::body::{BuildErrorBody, StateBody};
use super::reference::{owned, version};
use crate::auth::ReadAccess;
use crate::errors;
use crate::in_flight::PerTeamGuard;
use crate::orchestration::build;
use crate::state::App;
use crate::store::templates::versions::VersionRow;
use crate::v1::page::{List, Paging};
use crate::v1::sse;

/// Between two looks at a log that goes on.
const POLL: Duration = Duration::from_millis(300);

/// Entries, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BuildLogPage)]
pub struct LogBody {
    pub entries: Vec<EntryBody>,
    pub state: StateBody,
    /// For what follows; absent when the build has ended and this is all. The page may be empty while the build goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// One line.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BuildLogEntry)]
pub struct EntryBody {
    /// From 1, without a gap.
    pub number: u64,
    pub time: Timestamp,
    pub level: LevelBody,
    /// The step that it is of, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    pub text: String,
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BuildLogLevel)]
pub enum LevelBody {
    Debug,
    Info,
    Warn,
    Error,
}

/// The last event of a log that is followed.
#[derive(Debug, Serialize)]
struct EndBody {
    state: StateBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<BuildErrorBody>,
}

impl From<BuildLogEntry> for EntryBody {
    fn from(entry: BuildLogEntry) -> Self {
        Self {
            number: entry.number,
            time: entry.time,
            level: match entry.level {
                LogLevel::Debug => LevelBody::Debug,
                LogLevel::Info => LevelBody::Info,
                LogLevel::Warn => LevelBody::Warn,
                LogLevel::Error => LevelBody::Error,
            },
            step: entry.step,
            text: entry.text,
        }
    }
}

/// Show a build's log
///
/// Page by page. With `Accept: text/event-stream` as server-sent events, from the first line on, or from the one that follows
/// `Last-Event-ID`: an event `log` for each line, whose id is its number, and `end` with the state when the build has ended.
#[utoipa::path(
    get,
    path = "/v1/templates/{slug}/versions/{version}/logs",
    operation_id = "show_build_logs",
    tag = "templates",
    params(
        ("slug" = String, Path, description = "Slug or id of the template"),
        ("version" = String, Path, description = "Number or id of the version, or a tag"),
        ("limit" = Option<u32>, Query, description = "Lines per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
        ("Last-Event-ID" = Option<u64>, Header, description = "Of events: the last line that was read"),
    ),
    responses((status = 200, description = "A page, or the events", content(
        (LogBody = "application/json"), (String = "text/event-stream")
    )))
)]
pub async fn logs(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path((slug, reference)): Path<(String, String)>,
    headers: HeaderMap,
    query: Pairs,
) -> Result<Response, ApiError> {
    // What a build prints is for those who made it.
    let template = owned(&app, &caller, &slug).await?;
    let paging = Paging::alone(query)?;
    let row = version(&app, &caller, &template, &reference).await?;
    if sse::is_wanted(&headers) {
        let after = sse::last_event_id(&headers, "a line")?.unwrap_or_default();
        let counted = app.followers.enter(&caller.team.id).ok_or_else(|| {
            errors::too_many("Your team follows all the logs that it may at a time; end one, or ask for pages")
        })?;
        return Ok(sse::response(events(app, row.id, after, counted)));
    }
    let list = List::of_keys(&json!(["build_logs", row.id]));
    let after = match paging.after(&list)? {
        None => 0,
        Some(after) => after.parse().map_err(|_| ApiError::invalid_field("next_token", "is no token of this list"))?,
    };
    let limit = usize::try_from(paging.limit).unwrap_or(usize::MAX);
    let page = page(&app, &row, after, limit).await?;
    // The state of the last page is the last one.
    let row = if page.is_complete { build::refresh(&app, row).await? } else { row };
    let last = page.entries.last().map_or(after, |entry| entry.number);
    Ok(Json(LogBody {
        entries: page.entries.into_iter().map(EntryBody::from).collect(),
        state: row.state.into(),
        next_token: (!page.is_complete).then(|| list.token(last.to_string())),
    })
    .into_response())
}

/// Lines of a build's log that follow `after`: none while the agent does not have the build, or any more.
///
/// # Errors
///
/// Those of the agent.
pub async fn page(app: &App, row: &VersionRow, after: u64, limit: usize) -> Result<BuildLogPage, ApiError> {
    match app.agent.build_logs(&row.id, after, limit).await {
        Err(error) if error.is_not_found() => {
            Ok(BuildLogPage { entries: Vec::new(), is_complete: !row.state.is_under_way() })
        }
        page => Ok(page?),
    }
}

/// Events that are to be sent, and where the log goes on after them; `None` after the last.
type Batch = (Vec<Event>, Option<u64>);

fn events(app: App, id: VersionId, after: u64, counted: PerTeamGuard) -> impl Stream<Item = Event> {
    let batches = stream::unfold(Some((app, id, after, true, counted)), async |state| {
        let (app, id, after, is_first, counted) = state?;
        let batch = async {
            if !is_first {
                tokio::time::sleep(POLL).await;
            }
            batch(&app, &id, after).await
        };
        // Without `end`: the reader goes on with another process, or this one when it is back.
        let (events, next) = app.ending.run_until_cancelled(batch).await?;
        // What fills a page is followed by more.
        let is_full = events.len() >= MAX_LOG_ENTRIES;
        Some((stream::iter(events), next.map(|next| (app, id, next, is_full, counted))))
    });
    batches.flatten()
}

async fn batch(app: &App, id: &VersionId, after: u64) -> Batch {
    let row = match app.store.templates.version_by_id(id).await {
        Ok(Some(row)) => row,
        // It was deleted.
        Ok(None) => return (Vec::new(), None),
        Err(error) => {
            tracing::warn!(version = id.as_str(), error = chain(&error), "log not followed for now");
            return (Vec::new(), Some(after));
        }
    };
    // The agent may be away for a while.
    let Ok(page) = page(app, &row, after, MAX_LOG_ENTRIES).await else { return (Vec::new(), Some(after)) };
    let last = page.entries.last().map_or(after, |entry| entry.number);
    let mut events: Vec<Event> = page.entries.into_iter().map(line).collect();
    if !page.is_complete {
        return (events, Some(last));
    }
    // With the tags of what is ready.
    let row = match build::refresh(app, row).await {
        Ok(row) if !row.state.is_under_way() => row,
        _ => return (events, Some(last)),
    };
    let error = row.error.map(|error| BuildErrorBody { code: error.code, message: error.message, step: error.step });
    events.push(sse::event("end", &EndBody { state: row.state.into(), error }));
    (events, None)
}

fn line(entry: BuildLogEntry) -> Event {
    let number = entry.number;
    sse::event("log", &EntryBody::from(entry)).id(number.to_string())
}
