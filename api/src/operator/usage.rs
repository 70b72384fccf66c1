//! `GET /operator/v1/usage`
//!
//! The lines are sent as they are read. One export holds a connection of the database for as long as its reader takes, so there are
//! few at a time, and a reader that stands still is let go. An export that breaks off ends as a broken response, never as a shorter
//! one.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, TryStreamExt, stream};
use sandpiper_accounts::Operator;
use sandpiper_db::to_ms;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::error_chain::chain;
use tokio::sync::mpsc;

use super::teams::find;
use crate::errors::too_many;
use crate::state::App;
use crate::usage_export::{Format, Kind, Wanted, lines};
use crate::v1::usage::time;

/// Lines that are sent together.
const LINES: usize = 256;
/// Pieces that wait for the reader.
const QUEUE: usize = 4;
/// For the reader to take a piece.
const SEND: Duration = Duration::from_secs(30);

type Piece = Result<Bytes, io::Error>;

/// Export what teams used
///
/// For invoices: a line for each interval in which a sandbox had a machine, as far as it is between `from` and `to`, or for each thing
/// that was stored and hour. Exports of times that follow on each other have nothing twice.
#[utoipa::path(
    get,
    path = "/operator/v1/usage",
    operation_id = "operator_export_usage",
    tag = "operators",
    params(
        ("from" = Timestamp, Query, description = "The first moment"),
        ("to" = Timestamp, Query, description = "The moment after the last"),
        ("kind" = Option<String>, Query, description = "`intervals`, which is the default, or `storage`"),
        ("format" = Option<String>, Query, description = "`jsonl`, which is the default, or `csv`"),
        ("team" = Option<String>, Query, description = "Only of this team: slug or id"),
    ),
    responses((
        status = 200,
        description = "The lines, with the fields that docs/usage.md lists",
        content((String = "application/jsonl"), (String = "text/csv"))
    ))
)]
pub async fn export(_: Operator, State(app): State<App>, query: Pairs) -> Result<Response, ApiError> {
    let wanted = wanted(&app, query).await?;
    let message = "Two exports are under way; ask again when one of them is over";
    let place = app.exports.clone().try_acquire_owned().map_err(|_| too_many(message))?;
    let teams = app.store.teams.all().await?;
    let content_type = match wanted.format {
        Format::Jsonl => "application/jsonl",
        Format::Csv => "text/csv; charset=utf-8",
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let work = async move {
        let _place = place;
        let pieces = lines(&app.store, &wanted, teams).try_chunks(LINES);
        let mut pieces = pieces.map(|piece| match piece {
            Ok(lines) => Ok(Bytes::from(lines.concat())),
            Err(error) => {
                tracing::error!(error = chain(&error.1), "an export of usage broke off");
                Err(io::Error::other("the export broke off"))
            }
        });
        while let Some(piece) = pieces.next().await {
            if !send(&app, &sender, piece).await {
                return;
            }
        }
    };
    tokio::spawn(work);
    let body =
        stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Piece>| Some((receiver.recv().await?, receiver)));
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Hands a piece on; false when nobody takes any more.
async fn send(app: &App, sender: &mpsc::Sender<Piece>, piece: Piece) -> bool {
    let is_last = piece.is_err();
    let sent = tokio::select! {
        sent = tokio::time::timeout(SEND, sender.send(piece)) => sent,
        () = app.ending.cancelled() => {
            let _ = sender.try_send(Err(io::Error::other("the process is ending")));
            return false;
        }
    };
    matches!(sent, Ok(Ok(()))) && !is_last
}

async fn wanted(app: &App, Pairs(pairs): Pairs) -> Result<Wanted, ApiError> {
    let (mut from, mut to, mut kind, mut format, mut team) = (None, None, None, None, None);
    for (name, value) in pairs {
        let field = match name.as_str() {
            "from" => &mut from,
            "to" => &mut to,
            "kind" => &mut kind,
            "format" => &mut format,
            "team" => &mut team,
            _ => return Err(unknown(&name)),
        };
        if field.replace(value).is_some() {
            return Err(ApiError::invalid_field(name, "is given twice"));
        }
    }
    let bound = |name, text: Option<String>| {
        let text = text.ok_or_else(|| ApiError::invalid_field(name, "is missing: say which time is meant"))?;
        Ok::<_, ApiError>(to_ms(time(name, &text)?))
    };
    let time = bound("from", from)?..bound("to", to)?;
    if time.is_empty() {
        return Err(ApiError::invalid_field("from", "must be before `to`"));
    }
    let kind = match kind.as_deref() {
        None | Some("intervals") => Kind::Intervals,
        Some("storage") => Kind::Storage,
        Some(_) => return Err(ApiError::invalid_field("kind", "must be `intervals` or `storage`")),
    };
    let format = match format.as_deref() {
        None | Some("jsonl") => Format::Jsonl,
        Some("csv") => Format::Csv,
        Some(_) => return Err(ApiError::invalid_field("format", "must be `jsonl` or `csv`")),
    };
    let team = match team {
        Some(team) => Some(find(app, &team).await?.id),
        None => None,
    };
    Ok(Wanted { time, kind, format, team })
}
