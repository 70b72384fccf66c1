//! Checkpoints: sandboxes as they were, under a name, from which new ones are started.

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::{NoParameters, Pairs};
use sandpiper_protocol::agent::CreateCheckpoint;
use sandpiper_protocol::id;
use sandpiper_protocol::ids::{CheckpointId, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging};
use super::sandboxes::body::SandboxErrorBody;
use super::sandboxes::{check_usable, owned};
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::errors;
use crate::orchestration::{self, Progress};
use crate::state::App;
use crate::store::checkpoints::{CheckpointRow, Naming, NewCheckpoint, State as CheckpointState};
use crate::store::idempotency::Claim;
use crate::store::sandbox_row::SandboxRow;

const MAX_NAME: usize = 128;

/// A checkpoint.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub struct CheckpointBody {
    /// What a create request names as `snapshot_id`.
    #[schema(example = "ckp06f3kq8z2m1c9w0v5t7b4a")]
    pub id: String,
    /// Of one checkpoint of the team only.
    pub name: String,
    /// Slug of the team that owns it.
    pub team: String,
    /// The sandbox that it was taken of, which may be gone.
    pub sandbox: String,
    /// Slug of the template that the sandbox had started from.
    pub template: String,
    /// Id of that template's version.
    pub template_version: String,
    /// Whether a sandbox made from it goes on with the processes, or boots with the disk alone.
    pub memory: bool,
    pub cpu: u32,
    /// MiB.
    pub memory_mb: u32,
    /// Size of the root disk.
    pub disk_gib: u32,
    pub state: StateBody,
    /// Bytes of disk that it holds; what it shares with others counts in part.
    pub size: u64,
    /// Why it could not be taken, where that came out after the response had been sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SandboxErrorBody>,
    pub created_at: Timestamp,
    /// When it is to be deleted, by the days that the team's plan keeps one that nobody uses; null: it is kept.
    pub expires_at: Option<Timestamp>,
}

/// The state of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CheckpointState)]
pub enum StateBody {
    /// It is being taken.
    Creating,
    Ready,
    /// It could not be taken, as `error` says, or the host has lost it: nothing can be started from it, and it keeps its
    /// name until it is deleted.
    Failed,
}

impl CheckpointBody {
    fn new(caller: &Caller, row: CheckpointRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            team: caller.team.slug.clone(),
            sandbox: row.sandbox_id,
            template: row.template,
            template_version: row.template_version,
            memory: row.memory,
            cpu: row.cpu,
            memory_mb: row.memory_mb,
            disk_gib: row.disk_gib,
            state: match row.state {
                CheckpointState::Creating => StateBody::Creating,
                CheckpointState::Ready => StateBody::Ready,
                // A deleted checkpoint is 404 before it gets here.
                CheckpointState::Failed | CheckpointState::Deleted => StateBody::Failed,
            },
            size: row.size_bytes,
            error: row.error.map(SandboxErrorBody::from),
            created_at: row.created_at,
            expires_at: row.expires_at,
        }
    }
}

