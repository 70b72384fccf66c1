//! The task that reads what all sandboxes use.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use sandpiper_images::layers::usage;
use sandpiper_machine::MonitorUsage;
use sandpiper_protocol::agent::SandboxState;
use tokio::time::{MissedTickBehavior, interval};

use super::INTERVAL;
use super::series::Reading;
use crate::sandbox::{Context, Record};

/// Reads what `sandboxes` says is here, again and again, until the agent ends.
pub(crate) async fn sample(context: Arc<Context>, sandboxes: impl Fn() -> Vec<Arc<Record>> + Send) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failed_before = false;
    loop {
        tokio::select! {
            () = context.leave.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let (records, for_all) = (sandboxes(), Arc::clone(&context));
        let failed = tokio::task::spawn_blocking(move || sample_all(&for_all, &records)).await.unwrap_or_default();
        // One line for what may go on for hours, of all sandboxes.
        if let (Some((id, error)), false) = (&failed, failed_before) {
            tracing::warn!(sandbox = id, %error, "cannot keep what sandboxes use; their metrics have a gap");
        }
        failed_before = failed.is_some();
    }
}

/// Reads each that runs; the first that could not be, and why. Blocks.
pub(crate) fn sample_all(context: &Context, records: &[Arc<Record>]) -> Option<(String, io::Error)> {
    let mut first = None;
    for record in records {
        if let Err(error) = sample_one(context, record) {
            first.get_or_insert((record.id.to_string(), error));
        }
    }
    first
}

fn sample_one(context: &Context, record: &Record) -> io::Result<()> {
    let runs = matches!(record.state, SandboxState::Ready | SandboxState::Checkpointing);
    let (true, Some(monitor), Some(series)) = (runs, &record.process, context.samples.find(&record.id)) else {
        return Ok(());
    };
    let Some(used) = MonitorUsage::of(&monitor.identity, &context.boot_id)? else { return Ok(()) };
    // A slot may go while we look, with its machine; then there is no next sample either.
    let traffic = context.network().zip(record.slot).and_then(|(network, slot)| network.traffic(slot).ok());
    let disk_bytes = usage::disk(&context.paths.sandbox(&record.id).state, &record.files);
    series.add(
        Reading { moment: Instant::now(), generation: record.generation, usage: used, traffic, disk_bytes },
        Timestamp::now(),
    )
}
