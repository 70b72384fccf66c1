//! The first start of a version: from its warm snapshot all others go on, with its start command up.

use std::sync::Arc;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::snapshots::Recipe;
use sandpiper_machine::{Unanswered, sanitize};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::template::{LogLevel, StartBuild};
use tokio_util::sync::CancellationToken;

use super::log::Line;
use super::run::{Stop, failed, host_failed};
use super::{Builds, Entry, lock, same};
use crate::service::WarmOrder;
use crate::upkeep::warm::{self, MakeError};

/// Pause before it is tried again where the host had no memory to spare.
const RETRY: Duration = Duration::from_secs(2);

impl Builds {
    /// Makes the version's warm snapshot, on a host that has any.
    pub(super) async fn warm(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        unwanted: &CancellationToken,
    ) -> Result<(), Stop> {
        let context = self.inner.sandboxes.context_owned();
        if !context.config.warm.enabled {
            return Ok(());
        }
        let template = context.templates.find_any(&order.id);
        let template = template.ok_or_else(|| failed("host_failed", "The version is gone; build it again"))?;
        let recipe = Recipe {
            cpu: order.baseline.cpu,
            memory_mb: order.baseline.memory_mb,
            disk_gib: template.version.disk_gib.max(order.sandbox_disk_gib),
            template,
        };
        let key = {
            let (context, recipe) = (Arc::clone(&context), recipe.clone());
            durable::blocking(move || context.warm.key(&recipe)).await
        };
        let key = key.map_err(|error| host_failed("look at its kernel and monitor", &error))?;
        let warm_order = WarmOrder { key, recipe };
        let adopted = {
            let (context, order, WarmOrder { key, recipe }) = (Arc::clone(&context), order.clone(), warm_order.clone());
            durable::blocking(move || same::adopt_warm(&context, &order, &recipe, &key)).await
        };
        match adopted {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(build = order.id.as_str(), %error, "cannot use the warm snapshot of a version of the same image; making one");
            }
        }
        self.say(entry, "starting a first sandbox").await;
        let mut ticket = self.inner.warming.enter(&order.id, &order.team);
        let _turn = tokio::select! {
            () = unwanted.cancelled() => return Err(Stop::Cancelled),
            turn = ticket.turn() => turn,
        };
        let mut is_waiting = false;
        loop {
            match warm::make(&context, &warm_order, order.network.clone(), unwanted).await {
                Ok(true) => return Ok(()),
                Ok(false) if context.warm.find(&warm_order.key).is_some() => return Ok(()),
                Ok(false) => {}
                Err(MakeError::Short) => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        self.say(entry, "waiting for the host to have memory to spare").await;
                    }
                }
                Err(error) => return Err(self.explain(entry, error).await),
            }
            tokio::select! {
                () = unwanted.cancelled() => return Err(Stop::Cancelled),
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Why there is no warm snapshot; what a command printed goes to the log.
    async fn explain(&self, entry: &Arc<Entry>, error: MakeError) -> Stop {
        let reason = error_chain::chain(&error);
        match error {
            MakeError::Ending => Stop::Cancelled,
            MakeError::NotUp { output, .. } => {
                let lines: Vec<_> = output.lines().map(|line| Line::of_agent(LogLevel::Error, line)).collect();
                let log = Arc::clone(&entry.log);
                if let Err(error) = durable::blocking(move || lock(&log).push_last(lines)).await {
                    tracing::warn!(build = entry.id().as_str(), %error, "cannot write to a build's log");
                }
                failed("not_ready", format!("{reason}; look at what it printed, above"))
            }
            MakeError::StartEnded(_) => failed("not_ready", reason),
            MakeError::Unanswered(Unanswered::Terminated(_)) | MakeError::NotReady(_) | MakeError::Unhealthy => {
                failed("not_ready", format!("A sandbox of the version did not come up: {}", sanitize(&reason)))
            }
            _ => host_failed("start a sandbox of the version", &error),
        }
    }
}
