//! `POST /v1/sandboxes`
//!
//! Checks come in this order: key, capability, schema, plan, quota, capacity. Quota and row are one transaction; capacity is
//! the agent's to judge.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_db::StoreError;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::ids::CheckpointId;
use sandpiper_protocol::volume::VolumeMount;
use sandpiper_protocol::{agent, id};
use sandpiper_trace::{self as trace, step};
use serde::Serialize;
use tracing::Instrument;
use utoipa::ToSchema;

use super::body::{SandboxBody, SessionBody};
use super::origin::Origin;
use super::validate::{self, Create, CreateRequest};
use crate::auth::{Caller, WriteAccess};
use crate::errors;
use crate::mutation::SessionOf;
use crate::orchestration;
use crate::pending_audit::{PendingAudit, SuccessAudit};
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::{NewSandbox, SandboxRow, State as SandboxState};
use crate::store::volumes::State as VolumeState;

/// The new sandbox, and the way into it.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedSandbox {
    #[serde(flatten)]
    pub sandbox: SandboxBody,
    /// Null while the sandbox is still `creating`: `POST /v1/sandboxes/{id}/connect` gives one later.
    pub session: Option<SessionBody>,
}

/// Create a sandbox
///
/// Responds when the sandbox is `ready`; if its start takes longer than 30 seconds, with a sandbox in `creating`.
#[utoipa::path(
    post,
    path = "/v1/sandboxes",
    operation_id = "create_sandbox",
    tag = "sandboxes",
    request_body = CreateRequest,
    responses((status = 201, description = "Created", body = CreatedSandbox))
)]
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Extension(pending_audit): Extension<PendingAudit>,
    Json(request): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(request.team.as_deref())?;
    let asked_size = (request.cpu, request.memory_mb);
    let wanted = validate::create(request, &app.offer.of(caller.team.plan))?;
    let claim = claim.map(|Extension(claim)| claim);
    let audit = pending_audit.of_success(StatusCode::CREATED);
    let (row, session) = make(&app, &caller, wanted, asked_size, claim.as_ref(), audit).await?;
    Ok(response(&caller, row, session.map(SessionBody::from)))
}

/// Makes the sandbox that is wanted, of this CPU and memory where they are named. Without a session where it takes long to
/// start: it goes on.
///
/// # Errors
///
/// 404 on what it should start from, 403 on a size that is not of the plan, 422 on a volume that is not there and over the
/// quota, 409 on a volume that another sandbox has, and the agent's.
pub async fn make(
    app: &App,
    caller: &Caller,
    wanted: Create,
    asked_size: (Option<u32>, Option<u32>),
    claim: Option<&Claim>,
    audit: SuccessAudit,
) -> Result<(SandboxRow, Option<agent::Session>), ApiError> {
    let limits = &app.offer.of(caller.team.plan);
    let policy = wanted.network.policy(app).await?;
    let origin = Origin::find(app, caller, &wanted.start).instrument(step("find what it starts from")).await?;
    if asked_size != (None, None) && !caller.team.plan.may_override() {
        return Err(errors::plan_required(format!(
            "CPU and memory of the plan {} are those of the template or checkpoint; cpu and memory_mb need Pro or \
             Enterprise",
            caller.team.plan
        )));
    }
    let (cpu, memory_mb) = origin.size(asked_size, limits)?;
    let volume_mounts = find_volumes(app, caller, wanted.volume_mounts).await?;

    let id = id::generate("sbx");
    trace::about(&id);
    let new = NewSandbox {
        id: id.clone(),
        disk_gib: origin.disk_gib(limits),
        template: origin.template,
        template_version: origin.template_version,
        cpu,
        memory_mb,
        timeout_seconds: wanted.timeout,
        lifecycle: wanted.lifecycle,
        metadata: wanted.metadata,
        exposed_ports: wanted.exposed_ports,
        allow_public_traffic: wanted.allow_public_traffic,
        capture_output: wanted.capture_output,
        network: agent::Network { version: 1, policy },
        volume_mounts,
        sealed_envs: seal(app, &id, &wanted.envs)?,
        snapshot_id: origin.checkpoint.map(|checkpoint| checkpoint.id),
        created_at: app.clock.now(),
    };
    // Before the row is there, so that the synchronisation never sees it without.
    let guard = app.in_flight.enter(&id).ok_or_else(|| ApiError::internal("sandbox id made twice"))?;
    let new_rows = std::slice::from_ref(&new);
    let rows = app.store.sandboxes.begin_create(&caller.team.id, new_rows, &limits.quota, claim);
    let rows = rows.instrument(step("quota and row")).await;
    let rows = rows.map_err(|error| errors::no_capacity(error, limits, 1, cpu, memory_mb))?;

    let order = agent::CreateSandbox {
        id: new.id.into(),
        template_version: new.template_version,
        checkpoint: new.snapshot_id.map(CheckpointId::from),
        cpu,
        memory_mb,
        disk_gib: new.disk_gib,
        timeout_seconds: new.timeout_seconds,
        lifecycle: new.lifecycle,
        envs: wanted.envs,
        exposed_ports: new.exposed_ports,
        allow_public_traffic: new.allow_public_traffic,
        previews: wanted.previews,
        network: new.network,
        volume_mounts: new.volume_mounts,
        capture_output: new.capture_output,
        allowance: Some(orchestration::allowance::of(app, &caller.team)),
    };
    let starting = orchestration::create::start(app.clone(), caller.clone(), order, rows, audit, guard);
    // If it is not, the task below says why.
    let _ = starting.committed.await;
    let session = match tokio::time::timeout(app.settings.timing.create_wait, starting.session).await {
        // Still starting: the task goes on and settles the row.
        Err(_) => None,
        Ok(Ok(Ok(session))) => Some(session),
        Ok(Ok(Err(error))) => {
            // The tenant never learnt of it, so there is nothing to show or to delete.
            app.store.sandboxes.destroy(&id, DeletionReason::NotStarted, app.clock.now()).await?;
            return Err(error);
        }
        Ok(Err(error)) => return Err(ApiError::internal(format!("start of a sandbox ended early: {error}"))),
    };
    let row = app.store.sandboxes.get(&caller.team.id, &id).instrument(step("read the row")).await?;
    let row = row.ok_or_else(|| ApiError::conflict(format!("{id} was deleted while it was starting")))?;
    Ok((row, session))
}

