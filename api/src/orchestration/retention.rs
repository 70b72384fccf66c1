//! Stopped sandboxes of teams whose plan keeps them for some days: announced, and then deleted.
//!
//! What was announced holds: a plan that keeps them for longer moves the day, one that keeps them for less does so with a day's
//! notice at least, and so does one that begins to count. Whoever resumes a sandbox has it for as long as it runs.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::StoreError;
use sandpiper_db::audit::Entry;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::ids::TeamId;

use super::delete;
use super::sync::{is_in_flight, refresh};
use crate::plan::Plan;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::{SandboxRow, State};

/// From the announcement to the deletion, whatever a plan says meanwhile.
const NOTICE: SignedDuration = SignedDuration::from_hours(24);
/// Sandboxes that are deleted in one round: others wait for the next.
const AT_A_TIME: usize = 10;
/// What is in the audit in place of a key.
const ACTOR: &str = "retention";

/// One round over `rows`, all that there are.
///
/// # Errors
///
/// Those of the database. What cannot be deleted now is tried again in the next round.
pub async fn round(app: &App, rows: &[SandboxRow]) -> Result<(), StoreError> {
    let teams = app.store.teams.with_sandboxes().await?;
    let plans: HashMap<TeamId, Plan> = teams.into_iter().map(|team| (team.id, team.plan)).collect();
    let now = app.clock.now();
    let (mut announced, mut over) = (Vec::new(), Vec::new());
    for row in rows {
        let days = plans.get(&row.team_id).map_or(0, |plan| app.settings.plans.of(*plan).stopped_days);
        let expires_at = expiry(row, days, now);
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

/// When a sandbox that a plan keeps for `days` is to be deleted.
fn expiry(row: &SandboxRow, days: u32, now: Timestamp) -> Option<Timestamp> {
    let stopped_at = row.stopped_at.filter(|_| row.state == State::Stopped && days > 0)?;
    let later = |time: Timestamp, by| time.saturating_add(by).unwrap_or(Timestamp::MAX);
    let wanted = later(stopped_at, SignedDuration::from_hours(24 * i64::from(days)));
    match row.expires_at {
        Some(said) if wanted >= said => Some(wanted),
        Some(said) => Some(said.min(wanted.max(later(now, NOTICE)))),
        None => Some(wanted.max(later(now, NOTICE))),
    }
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
    let entry = Entry {
        at: app.clock.now(),
        team_id: row.team_id.to_string(),
        key_id: ACTOR.to_owned(),
        user_id: None,
        request_id: "-".to_owned(),
        action: "DELETE /v1/sandboxes/{id}".to_owned(),
        resource: Some(row.id),
        status: 204,
    };
    app.store.audit.keep(vec![entry]).await;
    Ok(())
}
