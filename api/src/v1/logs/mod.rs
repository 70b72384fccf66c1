//! `GET /v1/sandboxes/{id}/logs`: what the host and the guest noted about a sandbox, page by page or as it comes.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::{LogEntry, LogPage, LogProcess, LogQuery, LogSource};
use sandpiper_protocol::guest::OutputStream;
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging};
use super::sse;
use crate::auth::ReadAccess;
use crate::errors;
use crate::state::App;

mod stream;

/// Entries, in the order that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogPage)]
pub struct LogBody {
    pub entries: Vec<LogEntryBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
    /// What to send as `cursor` for what follows the newest of these entries, now or later.
    pub next_cursor: u64,
    /// Whether entries that follow `cursor` may be gone: the host keeps so much of a log, and the oldest entries give way.
    pub truncated: bool,
}

/// One entry.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogEntry)]
pub struct LogEntryBody {
    /// Greater than that of every entry before, and never given twice in one log. It may rise by more than one.
    pub sequence: u64,
    pub time: Timestamp,
    pub source: Source,
    pub message: String,
    /// Of the source `process`: whose line it is. An entry of this source without it is the host's, and says how many lines were left
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessBody>,
}

/// The process that wrote a line.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogProcess)]
pub struct ProcessBody {
    /// Of the process that was started over the data plane; its children's lines are its own.
    pub pid: u32,
    /// The file name of its program.
    pub command: String,
    /// As it was started with; `start` of the template's start command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    pub stream: Stream,
    /// Whether the line was longer, and this is its beginning.
    pub cut: bool,
}

/// Where a process wrote a line.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OutputStream)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl From<LogProcess> for ProcessBody {
    fn from(process: LogProcess) -> Self {
        let LogProcess { pid, command, tag, stream, cut } = process;
        let stream = match stream {
            OutputStream::Stdout => Stream::Stdout,
            OutputStream::Stderr => Stream::Stderr,
        };
        Self { pid, command, tag, stream, cut }
    }
}

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = LogSource)]
pub enum Source {
    /// The host: created, started, ended and why.
    Host,
    /// The first process of the guest.
    Guest,
    /// The serial port, where the operator turned it on.
    Console,
    /// What processes wrote, where the sandbox's `capture_output` is on.
    Process,
}

impl From<LogEntry> for LogEntryBody {
    fn from(entry: LogEntry) -> Self {
        let source = match entry.source {
            LogSource::Host => Source::Host,
            LogSource::Guest => Source::Guest,
            LogSource::Console => Source::Console,
            LogSource::Process => Source::Process,
        };
        let process = entry.process.map(ProcessBody::from);
        Self { sequence: entry.sequence, time: entry.time, source, message: entry.message, process }
    }
}

impl From<Source> for LogSource {
    fn from(source: Source) -> Self {
        match source {
            Source::Host => LogSource::Host,
            Source::Guest => LogSource::Guest,
            Source::Console => LogSource::Console,
            Source::Process => LogSource::Process,
        }
    }
}

/// What a request asks for.
#[derive(Debug, Default)]
struct Wish {
    paging: Paging,
    cursor: Option<u64>,
    newest_first: bool,
    source: Option<Source>,
    follow: bool,
}

