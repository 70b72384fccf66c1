//! Sandboxes: one file per operation, [`body`] for what they share.

use sandpiper_http::error::ApiError;

use crate::auth::Caller;
use crate::errors;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State};

pub mod body;
pub mod connect;
pub mod create;
pub mod delete;
pub mod files;
pub mod fork;
pub mod list;
pub mod origin;
pub mod pause;
pub mod session;
pub mod show;
pub mod update;
pub mod validate;

/// The response for a sandbox that has failed.
fn failed(row: &SandboxRow) -> ApiError {
    let why = row.error.as_ref().map_or("it ended", |error| error.message.as_str());
    ApiError::invalid_state(format!("{} has failed and cannot be used any more: {why}", row.id))
}

/// Refuses what has failed.
///
/// # Errors
///
/// 409.
pub fn check_not_failed(row: &SandboxRow) -> Result<(), ApiError> {
    if matches!(row.state, State::Failed | State::Destroyed) { Err(failed(row)) } else { Ok(()) }
}

/// Refuses what has not begun to run yet or has failed; what is stopped, or about to be, passes.
///
/// # Errors
///
/// 409.
pub fn check_usable(row: &SandboxRow) -> Result<(), ApiError> {
    if row.state == State::Creating {
        return Err(ApiError::invalid_state(format!("{} is still starting; try again when it is ready", row.id)));
    }
    check_not_failed(row)
}

/// Refuses what does not run, as far as is known here.
///
/// # Errors
///
/// 409.
pub fn check_runs(row: &SandboxRow) -> Result<(), ApiError> {
    check_usable(row)?;
    if matches!(row.state, State::Stopped | State::Stopping) {
        return Err(ApiError::invalid_state(format!("{} is {}; resume it first", row.id, row.state)));
    }
    Ok(())
}

/// The caller's sandbox of this id.
///
/// # Errors
///
/// 404, also on another team's.
pub async fn owned(app: &App, caller: &Caller, id: &str) -> Result<SandboxRow, ApiError> {
    app.store.sandboxes.get(&caller.team.id, id).await?.ok_or_else(|| errors::no_sandbox(id))
}
