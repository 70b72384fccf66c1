//! `/sandboxes`: create, list, show, update, delete, sessions, logs; pause, resume, fork.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use http::StatusCode;
use sandpiper_protocol::agent::{
    CreateSandbox, CreatedSandbox, ForkSandbox, ForkedSandboxes, LogPage, LogQuery, PauseSandbox, ResumeSandbox,
    Revision, Sandbox, SandboxList, SandboxState, Session, UpdateSandbox,
};
use sandpiper_protocol::ids::SandboxId;
use serde::Deserialize;

use super::App;
use super::error::{ApiError, Body};
use super::sessions::Holder;
use crate::sandbox::{Command, DeleteCause, Record};
use crate::service::{check_lifecycle, check_timeout};

/// How long a change is waited for.
const CHANGES_WAIT: Duration = Duration::from_secs(25);

/// `POST /sandboxes`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    holder: Holder,
    Body(request): Body<CreateSandbox>,
) -> Result<(StatusCode, Json<CreatedSandbox>), ApiError> {
    app.take_allowance(request.allowance.as_ref()).await?;
    let record = app.sandboxes.create(request).await?;
    Ok((StatusCode::CREATED, Json(app.created(&record, &holder))))
}

/// `GET /sandboxes`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<SandboxList> {
    let sandboxes = app.sandboxes.list().iter().map(|record| app.view(record)).collect();
    Json(SandboxList { sandboxes, unreadable: app.sandboxes.unreadable() })
}

#[derive(Debug, Deserialize)]
pub(super) struct Known {
    after: Option<i64>,
}

/// `GET /sandboxes/changes?after=REVISION`: responds when the list is another than that of the revision, or after a while.
pub(super) async fn changes(State(app): State<Arc<App>>, Query(known): Query<Known>) -> Json<Revision> {
    let context = app.sandboxes.context();
    if let Some(known) = known.after {
        tokio::select! {
            () = context.revision.wait_while(known) => {}
            () = tokio::time::sleep(CHANGES_WAIT) => {}
            () = context.leave.cancelled() => {}
        }
    }
    Json(Revision { revision: context.revision.get() })
}

/// `GET /sandboxes/{id}`
pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<SandboxId>) -> Result<Json<Sandbox>, ApiError> {
    Ok(Json(app.view(&*app.find(&id)?)))
}

/// `PATCH /sandboxes/{id}`
pub(super) async fn update(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    Body(update): Body<UpdateSandbox>,
) -> Result<Json<Sandbox>, ApiError> {
    if let Some(seconds) = update.timeout_seconds {
        check_timeout(seconds).map_err(ApiError::invalid)?;
    }
    if let Some(lifecycle) = update.lifecycle {
        check_lifecycle(lifecycle).map_err(ApiError::invalid)?;
    }
    let record = app.sandboxes.change(&id, |answer| Command::Update(update, answer)).await?;
    Ok(Json(app.view(&record)))
}

/// `DELETE /sandboxes/{id}`
pub(super) async fn delete(State(app): State<Arc<App>>, Path(id): Path<SandboxId>) -> Result<StatusCode, ApiError> {
    app.sandboxes.delete(&id, DeleteCause::Requested).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/pause`
pub(super) async fn pause(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    body: Bytes,
) -> Result<Json<Sandbox>, ApiError> {
    // Earlier API processes send nothing.
    let request = match body.is_empty() {
        true => Ok(None),
        false => serde_json::from_slice::<Option<PauseSandbox>>(&body),
    };
    let request = request.map_err(|error| ApiError::invalid(error.to_string()))?.unwrap_or_default();
    let force = request.force;
    let mut record = app.sandboxes.change(&id, |answer| Command::Pause { force, answer }).await?;
    if request.disk_only {
        record = app.sandboxes.change(&id, Command::DropMemory).await?;
    }
    Ok(Json(app.view(&record)))
}

/// `POST /sandboxes/{id}/resume`
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    holder: Holder,
    Body(request): Body<ResumeSandbox>,
) -> Result<Json<CreatedSandbox>, ApiError> {
    if let Some(seconds) = request.timeout_seconds {
        check_timeout(seconds).map_err(ApiError::invalid)?;
    }
    app.take_allowance(request.allowance.as_ref()).await?;
    let record = app.sandboxes.change(&id, |answer| Command::Resume(request, answer)).await?;
    Ok(Json(app.created(&record, &holder)))
}

/// `POST /sandboxes/{id}/fork`
pub(super) async fn fork(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    holder: Holder,
    Body(request): Body<ForkSandbox>,
) -> Result<(StatusCode, Json<ForkedSandboxes>), ApiError> {
    if let Some(seconds) = request.timeout_seconds {
        check_timeout(seconds).map_err(ApiError::invalid)?;
    }
    app.take_allowance(request.allowance.as_ref()).await?;
    let records = app.sandboxes.fork(&id, request).await?;
    let sandboxes = records.iter().map(|record| app.created(record, &holder)).collect();
    Ok((StatusCode::CREATED, Json(ForkedSandboxes { sandboxes })))
}

/// `POST /sandboxes/{id}/session`
pub(super) async fn session(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    holder: Holder,
) -> Result<Json<Session>, ApiError> {
    let record = app.find(&id)?;
    let is_of_use = matches!(record.state, SandboxState::Ready | SandboxState::Checkpointing) || record.wakes();
    if !is_of_use {
        return Err(ApiError::invalid_state(format!(
            "The sandbox is {:?}; only a ready one, or one that resumes by itself, can be used",
            record.state
        )));
    }
    Ok(Json(app.mint(&record, &holder)))
}

/// `GET /sandboxes/{id}/logs`
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<SandboxId>,
    Query(query): Query<LogQuery>,
) -> Result<Json<LogPage>, ApiError> {
    Ok(Json(app.sandboxes.log(&id, query).await?))
}

impl App {
    pub(super) fn find(&self, id: &SandboxId) -> Result<Arc<Record>, ApiError> {
        self.sandboxes.find(id).ok_or_else(|| self.sandboxes.absence(id).into())
    }

    fn view(&self, record: &Record) -> Sandbox {
        let retained_bytes = self.sandboxes.context().usage.of(&record.id);
        record.to_contract(self.urls.data_plane_url(&record.route_token), retained_bytes)
    }

    fn created(&self, record: &Record, holder: &Holder) -> CreatedSandbox {
        CreatedSandbox { sandbox: self.view(record), session: self.mint(record, holder) }
    }
}
