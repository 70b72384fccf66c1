//! One start of a sandbox at the agent, on a task of its own.
//!
//! The row is there before the agent is asked, so the sandbox can be found whatever happens:
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent responds | the row becomes `ready` |
//! | the agent refuses, or the call breaks | the row becomes `failed`, the agent is told to remove what there may be |
//! | this process dies | at the next start the row is not in flight: it becomes what the agent says, or goes |
//! | the agent dies | the call breaks, see above; what it re-adopts and nobody has a row for is removed by [`super::sync`] |

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{CreateSandbox, SandboxError, Session};
use sandpiper_protocol::error_chain::chain;
use sandpiper_trace::step;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::allowance;
use crate::agent_client::AgentError;
use crate::auth::Caller;
use crate::in_flight::InFlightGuard;
use crate::state::App;

/// Begins the start of a sandbox whose row is in the store, for its caller. The task goes on whether or not it
/// is waited for.
pub fn start(
    app: App,
    caller: Caller,
    request: CreateSandbox,
    guard: InFlightGuard,
) -> JoinHandle<Result<Session, ApiError>> {
    tokio::spawn(async move { run(&app, &caller, &request, guard).await }.in_current_span())
}

async fn run(app: &App, caller: &Caller, request: &CreateSandbox, guard: InFlightGuard) -> Result<Session, ApiError> {
    let agent = app.agent.on_behalf_of(&caller.key_id);
    let result = agent.create(request).instrument(step("agent")).await;
    app.metrics.agent_call("create", result.is_ok());
    match result {
        Ok(created) => {
            let now = app.clock.now();
            app.store.sandboxes.mirror(&created.sandbox, now).instrument(step("row is ready")).await?;
            Ok(created.session)
        }
        Err(error) => {
            tracing::warn!(sandbox = request.id.as_str(), error = chain(&error), "sandbox not started");
            app.store.sandboxes.fail(&request.id, &reason(&error), app.clock.now()).await?;
            // A refusal leaves nothing behind. After a broken call there may be something: the response does not wait for
            // its removal, and if that fails too, the synchronisation tries again.
            if error.is_in_doubt() {
                let (app, id) = (app.clone(), request.id.clone());
                tokio::spawn(async move {
                    let _still_in_flight = guard;
                    if let Err(error) = app.agent.delete(&id).await
                        && !error.is_not_found()
                    {
                        tracing::warn!(
                            sandbox = id.as_str(),
                            error = chain(&error),
                            "remains of a start not removed yet"
                        );
                    }
                });
            }
            Err(allowance::refusal(app, &caller.team, error, 1, request.cpu, request.memory_mb).await)
        }
    }
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
