//! One fork at the agent: several starts that succeed or fail together.
//!
//! As with a single start ([`super::create`]), that the team may have them is known before the agent is asked, their rows are
//! committed meanwhile, and belong to this task until it has settled them.

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{ForkSandbox, Sandbox, Session};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::SandboxId;
use sandpiper_trace::step;
use tracing::Instrument;

use super::allowance;
use crate::auth::Caller;
use crate::errors;
use crate::in_flight::InFlightGuard;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::SandboxRow;
use crate::store::sandboxes::Uncommitted;

/// How sandboxes are made of another.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Seconds that each has; without it as many as the other.
    pub timeout: Option<u64>,
    /// Also where files on a volume are open.
    pub force: bool,
}

/// Forks `source` into the sandboxes of `guards`, whose rows are `rows`. Their sessions for `caller`, in the same order.
///
/// # Errors
///
/// The agent's, and those of the database. The rows are gone then, for the tenant never learnt of them.
pub async fn run(
    app: &App,
    caller: &Caller,
    source: &SandboxRow,
    rows: Uncommitted,
    guards: Vec<InFlightGuard>,
    How { timeout, force }: How,
) -> Result<Vec<Session>, ApiError> {
    let ids: Vec<SandboxId> = guards.iter().map(|guard| guard.id().into()).collect();
    let allowance = Some(allowance::of(app, &caller.team));
    let order = ForkSandbox { ids: ids.clone(), timeout_seconds: timeout, allowance, force };
    let agent = app.agent.on_behalf_of(&caller.key_id);
    let forked = agent.fork(&source.id, &order).instrument(step("agent"));
    let (committed, result) = tokio::join!(rows.commit().instrument(step("commit the rows")), forked);
    app.metrics.agent_call("fork", result.is_ok());
    if let Err(error) = committed {
        remove_remains(app, guards);
        return Err(error.into());
    }
    match result {
        Ok(forked) => {
            let (reports, sessions): (Vec<Sandbox>, _) =
                forked.into_iter().map(|one| (one.sandbox, one.session)).unzip();
            app.store.sandboxes.mirror_all(&reports, app.clock.now()).instrument(step("rows are ready")).await?;
            Ok(sessions)
        }
        Err(error) => {
            tracing::warn!(sandbox = source.id, error = chain(&error), "sandbox not forked");
            for id in &ids {
                app.store.sandboxes.destroy(id, DeletionReason::NotStarted, app.clock.now()).await?;
            }
            // After a broken call there may be some.
            if error.is_in_doubt() {
                remove_remains(app, guards);
            }
            if error.is_not_found() {
                return Err(errors::no_sandbox(&source.id));
            }
            let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            Err(allowance::refusal(app, &caller.team, error, count, source.cpu, source.memory_mb).await)
        }
    }
}

/// Has the agent remove what there may be of them. The response does not wait for that; what is left over, or appears later, is an
/// orphan to the synchronisation.
fn remove_remains(app: &App, guards: Vec<InFlightGuard>) {
    let app = app.clone();
    tokio::spawn(async move {
        for guard in guards {
            if let Err(error) = app.agent.delete(guard.id()).await
                && !error.is_not_found()
            {
                tracing::warn!(sandbox = guard.id(), error = chain(&error), "remains of a fork not removed yet");
            }
        }
    });
}
