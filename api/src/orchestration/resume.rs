//! One resume at the agent.
//!
//! A stopped sandbox holds no runtime capacity, so it needs room in the quota like a new one. That there is room is known before the
//! agent is asked; the row's step from `stopped` to `restoring`, which takes it, is committed meanwhile. What follows gives it back:
//!
//! | what happens | what follows |
//! |---|---|
//! | the step is not committed | the row becomes what the agent says, `ready` or `stopped` |
//! | the agent responds | the row becomes `ready` |
//! | the agent refuses, or the call breaks | the row becomes what the agent says now, usually `stopped` |
//! | this process dies | at the next start the row is not in flight: it becomes what the agent says |
//!
//! A network policy that the agent has not got yet goes before all that: see [`network::before_start`].
//!
//! What the agent resumes by itself, at a request to the data plane, it counts by the team's [`allowance`]; so it may refuse
//! what had room here.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{ResumeSandbox, Session};
use sandpiper_protocol::error_chain::chain;
use sandpiper_trace::step;
use tracing::Instrument;

use super::{allowance, commit, network, sync, take_over};
use crate::auth::Caller;
use crate::errors;
use crate::pending_audit::SuccessAudit;
use crate::state::App;
use crate::store::sandbox_row::SandboxRow;

/// How a sandbox is to go on.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// Seconds.
    pub timeout: u64,
    /// It boots, and forgets the memory that it may have; of no meaning to a live one.
    pub disk_only: bool,
}

/// Resumes the sandbox of `row` as wished; of a live one it moves the deadline out that far, never closer.
pub async fn run(
    app: &App,
    caller: &Caller,
    row: &SandboxRow,
    wish: Wish,
    audit: Option<&SuccessAudit>,
) -> Result<Session, ApiError> {
    let limits = &app.offer.of(caller.team.plan);
    network::before_start(app, row).await?;
    // Before the row moves, so that the synchronisation never sees it `restoring` without. `None` while another request
    // works on it: then that one's task keeps the row.
    let guard = app.in_flight.enter(&row.id);
    let reserved = app.store.sandboxes.reserve(&row.id, &limits.quota, app.clock.now());
    let reserved = reserved.instrument(step("quota and row")).await;
    let reserved = reserved.map_err(|error| errors::no_capacity(error, limits, 1, row.cpu, row.memory_mb))?;
    // Of a live sandbox the agent's reports go on counting.
    let guard = guard.filter(|_| reserved.is_some());

    let allowance = Some(allowance::of(app, &caller.team));
    let order = ResumeSandbox { timeout_seconds: Some(wish.timeout), disk_only: wish.disk_only, allowance };
    let agent = app.agent.on_behalf_of(&caller.key_id);
    let resumed = agent.resume(&row.id, &order).instrument(step("agent"));
    let (committed, result) = tokio::join!(commit(reserved), resumed);
    app.metrics.agent_call("resume", result.is_ok());
    if let Err(error) = committed {
        drop(guard);
        sync::follow(app, &row.team_id, &row.id).await?;
        return Err(error.into());
    }
    match result {
        Ok(resumed) => {
            take_over(app, &resumed.sandbox, audit).instrument(step("row is ready")).await?;
            Ok(resumed.session)
        }
        Err(error) => {
            tracing::warn!(sandbox = row.id, error = chain(&error), "sandbox not resumed");
            drop(guard);
            sync::follow(app, &row.team_id, &row.id).await?;
            if error.is_not_found() {
                return Err(errors::no_sandbox(&row.id));
            }
            Err(allowance::refusal(app, &caller.team, error, 1, row.cpu, row.memory_mb).await)
        }
    }
}
