//! One pause at the agent.
//!
//! The row says `stopping` before the agent is asked, then what the agent says: `stopped`, or after a failure `ready` as
//! before, for a pause that fails leaves the sandbox running. If this process dies in between, the synchronisation follows
//! the agent.

use sandpiper_protocol::agent::Sandbox;

use super::{AgentError, sync};
use crate::app::App;
use crate::error::{ApiError, chain};
use crate::store::sandbox_row::SandboxRow;

/// Pauses the sandbox of `row`; one that is stopped already stays so.
pub async fn run(app: &App, row: &SandboxRow) -> Result<(), ApiError> {
    app.store.sandboxes.mark_stopping(&row.id).await?;
    let result: Result<Sandbox, AgentError> = app.agent.pause(&row.id).await;
    app.metrics.agent_call("pause", result.is_ok());
    match result {
        Ok(report) => Ok(app.store.sandboxes.mirror(&report).await?),
        Err(error) => {
            tracing::warn!(sandbox = row.id, error = chain(&error), "sandbox not paused");
            sync::follow(app, &row.team_id, &row.id).await?;
            Err(if error.is_not_found() { ApiError::no_sandbox(&row.id) } else { error.into() })
        }
    }
}
