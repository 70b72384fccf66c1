//! `GET /v2/sandboxes/{id}/logs`, `GET /sandboxes/{id}/logs`: what the host and the guest's first process noted.

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::{LogEntry, LogQuery, LogSource, MAX_LOG_ENTRIES};
use sandpiper_protocol::guest::OutputStream;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::auth::{Caller, ReadAccess};
use crate::errors;
use crate::state::App;
use crate::v1::logs::page;

/// Entries, in the direction that was asked for.
#[derive(Debug, Serialize)]
pub struct Logs {
    logs: Vec<LogBody>,
}

/// The older form of the same.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OldLogs {
    logs: Vec<Line>,
    log_entries: Vec<LogBody>,
}

#[derive(Debug, Serialize)]
struct Line {
    timestamp: Timestamp,
    line: String,
}

#[derive(Debug, Serialize)]
struct LogBody {
    timestamp: Timestamp,
    message: String,
    /// Of every entry: nothing here is graver than another.
    level: &'static str,
    fields: BTreeMap<&'static str, &'static str>,
}

impl From<LogEntry> for LogBody {
    fn from(entry: LogEntry) -> Self {
        let source = match entry.source {
            LogSource::Host => "host",
            LogSource::Guest => "guest",
            LogSource::Console => "console",
            LogSource::Process => "process",
        };
        let stream = entry.process.map(|process| match process.stream {
            OutputStream::Stdout => ("stream", "stdout"),
            OutputStream::Stderr => ("stream", "stderr"),
        });
        let fields = stream.into_iter().chain([("source", source)]).collect();
        Self { timestamp: entry.time, message: entry.message, level: "info", fields }
    }
}

/// Show a sandbox's log.
pub async fn logs(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<Logs>, ApiError> {
    let (mut query, mut cursor, mut any_level) = (LogQuery::default(), None, true);
    for (name, value) in pairs {
        match name.as_str() {
            "cursor" => cursor = Some(number(&name, &value)?),
            "limit" => query.limit = Some(limit(&value)?),
            "direction" => {
                query.newest_first = match value.as_str() {
                    "forward" => false,
                    "backward" => true,
                    _ => return Err(ApiError::invalid_field(name, "must be forward or backward")),
                }
            }
            "search" => query.search = Some(value),
            // None but `info` has any.
            "level" => any_level = matches!(value.as_str(), "debug" | "info"),
            _ => return Err(unknown(&name)),
        }
    }
    // Where the latest come first, it is the last that is wanted.
    *(if query.newest_first { &mut query.until_ms } else { &mut query.since_ms }) = cursor;
    let entries = find(&app, &caller, &id, &query).await?.into_iter().filter(|_| any_level);
    Ok(Json(Logs { logs: entries.map(LogBody::from).collect() }))
}

/// Show a sandbox's log in the older form.
pub async fn old(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<OldLogs>, ApiError> {
    let mut query = LogQuery::default();
    for (name, value) in pairs {
        match name.as_str() {
            "start" => query.since_ms = Some(number(&name, &value)?),
            "limit" => query.limit = Some(limit(&value)?),
            _ => return Err(unknown(&name)),
        }
    }
    let entries = find(&app, &caller, &id, &query).await?;
    let line = |entry: &LogEntry| Line { timestamp: entry.time, line: entry.message.clone() };
    Ok(Json(OldLogs {
        logs: entries.iter().map(line).collect(),
        log_entries: entries.into_iter().map(LogBody::from).collect(),
    }))
}

async fn find(app: &App, caller: &Caller, id: &str, query: &LogQuery) -> Result<Vec<LogEntry>, ApiError> {
    // A log is read most after the end of its sandbox.
    if !app.store.sandboxes.was_owned(&caller.team.id, id).await? {
        return Err(errors::no_sandbox(id));
    }
    Ok(page(app, id, query).await?.entries)
}

fn number(name: &str, value: &str) -> Result<i64, ApiError> {
    value.parse().map_err(|_| ApiError::invalid_field(name, "must be milliseconds since 1970"))
}

fn limit(value: &str) -> Result<usize, ApiError> {
    let limit: Result<usize, _> = value.parse();
    Ok(limit.map_err(|_| ApiError::invalid_field("limit", "must be a whole number"))?.min(MAX_LOG_ENTRIES))
}
