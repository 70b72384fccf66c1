//! One pause at the agent, on a task of its own: it takes as long as it takes, and the request waits for a while only.
//!
//! The row says `stopping` before the agent is asked, then what the agent says: `stopped`, or after a failure `ready` as
//! before, for a pause that fails leaves the sandbox running. If this process dies in between, the synchronisation follows
//! the agent.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{PauseSandbox, Sandbox};
use sandpiper_protocol::error_chain::chain;
use tracing::Instrument;

use super::{Progress, sync, wait};
use crate::agent_client::AgentError;
use crate::errors;
use crate::state::App;
use crate::store::sandbox_row::SandboxRow;

/// Pauses the sandbox of `row`; one that is stopped already stays so.
pub async fn run(app: &App, row: &SandboxRow, order: PauseSandbox) -> Result<Progress, ApiError> {
    app.store.sandboxes.mark_stopping(&row.id).await?;
    let work = {
        let (app, row) = (app.clone(), row.clone());
        async move { pause(&app, &row, order).await }
    };
    match wait(app.settings.timing.work_wait, &mut tokio::spawn(work.in_current_span())).await? {
        Some(paused) => paused.map(|()| Progress::Done),
        None => Ok(Progress::UnderWay),
    }
}

async fn pause(app: &App, row: &SandboxRow, order: PauseSandbox) -> Result<(), ApiError> {
    let result: Result<Sandbox, AgentError> = app.agent.pause(&row.id, &order).await;
    app.metrics.agent_call("pause", result.is_ok());
    match result {
        Ok(report) => Ok(app.store.sandboxes.mirror(&report, app.clock.now()).await?),
        Err(error) => {
            tracing::warn!(sandbox = row.id, error = chain(&error), "sandbox not paused");
            sync::follow(app, &row.team_id, &row.id).await?;
            Err(if error.is_not_found() { errors::no_sandbox(&row.id) } else { error.into() })
        }
    }
}
