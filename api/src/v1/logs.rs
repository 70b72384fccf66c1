//! What the host and the guest noted about a sandbox.

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use sandpiper_protocol::agent::LogSource;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging, keys_by_time};
use crate::auth::ReadAccess;
use crate::errors;
use crate::state::App;

/// Entries, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogPage)]
pub struct LogBody {
    pub entries: Vec<LogEntryBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// One entry.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogEntry)]
pub struct LogEntryBody {
    pub time: Timestamp,
    pub source: Source,
    pub message: String,
}

/// Who noted it.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = LogSource)]
pub enum Source {
    /// The host: created, started, ended and why.
    Host,
    /// The first process of the guest.
    Guest,
    /// The serial port, where the operator turned it on.
    Console,
}

/// Show a sandbox's log
///
/// What the host and the guest's first process noted; the output of your own processes is in the data plane. Stays for a
/// while after the sandbox has ended, then 404.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/logs",
    operation_id = "show_logs",
    tag = "sandboxes",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("limit" = Option<u32>, Query, description = "Entries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = LogBody))
)]
pub async fn logs(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Json<LogBody>, ApiError> {
    // The one thing that outlives a sandbox: a log is read most after its end.
    if !app.store.sandboxes.was_owned(&caller.team.id, &id).await? {
        return Err(errors::no_sandbox(&id));
    }
    let paging = Paging::alone(query)?;
    let page = match app.agent.logs(&id).await {
        Err(error) if error.is_not_found() => return Err(errors::no_sandbox(&id)),
        page => page?,
    };
    let keys: Vec<_> = keys_by_time(page.entries.iter().map(|entry| entry.time.as_microsecond())).collect();
    let entries = page.entries.into_iter().map(|entry| LogEntryBody {
        time: entry.time,
        source: match entry.source {
            LogSource::Host => Source::Host,
            LogSource::Guest => Source::Guest,
            LogSource::Console => Source::Console,
        },
        message: entry.message,
    });
    let (entries, next_token) = paging.cut(&List::of_keys(&json!(["logs", id])), keys.into_iter().zip(entries))?;
    Ok(Json(LogBody { entries, next_token }))
}
