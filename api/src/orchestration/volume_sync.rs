//! Keeps the rows of volumes in step with the agent. Rows are read first, as in [`super::sync`].
//!
//! | row | agent | then |
//! |---|---|---|
//! | being made or removed by a process that lives | anything | left alone |
//! | `creating`, `ready`, `failed` | lists it | `ready`, with what it holds |
//! | any | says that it cannot read it | left alone, until an operator has seen to it |
//! | `creating` | does not list it | goes: the process died before it was made |
//! | `ready` | does not list it | `failed`: it was promised to last, so its loss is shown |
//! | `deleting` | lists it | the agent is told to remove it |
//! | `deleting` | does not list it | goes |
//! | `deleted` | lists it | the agent is told to remove it |
//! | none | lists it | left alone, and told of: only a database that was put back from a copy has no row |
//!
//! Where a tenant waits for a volume, the request itself settles the row; all this is for what came to nothing. So it is done
//! every few rounds only.

use std::collections::{HashMap, HashSet};

use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{Volume, VolumeList};

use super::sync_error::SyncError;
use crate::state::App;
use crate::store::volumes::{State, VolumeRow};

/// How many rounds pass between two looks.
const EVERY: u32 = 10;

/// The memory from one round to the next.
#[derive(Debug, Default)]
pub struct VolumeSync {
    rounds_left: u32,
    /// Volumes without a row that the log has been told of.
    strangers: HashSet<VolumeId>,
}

impl VolumeSync {
    /// Counts rounds that were left out.
    pub fn pass(&mut self, rounds: u32) {
        self.rounds_left = self.rounds_left.saturating_sub(rounds);
    }

    /// One round.
    pub async fn round(&mut self, app: &App) -> Result<(), SyncError> {
        if self.rounds_left > 0 {
            self.rounds_left -= 1;
            return Ok(());
        }
        // In this order: a row whose task has ended by now was made at the agent before it is asked.
        let rows = app.store.volumes.existing().await?;
        let in_flight = app.in_flight.snapshot();
        let others = app.store.processes.others(app.clock.now()).await?;
        let is_others = |row: &VolumeRow| row.process.as_ref().is_some_and(|process| others.contains(process));
        let VolumeList { volumes: listed, unreadable } = app.agent.volumes().await?;
        let listed: HashMap<&VolumeId, &Volume> = listed.iter().map(|one| (&one.id, one)).collect();
        let is_known = |row: &VolumeRow| !unreadable.iter().any(|id| id == row.id.as_str());

        let mut changed = Vec::new();
        for row in rows.iter().filter(|row| !in_flight.contains(row.id.as_str()) && !is_others(row)) {
            match (row.state, listed.get(&row.id)) {
                (State::Deleting, Some(_)) => remove(app, &row.id),
                (_, Some(report)) if row.matches(report) => {}
                (_, Some(report)) => changed.push(*report),
                (_, None) if !is_known(row) => {}
                (State::Creating | State::Deleting, None) => {
                    app.store.volumes.delete(&row.id, app.clock.now()).await?;
                }
                (State::Ready, None) => {
                    if app.store.volumes.lose(&row.id, app.clock.now()).await? {
                        tracing::error!(volume = row.id.as_str(), "the agent has lost a volume");
                    }
                }
                (State::Failed | State::Deleted, None) => {}
            }
        }
        if !changed.is_empty() {
            app.store.volumes.mirror(&changed, app.clock.now()).await?;
        }
        let owned: HashSet<&VolumeId> = rows.iter().map(|row| &row.id).collect();
        for id in listed.into_keys().filter(|id| !owned.contains(id) && !app.in_flight.contains(id)) {
            match app.store.volumes.state(id).await? {
                Some(State::Deleted) => remove(app, id),
                // It got its row between the two readings of this round.
                Some(_) => {}
                None => {
                    if self.strangers.insert(id.clone()) {
                        tracing::warn!(volume = id.as_str(), "the agent has a volume that no team owns; left alone");
                    }
                }
            }
        }
        self.rounds_left = EVERY;
        Ok(())
    }
}

/// Has the agent remove what is to be gone. The row follows in a later round.
fn remove(app: &App, id: &VolumeId) {
    let Some(guard) = app.in_flight.enter(id) else { return };
    let (agent, id) = (app.agent.clone(), id.clone());
    tokio::spawn(async move {
        let _in_flight = guard;
        if let Err(error) = agent.delete_volume(&id).await
            && !error.is_not_found()
        {
            tracing::warn!(volume = id.as_str(), error = chain(&error), "volume not removed; will be tried again");
        }
    });
}
