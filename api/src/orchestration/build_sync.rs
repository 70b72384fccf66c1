//! Keeps the rows of versions that are being built in step with the agent. Rows are read first, as in [`super::sync`].
//!
//! | row | agent | then |
//! |---|---|---|
//! | being begun or cancelled by a process that lives | anything | left alone |
//! | to be cancelled | anything | it is told so; one that it does not have is `cancelled` |
//! | under way | has it | the row takes over how far it is |
//! | under way, with its order | does not have it | it is asked again; what it refuses is `failed` |
//! | under way, without its order | does not have it | `failed`: it had it, and has lost it |
//!
//! Nothing is asked while nothing is built. Files that were sent for builds go when nobody has used them for a day.

use std::collections::{HashMap, HashSet};

use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{Build, BuildError};

use super::build;
use super::sync::SyncError;
use crate::agent_client::AgentError;
use crate::state::App;
use crate::store::templates::versions::VersionRow;

/// How many rounds pass between two looks for files that nobody uses any more.
const UPLOADS_EVERY: u32 = 60;

/// The memory from one round to the next.
#[derive(Debug, Default)]
pub struct BuildSync {
    rounds_to_uploads: u32,
}

impl BuildSync {
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
        if rows.is_empty() {
            return Ok(());
        }
        let in_flight = app.in_flight.snapshot();
        let others = app.store.processes.others(app.clock.now()).await?;
        let listed = app.agent.builds().await?;
        let listed: HashMap<&VersionId, &Build> = listed.iter().map(|build| (&build.id, build)).collect();
        let mut changed = Vec::new();
        for row in rows.iter().filter(|row| is_free(row, &in_flight, &others)) {
            match (listed.get(&row.id), &row.sealed_order) {
                _ if row.cancel_asked => cancel(app, row).await?,
                (Some(build), _) if row.matches(build) => {}
                (Some(build), _) => changed.push(*build),
                (None, Some(sealed)) => start(app, row, sealed).await?,
                (None, None) => follow(app, row).await?,
            }
        }
        if !changed.is_empty() {
            app.store.templates.mirror(&changed).await?;
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
async fn start(app: &App, row: &VersionRow, sealed: &str) -> Result<(), SyncError> {
    let Some(_in_flight) = app.in_flight.enter(&row.id) else { return Ok(()) };
    let order = match build::unseal(app, row, sealed) {
        Ok(order) => order,
        Err(error) => return Ok(app.store.templates.fail(&row.id, &error, app.clock.now()).await?),
    };
    match app.agent.start_build(&order).await {
        Ok(build) => Ok(app.store.templates.mirror(&[&build]).await?),
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
        Ok(build) => Ok(app.store.templates.mirror(&[&build]).await?),
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

/// Removes files that nobody has used for a day, and what SDKs have announced and not sent.
async fn remove_unused(app: &App) -> Result<(), SyncError> {
    let now = app.clock.now();
    app.store.templates.forget_announced(now).await?;
    for id in app.store.uploads.expired(now).await? {
        match app.agent.delete_upload(&id).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(upload = id.as_str(), error = chain(&error), "file not removed; will be tried again");
            }
            _ => app.store.uploads.forget(&id).await?,
        }
    }
    Ok(())
}
