//! Stopped sandboxes.

use std::collections::HashMap;

use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::ids::TeamId;

use super::{AT_A_TIME, expiry, write_down};
use crate::orchestration::delete;
use crate::orchestration::sync::{is_in_flight, refresh};
use crate::plan::Plan;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::{SandboxRow, State};

/// One round over `rows`, all that there are.
pub(super) async fn round(app: &App, rows: &[SandboxRow]) -> Result<(), StoreError> {
    let teams = app.store.teams.with_sandboxes().await?;
    let enabled = teams.into_iter().filter(|team| team.disabled.is_none());
    let plans: HashMap<TeamId, Plan> = enabled.map(|team| (team.id, team.plan)).collect();
    let now = app.clock.now();
    let (mut announced, mut over) = (Vec::new(), Vec::new());
    for row in rows {
        let days = plans.get(&row.team_id).map_or(0, |plan| app.settings.plans.of(*plan).stopped_days);
        let stopped_at = row.stopped_at.filter(|_| row.state == State::Stopped);
        let expires_at = expiry(stopped_at, row.expires_at, days, now);
        if expires_at != row.expires_at {
            announced.push((row.id.as_str(), expires_at));
        } else if expires_at.is_some_and(|end| end <= now) {
            over.push(row);
        }
    }
    app.store.sandboxes.announce(&announced).await?;
    for row in over.into_iter().take(AT_A_TIME) {
        if let Err(error) = expire(app, row).await {
            tracing::warn!(
                sandbox = row.id,
                error = error.message(),
                "not deleted at the end of its days; trying again"
            );
        }
    }
    Ok(())
}

/// Deletes a sandbox, unless somebody has resumed it.
async fn expire(app: &App, row: &SandboxRow) -> Result<(), ApiError> {
    let newest = refresh(app, row.clone()).await?;
    let Some(row) = newest.filter(|newest| newest.state == State::Stopped && newest.stopped_at == row.stopped_at)
    else {
        return Ok(());
    };
    if is_in_flight(app, &row).await? {
        return Ok(());
    }
    delete::remove(app, &row, DeletionReason::Expired).await?;
    tracing::info!(sandbox = row.id, "deleted at the end of the days that its team's plan keeps it");
    write_down(app, &row.team_id, "DELETE /v1/sandboxes/{id}", &row.id).await;
    Ok(())
}
