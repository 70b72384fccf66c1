//! One pause at the agent, on a task of its own: it takes as long as it takes, and the request waits for a while only.
//!
//! The row says `stopping` while the agent is asked, then what the agent says: `stopped`, or after a failure `ready` as
//! before, for a pause that fails leaves the sandbox running. If this process dies in between, or that it stops cannot be said, the
//! synchronisation follows the agent.
//!
//! A request is refused where the team has as many stopped sandboxes as it may. A deadline asks nobody: its sandbox stops in any case,
//! and what is new is refused until there is room again.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{PauseSandbox, Sandbox};
use sandpiper_protocol::error_chain::chain;
use sandpiper_trace::step;
use tracing::Instrument;

use super::{Progress, commit, sync, take_over, wait};
use crate::agent_client::AgentError;
use crate::errors;
use crate::in_flight::InFlightGuard;
use crate::pending_audit::SuccessAudit;
use crate::plan::PlanLimits;
use crate::state::App;
use crate::store::sandbox_row::SandboxRow;
use crate::store::sandboxes::Uncommitted;

/// Pauses the sandbox of `row` because its team, of these limits, asks for it; one that is stopped already stays so.
///
/// # Errors
///
/// 422 over the quota, and the agent's.
pub async fn at_request(
    app: &App,
    row: &SandboxRow,
    order: PauseSandbox,
    limits: &PlanLimits,
    audit: SuccessAudit,
) -> Result<Progress, ApiError> {
    // Before the row moves, so that the synchronisation never sees it `stopping` without. `None` while another request works
    // on it: then that one's task keeps the row.
    let guard = app.in_flight.enter(&row.id);
    let shown = app.store.sandboxes.begin_stop(&row.id, &limits.quota, app.clock.now());
    let shown = shown.instrument(step("quota and row")).await.map_err(|error| errors::not_stopped(error, limits))?;
    run(app, row, order, guard, OfRequest { shown, audit: Some(audit) }).await
}

/// Pauses the sandbox of `row` whatever the quota, as a deadline does.
///
/// # Errors
///
/// Those of the agent.
pub async fn in_any_case(app: &App, row: &SandboxRow, order: PauseSandbox) -> Result<Progress, ApiError> {
    let guard = app.in_flight.enter(&row.id);
    app.store.sandboxes.mark_stopping(&row.id).await?;
    run(app, row, order, guard, OfRequest::default()).await
}

/// Pauses the sandbox of `row` with its memory, whatever the quota and whatever is open on its volumes; `None` where it does not run
/// yet, or somebody pauses it already.
///
/// # Errors
///
/// Those of the agent.
pub async fn unless_under_way(app: &App, row: &SandboxRow) -> Result<Option<Progress>, ApiError> {
    let Some(guard) = app.in_flight.enter(&row.id) else { return Ok(None) };
    if !app.store.sandboxes.mark_stopping(&row.id).await? {
        return Ok(None);
    }
    let order = PauseSandbox { disk_only: false, force: true };
    run(app, row, order, Some(guard), OfRequest::default()).await.map(Some)
}

/// What a request has to do with its sandbox's row, and brings along.
#[derive(Debug, Default)]
struct OfRequest {
    /// That it stops, which is to be committed.
    shown: Option<Uncommitted>,
    audit: Option<SuccessAudit>,
}

async fn run(
    app: &App,
    row: &SandboxRow,
    order: PauseSandbox,
    guard: Option<InFlightGuard>,
    of_request: OfRequest,
) -> Result<Progress, ApiError> {
    let work = {
        let (app, row) = (app.clone(), row.clone());
        async move { pause(&app, &row, order, guard, of_request).await }
    };
    match wait(app.settings.timing.work_wait, &mut tokio::spawn(work.in_current_span())).await? {
        Some(paused) => paused.map(|()| Progress::Done),
        None => Ok(Progress::UnderWay),
    }
}

async fn pause(
    app: &App,
    row: &SandboxRow,
    order: PauseSandbox,
    guard: Option<InFlightGuard>,
    of_request: OfRequest,
) -> Result<(), ApiError> {
    let OfRequest { shown, audit } = of_request;
    let paused = app.agent.pause(&row.id, &order).instrument(step("agent"));
    let (committed, result): (_, Result<Sandbox, AgentError>) = tokio::join!(commit(shown), paused);
    app.metrics.agent_call("pause", result.is_ok());
    if let Err(error) = committed {
        drop(guard);
        sync::follow(app, &row.team_id, &row.id).await?;
        return Err(error.into());
    }
    match result {
        Ok(report) => Ok(take_over(app, &report, audit.as_ref()).instrument(step("row is stopped")).await?),
        Err(error) => {
            tracing::warn!(sandbox = row.id, error = chain(&error), "sandbox not paused");
            drop(guard);
            sync::follow(app, &row.team_id, &row.id).await?;
            Err(if error.is_not_found() { errors::no_sandbox(&row.id) } else { error.into() })
        }
    }
}
