//! Work with the agent, the one who knows what really runs.
//!
//! ```text
//!   handler ───────────▶ agent             asks: change, delete, session, port, logs ([`crate::agent_client`])
//!   [create] ──────────▶ agent             one start, on a task of its own
//!   [pause] [resume] [fork] [checkpoint] ─▶ agent      pause and checkpoint on tasks, however long they take
//!   [allowance] ───────▶ agent             what a team may hold, with each start and when its plan changes
//!   [volume] ──────────▶ agent             a volume made, or removed
//!   [build] ───────────▶ agent             a version of a template built, cancelled, or removed
//!   [network] ─────────▶ agent             a policy, when it changes, and again until it is applied
//!   [collect] ─────────▶ agent             when machines ran, for billing
//!   [disabled] ────────▶ agent             pauses and cancellations, until nothing of a disabled team runs
//!   [sync]   ──every second──▶ agent       copies states into the store; finds what was lost; rests while there is no [news]
//! ```
//!
//! The store is what tenants see, the agent is the truth. They differ when a sandbox stops, wakes or ends by itself
//! (deadline, request to its data plane, crash), when this process dies between the agent's work and its own note of it,
//! and while the agent is away. [`sync`] settles each of these; until it has, reads return what was last known.
//!
//! A sandbox that this process is starting, resuming or removing, and a checkpoint that it is taking or removing, is
//! [`crate::in_flight::InFlight`]: its row belongs to that task, and the synchronisation leaves it alone. So does that of every other process
//! on the same database, for as long as this one is alive: see [`crate::store::processes`]. Each process has a
//! synchronisation of its own; they find the same, and what two of them write is the same.

use std::time::Duration;

use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::Sandbox;
use sandpiper_trace::step;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::pending_audit::SuccessAudit;
use crate::state::App;
use crate::store::sandboxes::Uncommitted;

pub mod allowance;
pub mod build;
pub mod build_sync;
pub mod checkpoint;
pub mod checkpoint_sync;
pub mod collect;
pub mod create;
pub mod delete;
pub mod disabled;
pub mod fork;
pub mod network;
pub mod news;
pub mod pause;
pub mod resume;
pub mod retention;
pub mod sync;
mod sync_error;
pub mod volume;
pub mod volume_sync;

/// What has become of work that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// It goes on by itself.
    UnderWay,
}

/// The row becomes what the agent says, and with it the audit says how the request ended, unless it does already.
async fn take_over(app: &App, sandbox: &Sandbox, audit: Option<&SuccessAudit>) -> Result<(), StoreError> {
    let (now, sandboxes) = (app.clock.now(), &app.store.sandboxes);
    let Some(entry) = audit.and_then(|audit| audit.take(now, sandbox.id.to_string())) else {
        return sandboxes.mirror(sandbox, now).await;
    };
    let taken_over = sandboxes.mirror_audited(sandbox, &entry, now).await;
    if !matches!(taken_over, Ok(true)) {
        app.store.audit.keep(vec![entry]).await;
    }
    taken_over.map(drop)
}

/// Commits a row's step, if it makes one, while the agent is at work.
async fn commit(step_of_row: Option<Uncommitted>) -> Result<(), StoreError> {
    match step_of_row {
        Some(uncommitted) => uncommitted.commit().instrument(step("commit the row")).await,
        None => Ok(()),
    }
}

/// Waits at most `timeout` for work on a task of its own; `None` when that takes longer.
async fn wait<T>(timeout: Duration, work: &mut JoinHandle<T>) -> Result<Option<T>, ApiError> {
    match tokio::time::timeout(timeout, work).await {
        Ok(done) => done.map(Some).map_err(|error| ApiError::internal(format!("work ended early: {error}"))),
        Err(_) => Ok(None),
    }
}
