//! `POST /v2/sandboxes/{id}/connect`, `POST /sandboxes/{id}/connect`, and `POST /sandboxes/{id}/resume`

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::{Lifecycle, OnTimeout, UpdateSandbox};
use serde::Deserialize;

use super::{create, current};
use crate::auth::{Caller, WriteAccess};
use crate::orchestration;
use crate::orchestration::resume::Wish;
use crate::pending_audit::{PendingAudit, SuccessAudit};
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State as SandboxState};
use crate::v1::sandboxes::validate::{DEFAULT_TIMEOUT, Problems};
use crate::v1::sandboxes::{check_usable, owned};

/// Seconds, when a resume names none.
const RESUME_TIMEOUT: u64 = 15;

/// How long the sandbox should live on.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connect {
    /// Seconds. The deadline is never moved closer.
    timeout: Option<u64>,
    /// False: the sandbox boots from its disk, and forgets its memory.
    memory: Option<bool>,
}

/// How the sandbox should go on.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resume {
    timeout: Option<u64>,
    auto_pause: Option<bool>,
    memory: Option<bool>,
}

/// Connect to a sandbox: 200 if it runs, 201 if it was paused and does now.
pub async fn connect(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(Connect { timeout, memory }): OptionalJson<Connect>,
) -> Result<Response, ApiError> {
    let row = current(&app, &caller, &id).await?;
    let status = if is_paused(&row) { StatusCode::CREATED } else { StatusCode::OK };
    let wish = wish(timeout.unwrap_or(DEFAULT_TIMEOUT), memory);
    let row = go_on(&app, &caller, row, wish, Some(&audit.of_success(status))).await?;
    create::response(&app, row, status).await
}

/// Resume a paused sandbox.
pub async fn resume(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Extension(audit): Extension<PendingAudit>,
    Path(id): Path<String>,
    OptionalJson(Resume { timeout, auto_pause, memory }): OptionalJson<Resume>,
) -> Result<Response, ApiError> {
    let row = current(&app, &caller, &id).await?;
    if !is_paused(&row) {
        return Err(ApiError::invalid_state(format!("The sandbox {id} runs already")));
    }
    // With a lifecycle to be changed there is more that can fail.
    let audit = auto_pause.is_none().then(|| audit.of_success(StatusCode::CREATED));
    let row = go_on(&app, &caller, row, wish(timeout.unwrap_or(RESUME_TIMEOUT), memory), audit.as_ref()).await?;
    if let Some(pauses) = auto_pause {
        let on_timeout = if pauses { OnTimeout::Pause } else { OnTimeout::Kill };
        let Lifecycle { auto_resume, pause_memory, .. } = row.lifecycle;
        let (auto_resume, pause_memory) = (auto_resume && pauses, pause_memory || !pauses);
        let lifecycle = Some(Lifecycle { on_timeout, auto_resume, pause_memory });
        let report = app.agent.update(&id, &UpdateSandbox { lifecycle, ..UpdateSandbox::default() }).await?;
        app.store.sandboxes.mirror(&report, app.clock.now()).await?;
    }
    create::response(&app, row, StatusCode::CREATED).await
}

fn is_paused(row: &SandboxRow) -> bool {
    matches!(row.state, SandboxState::Stopped | SandboxState::Stopping)
}

fn wish(timeout: u64, memory: Option<bool>) -> Wish {
    Wish { timeout, disk_only: memory == Some(false) }
}

async fn go_on(
    app: &App,
    caller: &Caller,
    row: SandboxRow,
    wish: Wish,
    audit: Option<&SuccessAudit>,
) -> Result<SandboxRow, ApiError> {
    let mut problems = Problems::default();
    problems.timeout(wish.timeout, &app.offer.of(caller.team.plan));
    problems.into_result()?;
    check_usable(&row)?;
    orchestration::resume::run(app, caller, &row, wish, audit).await?;
    owned(app, caller, &row.id).await
}
