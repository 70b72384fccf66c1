//! One checkpoint at the agent.
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent answers | the row becomes `ready` |
//! | the agent refuses, or the call breaks | the row goes; what the agent may make of it yet is removed later |
//! | this process dies | at the next start the row is not in flight: it becomes `ready` if the agent has it, or goes |
//!
//! The sandbox says `checkpointing` meanwhile, and afterwards what the agent says of it, which after a failure too is that
//! it runs.

use sandpiper_protocol::agent::CreateCheckpoint;

use super::{InFlightGuard, sync};
use crate::app::App;
use crate::error::{ApiError, chain};
use crate::store::sandbox_row::SandboxRow;

/// Takes the checkpoint of `guard`, whose row is in the store, of `sandbox`.
pub async fn run(app: &App, sandbox: &SandboxRow, memory: bool, guard: InFlightGuard) -> Result<(), ApiError> {
    let request = CreateCheckpoint { id: guard.id().to_owned(), memory };
    let result = app.agent.checkpoint(&sandbox.id, &request).await;
    app.metrics.agent_call("checkpoint", result.is_ok());
    let outcome = match result {
        Ok(report) => Ok(app.store.checkpoints.mirror(&[&report]).await?),
        Err(error) => {
            tracing::warn!(sandbox = sandbox.id, error = chain(&error), "checkpoint not taken");
            app.store.checkpoints.delete(guard.id(), app.clock.now()).await?;
            Err(if error.is_not_found() { ApiError::no_sandbox(&sandbox.id) } else { error.into() })
        }
    };
    sync::follow(app, &sandbox.team_id, &sandbox.id).await?;
    outcome
}
