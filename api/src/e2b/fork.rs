//! `POST /sandboxes/{id}/fork`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use serde::{Deserialize, Serialize};

use super::body::{Names, SandboxBody, Tokens};
use super::current;
use crate::auth::{Caller, WriteAccess};
use crate::mutation::SessionOf;
use crate::orchestration::fork::How;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::sandbox_row::{SandboxRow, State as SandboxState};
use crate::v1::sandboxes::create::made_before;
use crate::v1::sandboxes::fork::{Copies, MAX_COUNT, make};
use crate::v1::sandboxes::validate::Problems;

/// Seconds, when a request names none.
const TIMEOUT: u64 = 15;

/// How many, for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    timeout: Option<u64>,
    count: Option<u32>,
}

/// One of the new sandboxes. They come all or none, so there is no error in its place.
#[derive(Debug, Serialize)]
pub struct Forked {
    pub sandbox: SandboxBody,
}

/// Start sandboxes that go on from where this one is.
pub async fn fork(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Path(id): Path<String>,
    OptionalJson(Fork { timeout, count }): OptionalJson<Fork>,
) -> Result<Response, ApiError> {
    let source = current(&app, &caller, &id).await?;
    let (timeout, count) = (timeout.unwrap_or(TIMEOUT), count.unwrap_or(1));
    let mut problems = Problems::default();
    problems.timeout(timeout, &app.offer.of(caller.team.plan));
    if !(1..=MAX_COUNT).contains(&count) {
        problems.add("count", format!("must be from 1 to {MAX_COUNT}"));
    }
    problems.into_result()?;
    if matches!(source.state, SandboxState::Stopped | SandboxState::Stopping) {
        return Err(ApiError::invalid_state(format!("The sandbox {id} is paused; connect to it first")));
    }
    let claim = claim.map(|Extension(claim)| claim);
    let made = make(
        &app,
        &caller,
        &source,
        Copies { count, how: How { timeout: Some(timeout), force: false } },
        claim.as_ref(),
    )
    .await?;
    let rows: Vec<SandboxRow> = made.into_iter().map(|(row, _)| row).collect();
    response(&app, &id, &rows).await
}

/// The response for sandboxes that an earlier request with the same idempotency key made; `None` unless all of them are
/// there.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn response_for_existing(
    app: &App,
    caller: &Caller,
    source: &str,
    ids: &[&str],
) -> Result<Option<Response>, ApiError> {
    let mut rows = Vec::new();
    for id in ids {
        let Some(row) = made_before(app, caller, id).await? else { return Ok(None) };
        rows.push(row);
    }
    response(app, source, &rows).await.map(Some)
}

async fn response(app: &App, source: &str, rows: &[SandboxRow]) -> Result<Response, ApiError> {
    let mut forks = Vec::new();
    for row in rows {
        let tokens = Tokens::new(row, app.agent.tokens(&row.id).await?);
        forks.push(Forked { sandbox: SandboxBody { names: Names::from(row), tokens } });
    }
    let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
    let acted = std::iter::once(source.to_owned()).chain(ids.iter().cloned()).collect();
    Ok((StatusCode::CREATED, Extension(Acted(acted)), Extension(SessionOf(ids)), Json(forks)).into_response())
}
