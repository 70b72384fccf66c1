//! Collects what is billed: when sandboxes had a machine, from the agent's journal, and once an hour what is stored.
//!
//! The agent keeps a record until it is acknowledged, which happens after it is committed here. A process that dies in between
//! is told the same again, and so is every other process: each interval is one row all the same ([`crate::store::intervals`]).

use std::time::Duration;

use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::interval::Acknowledgement;
use tokio::sync::watch;

use super::sync_error::SyncError;
use crate::state::App;
use crate::store::storage::hour_of;

/// From one round to the next.
const PERIOD: Duration = Duration::from_secs(5);

/// By so much what runs was seen later, at least, before that alone is written down: each write is news to everything that looks for
/// some.
const SEEN_EVERY_MS: i64 = 15_000;

/// The task's memory from one round to the next.
#[derive(Debug)]
pub struct Collector {
    app: App,
    /// The hour that storage was last looked at in.
    sampled: Option<i64>,
    /// Until when everything that runs was known to run.
    seen: Option<(String, i64)>,
    /// Whether the last round went well, to log changes only.
    healthy: Option<bool>,
}

impl Collector {
    /// One that has seen nothing yet.
    pub fn new(app: App) -> Self {
        Self { app, sampled: None, seen: None, healthy: None }
    }

    /// Rounds until `stop` changes.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let result = self.round().await;
            self.note(&result);
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                _ = stop.changed() => return,
            }
        }
    }

    /// One round.
    ///
    /// # Errors
    ///
    /// Those of the database and the agent. What is not collected now is there in the next round.
    pub async fn round(&mut self) -> Result<(), SyncError> {
        // An agent that is away changes nothing that is stored.
        let collected = self.collect().await;
        self.sample().await?;
        collected
    }

    async fn collect(&mut self) -> Result<(), SyncError> {
        loop {
            let page = self.app.agent.intervals().await?;
            let seen = page.seen_at_ms.map(|at_ms| (page.journal.clone(), at_ms));
            if page.records.is_empty() && !self.is_much_later(seen.as_ref()) {
                return Ok(());
            }
            self.app.store.intervals.take_over(&page).await?;
            if let Some(last) = page.records.last() {
                let through = last.sequence;
                self.app.agent.acknowledge(&Acknowledgement { journal: page.journal, through }).await?;
            }
            if !page.more {
                self.seen = seen;
                return Ok(());
            }
        }
    }

    /// Whether what runs was seen that much later than was written down last.
    fn is_much_later(&self, seen: Option<&(String, i64)>) -> bool {
        match (seen, &self.seen) {
            (Some((journal, at_ms)), Some((known, last_ms))) => {
                journal != known || at_ms.saturating_sub(*last_ms) >= SEEN_EVERY_MS
            }
            (seen, known) => seen != known.as_ref(),
        }
    }

    async fn sample(&mut self) -> Result<(), SyncError> {
        let now = self.app.clock.now();
        if self.sampled != Some(hour_of(now)) {
            self.sampled = Some(self.app.store.storage.sample(now).await?);
        }
        Ok(())
    }

    /// Logs a change from well to unwell and back, not every round.
    fn note(&mut self, result: &Result<(), SyncError>) {
        let healthy = result.is_ok();
        if self.healthy.replace(healthy) == Some(healthy) {
            return;
        }
        match result {
            Ok(()) => tracing::info!("usage is collected"),
            Err(error) => {
                tracing::warn!(error = chain(error), "usage is not collected; the agent keeps it until it is")
            }
        }
    }
}