/// The response for a sandbox that an earlier request with the same idempotency key made; `None` if nothing usable came of
/// it.
///
/// # Errors
///
/// Those of the database.
pub async fn response_for_existing(app: &App, caller: &Caller, id: &str) -> Result<Option<Response>, ApiError> {
    let Some(row) = made_before(app, caller, id).await? else { return Ok(None) };
    let session = app.agent.on_behalf_of(&caller.key_id).session(id).await.ok().map(SessionBody::from);
    Ok(Some(response(caller, row, session)))
}

/// The sandbox that an earlier request with the same idempotency key made; `None` if nothing usable came of it.
///
/// # Errors
///
/// Those of the database.
pub async fn made_before(app: &App, caller: &Caller, id: &str) -> Result<Option<SandboxRow>, StoreError> {
    let Some(row) = app.store.sandboxes.get(&caller.team.id, id).await? else { return Ok(None) };
    let row = orchestration::sync::refresh(app, row).await?;
    Ok(row.filter(|row| row.state != SandboxState::Failed))
}

fn response(caller: &Caller, row: SandboxRow, session: Option<SessionBody>) -> Response {
    let id = row.id.clone();
    let location = [(header::LOCATION, format!("/v1/sandboxes/{id}"))];
    let marks = (Extension(Acted(vec![id.clone()])), Extension(SessionOf(vec![id])));
    let body = CreatedSandbox { sandbox: SandboxBody::new(&caller.team, row), session };
    (StatusCode::CREATED, location, marks.0, marks.1, axum::Json(body)).into_response()
}

/// The team's volumes of these names, by path.
///
/// # Errors
///
/// 422 on one that is not there, 409 on one that another sandbox has.
async fn find_volumes(
    app: &App,
    caller: &Caller,
    mounts: BTreeMap<String, String>,
) -> Result<Vec<VolumeMount>, ApiError> {
    if mounts.is_empty() {
        return Ok(Vec::new());
    }
    let known = app.store.volumes.by_names(&caller.team.id, mounts.values().map(String::as_str)).await?;
    let mut found = Vec::new();
    for (path, name) in mounts {
        let volume = known.iter().find(|volume| volume.name == name && volume.state == VolumeState::Ready);
        let volume = volume.ok_or_else(|| errors::unknown_volume(&name))?;
        errors::check_detached(volume)?;
        found.push(VolumeMount { volume: volume.id.clone(), path });
    }
    Ok(found)
}

fn seal(app: &App, id: &str, envs: &BTreeMap<String, String>) -> Result<Option<String>, ApiError> {
    if envs.is_empty() {
        return Ok(None);
    }
    let plain =
        zeroize::Zeroizing::new(serde_json::to_vec(envs).map_err(|error| ApiError::internal(error.to_string()))?);
    let sealed = app.vault.seal(id, &plain).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Some(sealed))
}
