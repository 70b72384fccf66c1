//! Keeps the rows of versions that are being built in step with the agent. Rows are read first, as in [`super::sync`].
//!
//! | row | agent | then |
//! |---|---|---|
//! | being begun or cancelled by a process that lives | anything | left alone |
//! | to be cancelled | anything | it is told so; one that it does not have is `cancelled` |
//! | under way | has it | the row takes over how far it is |
//! | under way, with its order | does not have it | it is asked again; what it refuses for good is `failed` |
//! | under way, without its order | does not have it | `failed`: it had it, and has lost it |
//!
//! Nothing is asked while nothing is built. Files that were sent for builds go when nobody has used them for a day and
//! no build needs them which is under way; those of which not all is there, when nobody sends them any more.

use std::collections::{HashMap, HashSet};

use axum::http::StatusCode;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::{UploadId, VersionId};
use sandpiper_protocol::template::{Build, BuildError, BuildState};

use super::build;
use super::sync_error::SyncError;
use crate::agent_client::AgentError;
use crate::state::App;
use crate::store::templates::versions::{State, VersionRow};
use crate::store::uploads::Unfinished;

/// How many rounds pass between two looks for files that nobody uses any more.
const UPLOADS_EVERY: u32 = 60;

/// The memory from one round to the next.
#[derive(Debug, Default)]
pub struct BuildSync {
    rounds_to_uploads: u32,
    /// Whether anything was being built.
    is_building: bool,
}

impl BuildSync {
    /// Whether the last round left nothing for the next one to settle.
    pub fn is_settled(&self) -> bool {
        !self.is_building
    }

    /// Counts rounds that were left out.
    pub fn pass(&mut self, rounds: u32) {
        self.rounds_to_uploads = self.rounds_to_uploads.saturating_sub(rounds);
    }

    /// One round.
    ///
    /// # Errors
    ///
    /// Those of the database and the agent.
    pub async fn round(&mut self, app: &App) -> Result<(), SyncError> {
        if self.rounds_to_uploads == 0 {
            remove_unused(app).await?;
            self.rounds_to_uploads = UPLOADS_EVERY;
        }
        self.rounds_to_uploads -= 1;

        // In this order: a row whose task has ended by now was begun at the agent before it is asked.
        let rows = app.store.templates.under_way().await?;
        self.is_building = !rows.is_empty();
        if rows.is_empty() {
            return Ok(());
        }
        let in_flight = app.in_flight.snapshot();
        let others = app.store.processes.others(app.clock.now()).await?;
        let listed = app.agent.builds().await?;
        let listed: HashMap<&VersionId, &Build> = listed.iter().map(|build| (&build.id, build)).collect();
        let free: Vec<&VersionRow> = rows.iter().filter(|row| is_free(row, &in_flight, &others)).collect();
        // First, as whatever follows waits for the agent. What came of a build that is ready is told with it alone.
        let goes_on = |build: &&&Build| build.state != BuildState::Ready;
        let changed: Vec<&Build> = free
            .iter()
            .filter(|row| !row.cancel_asked)
            .filter_map(|row| listed.get(&row.id).filter(goes_on).filter(|build| !row.matches(build)))
            .copied()
            .collect();
        if !changed.is_empty() {
            app.store.templates.mirror(&changed, app.clock.now()).await?;
        }
        for row in free {
            let settled = match (listed.get(&row.id), &row.sealed_order) {
                _ if row.cancel_asked => cancel(app, row).await,
                (Some(build), _) if build.state == BuildState::Ready => follow(app, row).await,
                (Some(_), _) => Ok(()),
                (None, Some(_)) => start(app, &row.id).await,
                (None, None) => follow(app, row).await,
            };
            match settled {
                // What the agent does not do for one build keeps no other from its end.
                Err(SyncError::Agent(error)) => {
                    let error = chain(&error);
                    tracing::warn!(version = row.id.as_str(), error, "build not settled; will be tried again");
                }
                settled => settled?,
            }
        }
        Ok(())
    }
}

/// Whether no process that lives is at work on it.
fn is_free(row: &VersionRow, in_flight: &HashSet<String>, others: &HashSet<String>) -> bool {
    !in_flight.contains(row.id.as_str()) && !row.process.as_ref().is_some_and(|process| others.contains(process))
}

async fn cancel(app: &App, row: &VersionRow) -> Result<(), SyncError> {
    let Some(_in_flight) = app.in_flight.enter(&row.id) else { return Ok(()) };
    Ok(build::settle_cancelled(app, row).await??)
}

/// Asks the agent again to build it.
async fn start(app: &App, id: &VersionId) -> Result<(), SyncError> {
    let Some(_in_flight) = app.in_flight.enter(id) else { return Ok(()) };
    // It may have been begun, cancelled or deleted since the rows were read.
    let row = app.store.templates.version_by_id(id).await?;
    let Some(row) = row.filter(|row| row.state == State::Queued && !row.cancel_asked) else { return Ok(()) };
    let Some(sealed) = &row.sealed_order else { return Ok(()) };
    let order = match build::unseal(app, &row, sealed) {
        Ok(order) => order,
        Err(error) => return Ok(app.store.templates.fail(&row.id, &error, app.clock.now()).await?),
    };
    match app.agent.start_build(&order).await {
        Ok(build) => Ok(app.store.templates.mirror(&[&build], app.clock.now()).await?),
        // For the moment only: it ends, has no room, or is just writing this build down.
        Err(error @ AgentError::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. }) => Err(error.into()),
        Err(AgentError::Refused { body, .. }) => {
            let error = BuildError { code: body.code, message: body.message, step: None };
            Ok(app.store.templates.fail(&row.id, &error, app.clock.now()).await?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Looks for a build that the agent does not list, because it ended long ago, or is lost.
async fn follow(app: &App, row: &VersionRow) -> Result<(), SyncError> {
    match app.agent.show_build(&row.id).await {
        Ok(build) => Ok(app.store.templates.mirror(&[&build], app.clock.now()).await?),
        Err(error) if error.is_not_found() => {
            tracing::error!(version = row.id.as_str(), "the agent has lost a build");
            let error = BuildError {
                code: "host_failed".to_owned(),
                message: "The host has lost this build; build it again".to_owned(),
                step: None,
            };
            Ok(app.store.templates.fail(&row.id, &error, app.clock.now()).await?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes files that nobody has used for a day, those that nobody goes on sending, and what SDKs have announced and not sent.
async fn remove_unused(app: &App) -> Result<(), SyncError> {
    let now = app.clock.now();
    app.store.templates.forget_announced(now).await?;
    for id in app.store.uploads.expired(now).await? {
        remove_upload(app, &id).await?;
    }
    // In this order: a process may have joined meanwhile.
    let unfinished = app.store.uploads.unfinished().await?;
    let others = app.store.processes.others(now).await?;
    for Unfinished { id, .. } in unfinished.into_iter().filter(|one| !others.contains(&one.process)) {
        let Some(_in_flight) = app.in_flight.enter(&id) else { continue };
        // It may have come to its end since.
        if app.store.uploads.is_unfinished(&id).await? {
            remove_upload(app, &id).await?;
        }
    }
    Ok(())
}

async fn remove_upload(app: &App, id: &UploadId) -> Result<(), SyncError> {
    match app.agent.delete_upload(id).await {
        Err(error) if !error.is_not_found() => {
            tracing::warn!(upload = id.as_str(), error = chain(&error), "file not removed; will be tried again");
        }
        _ => app.store.uploads.forget(id).await?,
    }
    Ok(())
}
