//! One volume made or removed at the agent.
//!
//! The row is there before the agent is asked, so the volume can be found whatever happens:
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent makes it | the row becomes `ready` |
//! | the agent refuses to make it, or the call breaks | the row goes; what the agent may make of it yet is removed later |
//! | this process dies meanwhile | the row becomes `ready` if the agent has it, or goes |
//! | the agent removes it, or has no such volume | the row goes |
//! | the agent refuses to remove it | the row is `ready` as before |
//! | the call to remove it breaks, or this process dies | the row stays `deleting`: [`super::volume_sync`] asks again |

use std::time::Instant;

use sandpiper_http::error::ApiError;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::VolumeId;

use super::Progress;
use crate::agent_client::AgentError;
use crate::auth::Caller;
use crate::errors;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::volumes::{NewVolume, State, VolumeRow};

/// Makes a volume of this name for the caller's team.
///
/// # Errors
///
/// 409 on a name that is taken, 422 over the quota, and the agent's.
pub async fn create(app: &App, caller: &Caller, name: String, claim: Option<&Claim>) -> Result<VolumeRow, ApiError> {
    let limits = &app.offer.of(caller.team.plan);
    let size_gib = app.settings.volume_size_gib;
    let new = NewVolume { id: VolumeId::generate(), name, size_gib, created_at: app.clock.now() };
    // Before the row is there, so that the synchronisation never sees it without.
    let _in_flight = app.in_flight.enter(&new.id).ok_or_else(|| ApiError::internal("volume id made twice"))?;
    let created = app.store.volumes.create(&caller.team.id, &new, &limits.quota, claim).await;
    created.map_err(|error| errors::not_created(error, &new.name, limits, size_gib))?;

    let made = app.agent.create_volume(&new.id).await;
    app.metrics.agent_call("create_volume", made.is_ok());
    match made {
        Ok(report) => app.store.volumes.mirror(&[&report], app.clock.now()).await?,
        Err(error) => {
            tracing::warn!(volume = new.id.as_str(), error = chain(&error), "volume not made");
            app.store.volumes.delete(&new.id, app.clock.now()).await?;
            return Err(error.into());
        }
    }
    find(app, caller, &new.id).await
}

/// The volume that an earlier request with the same idempotency key began; `None` if there is none.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn made_before(app: &App, caller: &Caller, id: &VolumeId) -> Result<Option<VolumeRow>, ApiError> {
    if app.store.volumes.get(&caller.team.id, id).await?.is_none() {
        return Ok(None);
    }
    // What the agent has already it does not make again.
    let report = app.agent.create_volume(id).await?;
    app.store.volumes.mirror(&[&report], app.clock.now()).await?;
    Ok(app.store.volumes.get(&caller.team.id, id).await?)
}

/// Removes the volume of `row`; returns when its bytes are free.
///
/// # Errors
///
/// 409 on one that a sandbox has, or that is still being made, and the agent's.
pub async fn remove(app: &App, row: &VolumeRow) -> Result<(), ApiError> {
    errors::check_detached(row)?;
    if row.state == State::Creating {
        return Err(ApiError::invalid_state(format!("{} is still being made; delete it when it is ready", row.id)));
    }
    // `None` while another request removes it, too: the agent tells the later of the two that it is gone.
    let _in_flight = app.in_flight.enter(&row.id);
    if !app.store.volumes.begin_removal(&row.id).await? {
        // A sandbox got it a moment ago; or another request has deleted it.
        let newest = app.store.volumes.get(&row.team_id, &row.id).await?;
        let row = newest.ok_or_else(|| errors::no_volume(&row.id))?;
        errors::check_detached(&row)?;
        return Err(ApiError::conflict(format!("{} was attached a moment ago; try again", row.id)));
    }
    let removed = app.agent.delete_volume(&row.id).await;
    app.metrics.agent_call("delete_volume", removed.is_ok());
    match removed {
        Ok(()) => {}
        Err(error) if error.is_not_found() => {}
        Err(error) => {
            if matches!(error, AgentError::Refused { .. }) {
                app.store.volumes.end_removal(&row.id).await?;
            }
            return Err(error.into());
        }
    }
    Ok(app.store.volumes.delete(&row.id, app.clock.now()).await?)
}

/// Removes what is at a path of a volume, with all that is in it. The agent does so piece by piece: where it takes long, the
/// rest is left to the next request.
///
/// # Errors
///
/// Those of the agent.
pub async fn remove_entry(app: &App, volume: &VolumeId, path: &str) -> Result<Progress, ApiError> {
    let began = Instant::now();
    let mut has_begun = false;
    loop {
        match app.agent.remove_volume_entry(volume, path).await {
            Ok(true) => return Ok(Progress::Done),
            Ok(false) if began.elapsed() >= app.settings.timing.work_wait => return Ok(Progress::UnderWay),
            Ok(false) => has_begun = true,
            // Another request has removed the rest.
            Err(error) if has_begun && error.is_not_found() => return Ok(Progress::Done),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The caller's volume of this id.
///
/// # Errors
///
/// 404, also on another team's.
pub async fn find(app: &App, caller: &Caller, id: &str) -> Result<VolumeRow, ApiError> {
    app.store.volumes.get(&caller.team.id, id).await?.ok_or_else(|| errors::no_volume(id))
}
