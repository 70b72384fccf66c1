//! `GET /sandboxes/{id}/usage`: what a sandbox's machine uses, as its guest says.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use sandpiper_ingress::question::ask;
use sandpiper_protocol::agent::{SandboxState, Usage};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::SandboxId;

use super::App;
use super::error::ApiError;

/// How long a guest may take to say it.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<SandboxId>) -> Result<Json<Usage>, ApiError> {
    let record = app.find(&id)?;
    if record.state != SandboxState::Ready {
        return Err(ApiError::invalid_state(format!(
            "The sandbox is {:?}; only a ready one can be asked",
            record.state
        )));
    }
    let vsock = app.sandboxes.context().paths.sandbox(&id).vsock_socket();
    let answer =
        ask(&vsock, "/metrics", TIMEOUT).await.map_err(|error| ApiError::guest_failed(error_chain::chain(&error)))?;
    // What a guest wrote is not repeated.
    let usage = serde_json::from_slice(&answer)
        .map_err(|_| ApiError::guest_failed("The guest's metrics are not in their form".into()))?;
    Ok(Json(usage))
}
