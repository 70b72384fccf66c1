//! Ending sandboxes.

use sandpiper_http::error::ApiError;

use super::sync::is_in_flight;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::SandboxRow;

/// Ends the sandbox of `row`; returns when nothing of it is left on the host.
///
/// # Errors
///
/// Those of the agent, unless it does not have the sandbox.
pub async fn remove(app: &App, row: &SandboxRow, reason: DeletionReason) -> Result<(), ApiError> {
    let id = &row.id;
    // When it is just being started or removed by another request, that one's task, or after it the synchronisation,
    // removes what the agent still makes of it.
    let is_in_flight = is_in_flight(app, row).await?;
    let _in_flight = app.in_flight.enter(id);
    match app.agent.delete(id).await {
        Ok(()) => {}
        // It ended by itself, or failed and was forgotten, or is not there yet.
        Err(error) if error.is_not_found() => {}
        Err(error) if is_in_flight => {
            tracing::debug!(sandbox = id, %error, "deleted while in flight");
        }
        Err(error) => return Err(error.into()),
    }
    app.store.sandboxes.destroy(id, reason, app.clock.now()).await?;
    Ok(())
}
