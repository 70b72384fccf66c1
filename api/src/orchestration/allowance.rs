//! What a team may hold at the agent, and how fast its sandboxes may be: what its plan says.
//!
//! The agent obeys it where it is not asked for here: when a request to the data plane wakes a sandbox, also while this
//! process is away. So it is told with everything that has a sandbox start, and by [`super::sync`] when a plan has changed.
//! What has started of itself counts against the quota here once a round has seen it; until then it is the agent that keeps
//! a create from passing the quota together with it.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::Allowance;
use sandpiper_protocol::error_chain::chain;

use super::sync;
use crate::agent_client::AgentError;
use crate::errors;
use crate::state::App;

use crate::quota::{Amounts, QuotaBody};
use crate::store::teams::Team;

/// That of `team`.
pub fn of(app: &App, team: &Team) -> Allowance {
    let limits = app.offer.of(team.plan);
    Allowance {
        team: team.id.clone(),
        quota: limits.quota.amounts(),
        disk: limits.disk.limits(),
        network: limits.network.limits(),
        disabled: team.disabled.is_some(),
    }
}

/// The response to a request for `count` sandboxes of this size that the agent did not start.
pub async fn refusal(app: &App, team: &Team, error: AgentError, count: u32, cpu: u32, memory_mb: u32) -> ApiError {
    if !error.is_over_quota() {
        return error.into();
    }
    // So that the usage shows what was in the way.
    if let Err(error) = sync::follow_team(app, &team.id).await {
        tracing::warn!(team = %team.id, error = chain(&error), "cannot read from the agent what a team runs; its quota error may show old numbers");
    }
    match app.store.sandboxes.usage(&team.id, app.clock.now()).await {
        Ok(usage) => {
            let asked = Amounts::of_sandboxes(count, cpu, memory_mb);
            errors::quota_exceeded(QuotaBody::new(&app.offer.of(team.plan), usage, asked))
        }
        Err(error) => error.into(),
    }
}