/// Show a sandbox's log
///
/// What the host and the guest's first process noted, and, where the sandbox's `capture_output` is on, what processes wrote. Page by
/// page, oldest first or newest first, all of it or of one `source`. With `follow=true`, or `Accept: text/event-stream`, as server-sent events that go on with what is noted: an
/// event `log` for each entry, whose id is its `sequence`, from the oldest or from the one that follows `Last-Event-ID`, or else
/// `cursor`; `truncated` where entries between may be gone; `end` when the sandbox has ended. A stopped sandbox keeps its log; the last
/// entries stay for a while after a sandbox has ended, then 404.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/logs",
    operation_id = "show_logs",
    tag = "sandboxes",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("cursor" = Option<u64>, Query, description = "Only what follows the entry with this `sequence`; with `order=desc`, what is before it"),
        ("order" = Option<String>, Query, description = "`asc`, oldest first, by default; or `desc`, newest first"),
        ("source" = Option<Source>, Query, description = "Only entries of this source"),
        ("follow" = Option<bool>, Query, description = "Server-sent events that go on with what is noted"),
        ("limit" = Option<u32>, Query, description = "Entries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
        ("Last-Event-ID" = Option<u64>, Header, description = "Of events: the last entry that was read"),
    ),
    responses((status = 200, description = "A page, or the events", content(
        (LogBody = "application/json"), (String = "text/event-stream")
    )))
)]
pub async fn logs(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    query: Pairs,
) -> Result<Response, ApiError> {
    // The one thing that outlives a sandbox: a log is read most after its end.
    if !app.store.sandboxes.was_owned(&caller.team.id, &id).await? {
        return Err(errors::no_sandbox(&id));
    }
    let wish = Wish::read(query)?;
    if wish.follow || sse::is_wanted(&headers) {
        if wish.newest_first {
            return Err(ApiError::invalid_field("order", "must be `asc` where the log is followed"));
        }
        let after = sse::last_event_id(&headers, "an entry")?.or(wish.cursor).unwrap_or_default();
        // So that a log which is not there is refused, and not followed.
        page(&app, &id, &LogQuery { after: Some(after), limit: Some(0), ..LogQuery::default() }).await?;
        let counted = app.followers.enter(&caller.team.id).ok_or_else(|| {
            errors::too_many("Your team follows all the logs that it may at a time; end one, or ask for pages")
        })?;
        let source = wish.source.map(LogSource::from);
        return Ok(sse::response(stream::entries(
            app,
            &caller,
            stream::Wanted { sandbox: id, source, after },
            counted,
        )));
    }
    let list = List::of_keys(&json!(["logs", id, wish.newest_first, wish.source]));
    let position = match wish.paging.after(&list)? {
        None => wish.cursor,
        Some(token) => {
            let number = token.parse();
            Some(number.map_err(|_| ApiError::invalid_field("next_token", "is no token of this list"))?)
        }
    };
    let (after, before) = if wish.newest_first { (None, position) } else { (position, None) };
    let limit = usize::try_from(wish.paging.limit).ok();
    let source = wish.source.map(LogSource::from);
    let query = LogQuery { after, before, newest_first: wish.newest_first, source, limit, ..LogQuery::default() };
    let page = page(&app, &id, &query).await?;
    let last = page.entries.last().map(|entry| entry.sequence);
    let newest = page.entries.iter().map(|entry| entry.sequence).max();
    let body = LogBody {
        next_token: last.filter(|_| page.has_more).map(|last| list.token(last.to_string())),
        next_cursor: newest.or(position).unwrap_or(page.last),
        truncated: page.is_truncated && !wish.newest_first,
        entries: page.entries.into_iter().map(LogEntryBody::from).collect(),
    };
    Ok(Json(body).into_response())
}

/// Entries of the log of a sandbox that is or was the caller's.
///
/// # Errors
///
/// 404 where the host does not have the log any more, and those of the agent.
pub async fn page(app: &App, id: &str, query: &LogQuery) -> Result<LogPage, ApiError> {
    match app.agent.logs(id, query).await {
        Err(error) if error.is_not_found() => Err(errors::no_sandbox(id)),
        page => Ok(page?),
    }
}

impl Wish {
    fn read(Pairs(pairs): Pairs) -> Result<Self, ApiError> {
        let mut wish = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "cursor" => {
                    let cursor = value.parse();
                    wish.cursor = Some(
                        cursor.map_err(|_| ApiError::invalid_field(name, "must be the sequence of an entry, or 0"))?,
                    );
                }
                "order" => {
                    wish.newest_first = match value.as_str() {
                        "asc" => false,
                        "desc" => true,
                        _ => return Err(ApiError::invalid_field(name, "must be `asc` or `desc`")),
                    }
                }
                "source" => {
                    let source = Source::deserialize(value.as_str().into_deserializer());
                    let source = source.map_err(|_: serde::de::value::Error| {
                        ApiError::invalid_field(name, "must be `host`, `guest`, `console` or `process`")
                    });
                    wish.source = Some(source?);
                }
                "follow" => {
                    let follow = value.parse();
                    wish.follow = follow.map_err(|_| ApiError::invalid_field(name, "must be `true` or `false`"))?;
                }
                "limit" | "next_token" if wish.paging.take(&name, &value)? => {}
                _ => return Err(unknown(&name)),
            }
        }
        Ok(wish)
    }
}