/// The checkpoint to take.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateCheckpoint)]
pub struct CreateRequest {
    /// 1 to 128 bytes that no other checkpoint of the team has as its name; its id by default.
    pub name: Option<String>,
    /// With the processes as they run, not the disk alone.
    #[serde(default)]
    #[schema(default = false)]
    pub memory: bool,
    /// With memory: also while files on its volumes are open. Whoever has them open reads and writes errors from then on. Without
    /// it, that is refused with 409 `volume_busy`.
    #[serde(default)]
    #[schema(default = false)]
    pub force: bool,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckpointList {
    /// Newest first.
    pub checkpoints: Vec<CheckpointBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// Take a checkpoint
///
/// Responds when it is durable. The sandbox stands still for a moment, in the state `checkpointing`, and goes on; a stopped
/// one stays stopped. Where that takes minutes, the response is 202 and a checkpoint in `creating`, which becomes `ready`, or
/// `failed` with an `error`. Of a sandbox that ended by itself there is no memory to be kept.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/checkpoints",
    operation_id = "create_checkpoint",
    tag = "checkpoints",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<CreateRequest>,
    responses(
        (status = 201, description = "Taken", body = CheckpointBody),
        (status = 202, description = "It is still being taken", body = CheckpointBody),
    )
)]
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Path(sandbox_id): Path<String>,
    OptionalJson(request): OptionalJson<CreateRequest>,
) -> Result<Response, ApiError> {
    let sandbox = owned(&app, &caller, &sandbox_id).await?;
    let claim = claim.map(|Extension(claim)| claim);
    let wanted = Wanted { name: request.name, names: Names::Stay, memory: request.memory, force: request.force };
    let (row, progress) = take(&app, &caller, &sandbox, wanted, claim.as_ref()).await?;
    let status = match progress {
        Progress::Done => StatusCode::CREATED,
        Progress::UnderWay => StatusCode::ACCEPTED,
    };
    Ok(response(&caller, &sandbox_id, row, status))
}

/// A checkpoint to take.
#[derive(Debug)]
pub struct Wanted {
    pub name: Option<String>,
    pub names: Names,
    pub memory: bool,
    /// With memory: also while files on a volume are open.
    pub force: bool,
}

/// What becomes of a name that another checkpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// It stays, and the request is refused.
    Stay,
    /// It goes over to the new one as soon as that is ready.
    Move,
}

/// Takes a checkpoint of `sandbox`.
///
/// # Errors
///
/// 400 on the name, 409 where it is taken or the sandbox cannot be copied, and the agent's.
pub async fn take(
    app: &App,
    caller: &Caller,
    sandbox: &SandboxRow,
    wanted: Wanted,
    claim: Option<&Claim>,
) -> Result<(CheckpointRow, Progress), ApiError> {
    let id = id::generate("ckp");
    let is_named = wanted.name.is_some();
    let name = name(wanted.name, &id)?;
    check_usable(sandbox)?;

    // Before the row is there, so that the synchronisation never sees it without.
    let guard = app.in_flight.enter(&id).ok_or_else(|| ApiError::internal("checkpoint id made twice"))?;
    let naming = match wanted.names {
        Names::Move if is_named => Naming::TakeOver(name.clone()),
        Names::Move | Names::Stay => Naming::Own(name.clone()),
    };
    let new = NewCheckpoint { id: id.clone(), naming, memory: wanted.memory, created_at: app.clock.now() };
    let limits = app.offer.of(caller.team.plan);
    let created = app.store.checkpoints.create(&new, sandbox, &limits.quota, claim).await;
    created.map_err(|error| errors::not_checkpointed(error, &name, &limits))?;
    let order = CreateCheckpoint { id: guard.id().into(), memory: wanted.memory, force: wanted.force };
    let progress = orchestration::checkpoint::run(app, sandbox, order, guard).await?;
    Ok((find(app, caller, &id).await?, progress))
}

/// The response for a checkpoint that an earlier request with the same idempotency key began; `None` unless the agent has it.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn response_for_existing(
    app: &App,
    caller: &Caller,
    sandbox: &SandboxId,
    id: &CheckpointId,
) -> Result<Option<Response>, ApiError> {
    let row = made_before(app, caller, id).await?;
    Ok(row.map(|row| response(caller, sandbox, row, StatusCode::CREATED)))
}

