//! One checkpoint at the agent, on a task of its own: it takes as long as it takes, and the request waits for a while only.
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent responds | the row becomes `ready` |
//! | the agent refuses, or the call breaks, while the request waits | the row goes; what the agent may make of it yet is removed later |
//! | the same once the response was sent | the row becomes `failed`, and says why |
//! | this process dies while the request waits | at the next start the row is not in flight: it becomes `ready` if the agent has it, or goes |
//! | this process dies once the response was sent | it becomes `ready` when the agent has it, or `failed` |
//!
//! The sandbox says `checkpointing` meanwhile, and afterwards what the agent says of it, which after a failure too is that
//! it runs.

use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{Checkpoint, CreateCheckpoint};
use sandpiper_protocol::error_chain::chain;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::{Progress, sync, wait};
use crate::agent_client::AgentError;
use crate::errors;
use crate::in_flight::InFlightGuard;
use crate::state::App;
use crate::store::checkpoints::{CheckpointRow, State};
use crate::store::sandbox_row::SandboxRow;

/// Work at the agent.
type Taking = JoinHandle<Result<Checkpoint, AgentError>>;

/// Takes the checkpoint of `order`, which is that of `guard` and whose row is in the store, of `sandbox`.
pub async fn run(
    app: &App,
    sandbox: &SandboxRow,
    order: CreateCheckpoint,
    guard: InFlightGuard,
) -> Result<Progress, ApiError> {
    let mut taking: Taking = {
        let (agent, sandbox) = (app.agent.clone(), sandbox.id.as_str().into());
        tokio::spawn(async move { agent.checkpoint(&sandbox, &order).await })
    };
    let Some(result) = wait(app.settings.timing.work_wait, &mut taking).await? else {
        let accepted = app.store.checkpoints.accept(guard.id()).await;
        let (app, sandbox) = (app.clone(), sandbox.clone());
        tokio::spawn(async move { finish(&app, &sandbox, taking, guard).await }.in_current_span());
        accepted?;
        return Ok(Progress::UnderWay);
    };
    let outcome = match take_over(app, sandbox, result).await? {
        Ok(()) => Ok(Progress::Done),
        Err(error) => {
            app.store.checkpoints.delete(guard.id(), app.clock.now()).await?;
            Err(if error.is_not_found() { errors::no_sandbox(&sandbox.id) } else { error.into() })
        }
    };
    sync::follow(app, &sandbox.team_id, &sandbox.id).await?;
    outcome
}

/// Removes a checkpoint.
///
/// # Errors
///
/// 409 on one that is still being taken, and the agent's.
pub async fn remove(app: &App, row: &CheckpointRow) -> Result<(), ApiError> {
    let id = &row.id;
    if row.state == State::Creating {
        return Err(ApiError::invalid_state(format!("{id} is still being taken; delete it when it is ready")));
    }
    // `None` while another request removes it, too: the agent tells the later of the two that it is gone.
    let _in_flight = app.in_flight.enter(id);
    app.store.checkpoints.mark_removal(id).await?;
    match app.agent.delete_checkpoint(id).await {
        Ok(()) => {}
        Err(error) if error.is_not_found() => {
            tracing::debug!(checkpoint = id, error = chain(&error), "deleted, and the agent did not have it");
        }
        Err(error) => return Err(error.into()),
    }
    app.store.checkpoints.delete(id, app.clock.now()).await?;
    Ok(())
}

/// Settles a row whose response has been sent.
async fn finish(app: &App, sandbox: &SandboxRow, taking: Taking, guard: InFlightGuard) {
    // After a panic, which was reported where it happened, the synchronisation settles the row.
    let Ok(result) = taking.await else { return };
    let settle = async {
        if let Err(error) = take_over(app, sandbox, result).await? {
            app.store.checkpoints.fail(guard.id(), &error.explanation(), app.clock.now()).await?;
        }
        sync::follow(app, &sandbox.team_id, &sandbox.id).await?;
        Ok::<_, StoreError>(())
    };
    if let Err(error) = settle.await {
        tracing::error!(checkpoint = guard.id(), error = chain(&error), "a checkpoint's end was not written down");
    }
}

/// Writes down what the agent made; or returns why it made nothing.
async fn take_over(
    app: &App,
    sandbox: &SandboxRow,
    result: Result<Checkpoint, AgentError>,
) -> Result<Result<(), AgentError>, StoreError> {
    app.metrics.agent_call("checkpoint", result.is_ok());
    match result {
        Ok(report) => Ok(Ok(app.store.checkpoints.mirror(&[&report], app.clock.now()).await?)),
        Err(error) => {
            tracing::warn!(sandbox = sandbox.id, error = chain(&error), "checkpoint not taken");
            Ok(Err(error))
        }
    }
}
