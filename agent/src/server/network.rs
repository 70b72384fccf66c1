//! `/sandboxes/{id}/network` and `/egress-profiles`: what sandboxes may reach.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use sandpiper_protocol::agent::{DeniedPage, EgressProfiles, Network};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::SandboxId;

use super::App;
use super::error::{ApiError, Body};
use crate::sandbox::Command;

/// `PUT /sandboxes/{id}/network`
pub(super) async fn set(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    Body(network): Body<Network>,
) -> Result<Json<Network>, ApiError> {
    let record = app.sandboxes.change(&id, |answer| Command::SetNetwork(network, answer)).await?;
    Ok(Json(record.network.clone()))
}

/// `GET /sandboxes/{id}/network/denied`
pub(super) async fn denied(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
) -> Result<Json<DeniedPage>, ApiError> {
    Ok(Json(app.sandboxes.change(&id, Command::Denied).await?))
}

/// `GET /egress-profiles`
pub(super) async fn profiles(State(app): State<Arc<App>>) -> Result<Json<EgressProfiles>, ApiError> {
    let profiles = match app.sandboxes.context().network() {
        Some(network) => network.profiles().map_err(|error| ApiError::internal(error_chain::chain(&error)))?,
        None => Vec::new(),
    };
    Ok(Json(EgressProfiles { profiles }))
}