/// The checkpoint that an earlier request with the same idempotency key began; `None` unless the agent has it.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn made_before(app: &App, caller: &Caller, id: &CheckpointId) -> Result<Option<CheckpointRow>, ApiError> {
    match app.agent.show_checkpoint(id).await {
        Ok(report) => app.store.checkpoints.mirror(&[&report], app.clock.now()).await?,
        Err(error) if error.is_not_found() => {
            // It was never taken. Its name is free again for the request that is to be done now.
            app.store.checkpoints.delete(id, app.clock.now()).await?;
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(app.store.checkpoints.get(&caller.team.id, id).await?)
}

fn response(caller: &Caller, sandbox: &str, row: CheckpointRow, status: StatusCode) -> Response {
    let location = [(header::LOCATION, format!("/v1/checkpoints/{}", row.id))];
    let acted = Extension(Acted(vec![sandbox.to_owned(), row.id.clone()]));
    (status, location, acted, Json(CheckpointBody::new(caller, row))).into_response()
}

/// List a sandbox's checkpoints
///
/// Newest first, page by page. Those of a sandbox that is gone are in the team's list.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/checkpoints",
    operation_id = "list_sandbox_checkpoints",
    tag = "checkpoints",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("limit" = Option<u32>, Query, description = "Checkpoints per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = CheckpointList))
)]
pub async fn list_of_sandbox(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Json<CheckpointList>, ApiError> {
    owned(&app, &caller, &id).await?;
    page(&app, &caller, Some(&id), Paging::alone(query)?).await
}

/// List checkpoints
///
/// The team's checkpoints, newest first, page by page.
#[utoipa::path(
    get,
    path = "/v1/checkpoints",
    operation_id = "list_checkpoints",
    tag = "checkpoints",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("limit" = Option<u32>, Query, description = "Checkpoints per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = CheckpointList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<CheckpointList>, ApiError> {
    page(&app, &caller, None, Paging::of_team(query, &caller)?).await
}

async fn page(
    app: &App,
    caller: &Caller,
    sandbox: Option<&str>,
    paging: Paging,
) -> Result<Json<CheckpointList>, ApiError> {
    let list = List::of_ids("ckp", &json!([caller.team.id, sandbox]));
    let after = paging.after(&list)?;

    let page = app.store.checkpoints.list(&caller.team.id, sandbox, after.as_deref(), paging.limit).await?;

    Ok(Json(CheckpointList {
        checkpoints: page.checkpoints.into_iter().map(|row| CheckpointBody::new(caller, row)).collect(),
        next_token: page.after.map(|after| list.token(after)),
    }))
}

/// Show a checkpoint
///
/// The checkpoint as it was last known.
#[utoipa::path(
    get,
    path = "/v1/checkpoints/{id}",
    operation_id = "show_checkpoint",
    tag = "checkpoints",
    params(("id" = String, Path, description = "The checkpoint")),
    responses((status = 200, description = "The checkpoint", body = CheckpointBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Json<CheckpointBody>, ApiError> {
    let row = find(&app, &caller, &id).await?;
    Ok(Json(CheckpointBody::new(&caller, row)))
}

/// Delete a checkpoint
///
/// Sandboxes that were made from it go on.
#[utoipa::path(
    delete,
    path = "/v1/checkpoints/{id}",
    operation_id = "delete_checkpoint",
    tag = "checkpoints",
    params(("id" = String, Path, description = "The checkpoint")),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    orchestration::checkpoint::remove(&app, &find(&app, &caller, &id).await?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The caller's checkpoint of this id, or 404.
async fn find(app: &App, caller: &Caller, id: &str) -> Result<CheckpointRow, ApiError> {
    app.store.checkpoints.get(&caller.team.id, id).await?.ok_or_else(|| errors::no_checkpoint(id))
}

fn name(asked: Option<String>, id: &str) -> Result<String, ApiError> {
    let Some(name) = asked else { return Ok(id.to_owned()) };
    if name.trim().is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(ApiError::invalid_field(
            "name",
            format!("must have 1 to {MAX_NAME} bytes, not all of them spaces, and no control characters"),
        ));
    }
    if id::is_valid("ckp", &name) {
        return Err(ApiError::invalid_field("name", "must not look like the id of a checkpoint"));
    }
    Ok(name)
}
