//! The stand-in's network policies. Like the real one, it ignores a version that is older than the one it has.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use sandpiper_policy::{Destination, Platform, Policy, Profiles};
use sandpiper_protocol::agent::{
    DeniedPage, EgressProfiles, ExplainNetwork, Network, NetworkDecision, NetworkExplanation,
};

use super::agent::{Shared, refusal};

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/sandboxes/{id}/network", put(replace))
        .route("/sandboxes/{id}/network/denied", get(denied))
        .route("/egress-profiles", get(profiles))
        .route("/network/explain", post(explain))
}

async fn replace(State(shared): State<Shared>, Path(id): Path<String>, Json(network): Json<Network>) -> Response {
    shared.records().policy_orders.push(network.version);
    if let Some(refusal) = shared.pass().await {
        return refusal;
    }
    let mut records = shared.records();
    if let Some((status, code)) = records.refuse_policies {
        return refusal(status, code);
    }
    let Some(sandbox) = records.sandboxes.get_mut(&id) else { return refusal(404, "not_found") };
    if network.version > sandbox.network_version {
        sandbox.network_version = network.version;
        records.policies.insert(id.clone(), network.policy);
    }
    Json(records.network(&id)).into_response()
}

async fn denied(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let records = shared.records();
    if !records.sandboxes.contains_key(&id) {
        return refusal(404, "not_found");
    }
    let entries = records.denied.clone();
    Json(DeniedPage { total: entries.iter().map(|one| one.count).sum::<u64>() + 1, entries }).into_response()
}

async fn profiles(State(shared): State<Shared>) -> Json<EgressProfiles> {
    Json(EgressProfiles { profiles: shared.records().profiles.clone() })
}

/// By the same compiler as the agent's, on a host without profiles.
async fn explain(Json(ExplainNetwork { policy, destinations }): Json<ExplainNetwork>) -> Response {
    let Ok(policy) = Policy::compile(&policy, &Profiles::default(), &Platform::default()) else {
        return refusal(400, "invalid_request");
    };
    let decide = |text: &String| {
        let decision = policy.decide(&text.parse::<Destination>().unwrap());
        NetworkDecision { is_allowed: decision.is_allowed(), rule: decision.rule.to_string() }
    };
    Json(NetworkExplanation { decisions: destinations.iter().map(decide).collect() }).into_response()
}
