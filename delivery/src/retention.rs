//! The task that deletes deliveries which have been over for longer than the operator wants to keep them.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use sandpiper_db::StoreError;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::store::retention::AT_ONCE;
use crate::{Source, Webhooks};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(60);
/// Between two transactions, for those of others.
const BREATH: Duration = Duration::from_millis(20);

/// Deletes what is old.
#[derive(Debug)]
pub struct Retention<S: Source> {
    webhooks: Arc<Webhooks<S>>,
}

impl<S: Source> Retention<S> {
    /// A task that has not begun.
    pub fn new(webhooks: Arc<Webhooks<S>>) -> Self {
        Self { webhooks }
    }

    /// Deletes until `stop` changes.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.look() => {}
                _ = stop.changed() => return,
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                _ = stop.changed() => return,
            }
        }
    }

    /// Deletes all that is old now; how many deliveries that were.
    pub async fn round(&self) -> Result<usize, StoreError> {
        let kept = SignedDuration::from_hours(24 * i64::from(self.webhooks.settings.keep_days));
        let Ok(end) = self.webhooks.clock.now().checked_sub(kept) else { return Ok(0) };
        let mut all = 0;
        loop {
            let deleted = self.webhooks.store.delete_ended(end).await?;
            all += deleted;
            if deleted < AT_ONCE {
                return Ok(all);
            }
            sleep(BREATH).await;
        }
    }

    async fn look(&self) {
        match self.round().await {
            Ok(0) => {}
            Ok(deliveries) => tracing::info!(deliveries, "old webhooks deleted"),
            Err(error) => tracing::error!(error = chain(&error), "old webhooks not deleted"),
        }
    }
}
