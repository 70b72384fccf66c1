//! Keeps the rows of checkpoints in step with the agent. Rows are read first, as in [`super::sync`].
//!
//! | row | agent | then |
//! |---|---|---|
//! | being taken or removed by a process that lives | anything | left alone |
//! | any | lists it | `ready`, with its size |
//! | `creating` | does not list it | goes: the process died before it was taken |
//! | `creating`, its response sent | does not list it | `failed`, unless the sandbox is `checkpointing` still |
//! | `ready` | does not list it | `failed`: it was promised to last, so its loss is shown |
//! | `deleted` | lists it | the agent is told to remove it |
//! | none | lists it, for all of the grace period | the same |
//!
//! A row is `deleted` when the checkpoint was, or when the agent's connection broke before it said that it had taken one.
//! The grace period is there because a checkpoint is meant to last: a database that was put back from a copy must not cost
//! all checkpoints made since, before anybody has looked.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use sandpiper_protocol::agent::{self, SandboxError, SandboxState};
use sandpiper_protocol::error_chain::chain;

use super::sync_error::SyncError;
use crate::state::App;
use crate::store::checkpoints::{CheckpointRow, State};

/// The memory from one round to the next.
#[derive(Debug, Default)]
pub struct CheckpointSync {
    /// Checkpoints without a row, and since when.
    orphans: HashMap<String, Timestamp>,
}

impl CheckpointSync {
    /// Whether the last round left nothing for the next one to settle.
    pub fn is_settled(&self) -> bool {
        self.orphans.is_empty()
    }

    /// One round; `sandboxes` are the agent's, listed before.
    pub async fn round(&mut self, app: &App, sandboxes: &HashMap<&str, &agent::Sandbox>) -> Result<(), SyncError> {
        // In this order: a row whose task has ended by now was made at the agent before it is asked.
        let rows = app.store.checkpoints.existing().await?;
        let in_flight = app.in_flight.snapshot();
        let others = app.store.processes.others(app.clock.now()).await?;
        let is_others = |row: &CheckpointRow| row.process.as_ref().is_some_and(|process| others.contains(process));
        let listed = app.agent.checkpoints().await?;
        let listed: HashMap<&str, &agent::Checkpoint> = listed.iter().map(|one| (one.id.as_str(), one)).collect();

        let mut changed = Vec::new();
        for row in rows.iter().filter(|row| !in_flight.contains(&row.id) && !is_others(row)) {
            match (row.state, listed.get(row.id.as_str())) {
                (_, Some(report)) if row.matches(report) => {}
                (_, Some(report)) => changed.push(*report),
                (State::Creating, None) if row.accepted => {
                    let sandbox = sandboxes.get(row.sandbox_id.as_str());
                    if sandbox.is_none_or(|sandbox| sandbox.state != SandboxState::Checkpointing) {
                        app.store.checkpoints.fail(&row.id, &interrupted(), app.clock.now()).await?;
                    }
                }
                (State::Creating, None) => app.store.checkpoints.delete(&row.id, app.clock.now()).await?,
                (State::Ready, None) => {
                    if app.store.checkpoints.lose(&row.id, app.clock.now()).await? {
                        tracing::error!(checkpoint = row.id, "the agent has lost a checkpoint");
                    }
                }
                (State::Failed | State::Deleted, None) => {}
            }
        }
        if !changed.is_empty() {
            app.store.checkpoints.mirror(&changed, app.clock.now()).await?;
        }
        let owned: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        let orphans = listed.keys().filter(|id| !owned.contains(**id) && !app.in_flight.contains(id));
        self.remove_orphans(app, orphans.map(|id| (*id).to_owned()).collect()).await
    }

    /// Checkpoints of the agent that nobody has.
    async fn remove_orphans(&mut self, app: &App, orphans: HashSet<String>) -> Result<(), SyncError> {
        let now = app.clock.now();
        self.orphans.retain(|id, _| orphans.contains(id));
        for id in orphans {
            let since = *self.orphans.entry(id.clone()).or_insert(now);
            let is_removed = match app.store.checkpoints.state(&id).await? {
                Some(State::Deleted) => true,
                None => now.duration_since(since).unsigned_abs() >= app.settings.timing.orphan_grace,
                // It got its row between the two readings of this round.
                Some(_) => false,
            };
            if !is_removed {
                continue;
            }
            if let Some(guard) = app.in_flight.enter(&id) {
                tracing::warn!(checkpoint = id, "removing a checkpoint that belongs to nobody");
                let agent = app.agent.clone();
                tokio::spawn(async move {
                    if let Err(error) = agent.delete_checkpoint(guard.id()).await
                        && !error.is_not_found()
                    {
                        tracing::warn!(
                            checkpoint = guard.id(),
                            error = chain(&error),
                            "orphan not removed; will be tried again"
                        );
                    }
                });
            }
        }
        Ok(())
    }
}

/// Why a checkpoint is not there whose response was sent by a process that is gone.
fn interrupted() -> SandboxError {
    let message = "It was still being taken when the API process ended, and the host does not have it; take it again";
    SandboxError { code: "interrupted".to_owned(), message: message.to_owned() }
}
