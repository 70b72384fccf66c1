//! One start of a sandbox at the agent, on a task of its own.
//!
//! That the team may have the sandbox is known before the agent is asked, and its row is committed meanwhile: neither waits for
//! the other. So the sandbox can be found, or is removed, whatever happens:
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent responds | the row becomes `ready`, once it is there |
//! | the row is not committed | the agent is told to remove what there is; should the row be there all the same, it goes like that of a process that died |
//! | the agent refuses, or the call breaks | the row becomes `failed`, the agent is told to remove what there may be |
//! | this process dies | at the next start the row is not in flight: it becomes what the agent says, or goes |
//! | the agent dies | the call breaks, see above; what it re-adopts and nobody has a row for is removed by [`super::sync`] |

use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{CreateSandbox, SandboxError, Session};
use sandpiper_protocol::error_chain::chain;
use sandpiper_trace::step;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::{allowance, take_over};
use crate::agent_client::AgentError;
use crate::auth::Caller;
use crate::in_flight::InFlightGuard;
use crate::pending_audit::SuccessAudit;
use crate::state::App;
use crate::store::sandboxes::Uncommitted;

/// A start that goes on whether or not it is waited for.
pub struct Starting {
    /// Returns once the row is committed, or is not going to be.
    pub committed: oneshot::Receiver<()>,
    /// How it ends.
    pub session: JoinHandle<Result<Session, ApiError>>,
}

/// Begins the start of a sandbox, for its caller, and commits its row.
pub fn start(
    app: App,
    caller: Caller,
    request: CreateSandbox,
    rows: Uncommitted,
    audit: SuccessAudit,
    guard: InFlightGuard,
) -> Starting {
    let (settled, committed) = oneshot::channel();
    let commit = async move {
        let committed = rows.commit().instrument(step("commit the row")).await;
        // Nobody may be waiting any more.
        let _ = settled.send(());
        committed
    };
    let task = async move { run(&app, &caller, &request, commit, &audit, guard).await };
    Starting { committed, session: tokio::spawn(task.in_current_span()) }
}

async fn run(
    app: &App,
    caller: &Caller,
    request: &CreateSandbox,
    commit: impl Future<Output = Result<(), StoreError>>,
    audit: &SuccessAudit,
    guard: InFlightGuard,
) -> Result<Session, ApiError> {
    let agent = app.agent.on_behalf_of(&caller.key_id);
    let created = agent.create(request).instrument(step("agent"));
    let (committed, result) = tokio::join!(commit, created);
    app.metrics.agent_call("create", result.is_ok());
    if let Err(error) = committed {
        remove_remains(app, request, guard);
        return Err(error.into());
    }
    match result {
        Ok(created) => {
            take_over(app, &created.sandbox, Some(audit)).instrument(step("row is ready")).await?;
            Ok(created.session)
        }
        Err(error) => {
            tracing::warn!(sandbox = request.id.as_str(), error = chain(&error), "sandbox not started");
            app.store.sandboxes.fail(&request.id, &reason(&error), app.clock.now()).await?;
            // A refusal leaves nothing behind. After a broken call there may be something: the response does not wait for
            // its removal, and if that fails too, the synchronisation tries again.
            if error.is_in_doubt() {
                remove_remains(app, request, guard);
            }
            Err(allowance::refusal(app, &caller.team, error, 1, request.cpu, request.memory_mb).await)
        }
    }
}

/// Has the agent remove what there may be of a sandbox, which is in flight until then.
fn remove_remains(app: &App, request: &CreateSandbox, guard: InFlightGuard) {
    let (app, id) = (app.clone(), request.id.clone());
    tokio::spawn(async move {
        let _still_in_flight = guard;
        if let Err(error) = app.agent.delete(&id).await
            && !error.is_not_found()
        {
            tracing::warn!(sandbox = id.as_str(), error = chain(&error), "remains of a start not removed yet");
        }
    });
}

/// What the row says of a failed start.
fn reason(error: &AgentError) -> SandboxError {
    match error {
        AgentError::Refused { body, .. } => SandboxError { code: body.code.clone(), message: body.message.clone() },
        _ => SandboxError {
            code: "host_unavailable".to_owned(),
            message: "The host did not respond while the sandbox was starting; create another one".to_owned(),
        },
    }
}
