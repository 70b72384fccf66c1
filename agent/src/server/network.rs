//! `/sandboxes/{id}/network`, `/egress-profiles` and `/network/explain`: what sandboxes may reach.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use sandpiper_protocol::agent::{DeniedPage, EgressProfiles, ExplainNetwork, Network, NetworkExplanation};
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

/// `POST /network/explain`: what a policy would mean on this host.
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Body(request): Body<ExplainNetwork>,
) -> Result<Json<NetworkExplanation>, ApiError> {
    let network = app.sandboxes.context().network().cloned();
    let network = network.ok_or_else(|| ApiError::invalid_state("Sandboxes of this host have no network"))?;
    // Profiles are read from a file, and a policy may have thousands of entries.
    let explained = tokio::task::spawn_blocking(move || network.explain(&request)).await;
    let explained = explained.map_err(|error| ApiError::internal(error.to_string()))?;
    explained.map(Json).map_err(|error| ApiError::invalid(error_chain::chain(&error)))
}
