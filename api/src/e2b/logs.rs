//! `GET /v2/sandboxes/{id}/logs`, `GET /sandboxes/{id}/logs`: what the host and the guest's first process noted.

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::{LogEntry, LogSource};
use serde::Serialize;
use std::collections::BTreeMap;

use crate::auth::{Caller, ReadAccess};
use crate::errors;
use crate::state::App;

/// Entries of a response, unless a request names fewer.
const LIMIT: usize = 1000;

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
        };
        Self { timestamp: entry.time, message: entry.message, level: "info", fields: [("source", source)].into() }
    }
}

/// Which entries.
#[derive(Debug)]
struct Wish {
    /// Milliseconds since 1970, from which on entries are wanted, or until which where the latest come first.
    cursor: Option<i64>,
    limit: usize,
    backward: bool,
    search: String,
    /// None but `info` has any.
    any_level: bool,
}

/// Show a sandbox's log.
pub async fn logs(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<Logs>, ApiError> {
    let mut wish = Wish { cursor: None, limit: LIMIT, backward: false, search: String::new(), any_level: true };
    for (name, value) in pairs {
        match name.as_str() {
            "cursor" => wish.cursor = Some(number(&name, &value)?),
            "limit" => wish.limit = limit(&value)?,
            "direction" => {
                wish.backward = match value.as_str() {
                    "forward" => false,
                    "backward" => true,
                    _ => return Err(ApiError::invalid_field(name, "must be forward or backward")),
                }
            }
            "search" => wish.search = value,
            "level" => wish.any_level = matches!(value.as_str(), "debug" | "info"),
            _ => return Err(unknown(&name)),
        }
    }
    let logs = find(&app, &caller, &id, &wish).await?.into_iter().map(LogBody::from).collect();
    Ok(Json(Logs { logs }))
}

/// Show a sandbox's log in the older form.
pub async fn old(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<OldLogs>, ApiError> {
    let mut wish = Wish { cursor: None, limit: LIMIT, backward: false, search: String::new(), any_level: true };
    for (name, value) in pairs {
        match name.as_str() {
            "start" => wish.cursor = Some(number(&name, &value)?),
            "limit" => wish.limit = limit(&value)?,
            _ => return Err(unknown(&name)),
        }
    }
    let entries = find(&app, &caller, &id, &wish).await?;
    let line = |entry: &LogEntry| Line { timestamp: entry.time, line: entry.message.clone() };
    Ok(Json(OldLogs {
        logs: entries.iter().map(line).collect(),
        log_entries: entries.into_iter().map(LogBody::from).collect(),
    }))
}

async fn find(app: &App, caller: &Caller, id: &str, wish: &Wish) -> Result<Vec<LogEntry>, ApiError> {
    // A log is read most after the end of its sandbox.
    if !app.store.sandboxes.was_owned(&caller.team.id, id).await? {
        return Err(errors::no_sandbox(id));
    }
    let page = match app.agent.logs(id).await {
        Err(error) if error.is_not_found() => return Err(errors::no_sandbox(id)),
        page => page?,
    };
    Ok(wish.select(page.entries))
}

impl Wish {
    fn select(&self, mut entries: Vec<LogEntry>) -> Vec<LogEntry> {
        if self.backward {
            entries.reverse();
        }
        let is_wanted = |entry: &LogEntry| {
            let time = entry.time.as_millisecond();
            let in_time = self.cursor.is_none_or(|cursor| if self.backward { time <= cursor } else { time >= cursor });
            in_time && self.any_level && entry.message.contains(&self.search)
        };
        entries.into_iter().filter(is_wanted).take(self.limit).collect()
    }
}

fn number(name: &str, value: &str) -> Result<i64, ApiError> {
    value.parse().map_err(|_| ApiError::invalid_field(name, "must be milliseconds since 1970"))
}

fn limit(value: &str) -> Result<usize, ApiError> {
    let limit: Result<usize, _> = value.parse();
    Ok(limit.map_err(|_| ApiError::invalid_field("limit", "must be a whole number"))?.min(LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ms: i64, message: &str) -> LogEntry {
        let time = Timestamp::from_millisecond(ms).unwrap();
        LogEntry { time, source: LogSource::Host, message: message.to_owned() }
    }

    #[test]
    fn entries_are_those_from_the_cursor_on_in_the_wanted_direction() {
        let entries = || vec![entry(1, "created"), entry(2, "paused"), entry(3, "resumed")];
        let wish = Wish { cursor: None, limit: 9, backward: false, search: String::new(), any_level: true };
        let times = |wish: &Wish| wish.select(entries()).iter().map(|e| e.time.as_millisecond()).collect::<Vec<_>>();
        assert_eq!(times(&wish), [1, 2, 3]);
        assert_eq!(times(&Wish { cursor: Some(2), ..wish }), [2, 3]);
        let backward = Wish { cursor: Some(2), limit: 9, backward: true, search: String::new(), any_level: true };
        assert_eq!(times(&backward), [2, 1]);
        assert_eq!(times(&Wish { limit: 1, ..backward }), [2]);
        let sought = Wish { cursor: None, limit: 9, backward: false, search: "ed".into(), any_level: true };
        assert_eq!(times(&sought), [1, 2, 3]);
        assert_eq!(times(&Wish { search: "paus".into(), ..sought }), [2]);
    }
}
