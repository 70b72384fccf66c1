//! `POST /v1/sandboxes/{id}/fork`

use std::collections::HashMap;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::{Network, Session};
use sandpiper_protocol::id;
use sandpiper_trace::step;
use serde::{Deserialize, Serialize};
use tracing::Instrument;
use utoipa::ToSchema;

use super::body::{SandboxBody, SessionBody};
use super::create::CreatedSandbox;
use super::{check_usable, create, owned};
use crate::auth::{Caller, WriteAccess};
use crate::errors;
use crate::mutation::SessionOf;
use crate::orchestration;
use crate::orchestration::fork::How;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::sandbox_row::{NewSandbox, SandboxRow};

/// Most sandboxes that one request makes.
pub const MAX_COUNT: u32 = 20;

/// How many.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ForkSandbox)]
pub struct ForkRequest {
    /// How many new sandboxes.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 20, default = 1)]
    pub count: u32,
    /// Also while files on its volumes are open: whoever has them open reads and writes errors from then on. Without it, that
    /// is refused with 409 `volume_busy`.
    #[serde(default)]
    #[schema(default = false)]
    pub force: bool,
}

fn one() -> u32 {
    1
}

impl Default for ForkRequest {
    fn default() -> Self {
        Self { count: one(), force: false }
    }
}

/// The new sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForkedSandboxes {
    pub sandboxes: Vec<CreatedSandbox>,
}

/// Fork a sandbox
///
/// New sandboxes that go on from where this one is, with its processes, files, environment, metadata, lifecycle, ports,
/// network policy and timeout, and without its volumes; all of them or none. The sandbox itself goes on too, or stays stopped.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/fork",
    operation_id = "fork_sandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<ForkRequest>,
    responses((status = 201, description = "Created", body = ForkedSandboxes))
)]
pub async fn fork(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Path(id): Path<String>,
    OptionalJson(ForkRequest { count, force }): OptionalJson<ForkRequest>,
) -> Result<Response, ApiError> {
    let source = owned(&app, &caller, &id).await?;
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(ApiError::invalid_field("count", format!("must be from 1 to {MAX_COUNT}")));
    }
    let claim = claim.map(|Extension(claim)| claim);
    let made =
        make(&app, &caller, &source, Copies { count, how: How { timeout: None, force } }, claim.as_ref()).await?;
    let made = made.into_iter().map(|(row, session)| (row, Some(SessionBody::from(session)))).collect();
    Ok(response(&caller, &id, made))
}

/// What is to be made of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Copies {
    pub count: u32,
    pub how: How,
}

/// Makes sandboxes that go on from where `source` is, all or none.
///
/// # Errors
///
/// 409 in a state that cannot be copied, 422 over the quota, and the agent's.
pub async fn make(
    app: &App,
    caller: &Caller,
    source: &SandboxRow,
    Copies { count, how }: Copies,
    claim: Option<&Claim>,
) -> Result<Vec<(SandboxRow, Session)>, ApiError> {
    check_usable(source)?;
    // What the agent copies is the policy that it has.
    orchestration::network::before_start(app, source).await?;
    let envs = open_envs(app, source).await?;

    let (mut new, mut guards) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let mut copy = copy_of(app, source, envs.as_ref().map(|envs| envs.as_slice()))?;
        copy.timeout_seconds = how.timeout.unwrap_or(copy.timeout_seconds);
        // Before the row is there, so that the synchronisation never sees it without.
        guards.push(app.in_flight.enter(&copy.id).ok_or_else(|| ApiError::internal("sandbox id made twice"))?);
        new.push(copy);
    }
    let limits = &app.offer.of(caller.team.plan);
    let rows = app.store.sandboxes.begin_create(&caller.team.id, &new, &limits.quota, claim);
    let rows = rows.instrument(step("quota and rows")).await;
    let rows = rows.map_err(|error| errors::no_capacity(error, limits, count, source.cpu, source.memory_mb))?;

    let sessions = orchestration::fork::run(app, caller, source, rows, guards, how).await?;
    let ids: Vec<&str> = new.iter().map(|new| new.id.as_str()).collect();
    let rows = app.store.sandboxes.get_all(&caller.team.id, &ids).instrument(step("read the rows")).await?;
    let mut rows: HashMap<String, SandboxRow> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
    let made = ids.into_iter().zip(sessions).map(|(id, session)| {
        let row =
            rows.remove(id).ok_or_else(|| ApiError::conflict(format!("{id} was deleted while it was starting")))?;
        Ok((row, session))
    });
    made.collect()
}

/// The response for sandboxes that an earlier request with the same idempotency key made; `None` unless all of them are
/// there.
///
/// # Errors
///
/// Those of the database.
pub async fn response_for_existing(
    app: &App,
    caller: &Caller,
    source: &str,
    ids: &[&str],
) -> Result<Option<Response>, ApiError> {
    let mut made = Vec::new();
    for id in ids {
        let Some(row) = create::made_before(app, caller, id).await? else { return Ok(None) };
        made.push((row, app.agent.on_behalf_of(&caller.key_id).session(id).await.ok().map(SessionBody::from)));
    }
    Ok(Some(response(caller, source, made)))
}

fn response(caller: &Caller, source: &str, made: Vec<(SandboxRow, Option<SessionBody>)>) -> Response {
    let ids: Vec<String> = made.iter().map(|(row, _)| row.id.clone()).collect();
    let acted = std::iter::once(source.to_owned()).chain(ids.iter().cloned()).collect();
    let sandboxes = made
        .into_iter()
        .map(|(row, session)| CreatedSandbox { sandbox: SandboxBody::new(&caller.team, row), session })
        .collect();
    let marks = (Extension(Acted(acted)), Extension(SessionOf(ids)));
    (StatusCode::CREATED, marks.0, marks.1, Json(ForkedSandboxes { sandboxes })).into_response()
}

/// The row of a new sandbox that is like `source`.
fn copy_of(app: &App, source: &SandboxRow, envs: Option<&[u8]>) -> Result<NewSandbox, ApiError> {
    let id = id::generate("sbx");
    let sealed_envs = envs.map(|envs| app.vault.seal(&id, envs)).transpose();
    Ok(NewSandbox {
        sealed_envs: sealed_envs.map_err(|error| ApiError::internal(error.to_string()))?,
        id,
        template: source.template.clone(),
        template_version: source.template_version.clone(),
        cpu: source.cpu,
        memory_mb: source.memory_mb,
        disk_gib: source.disk_gib,
        timeout_seconds: source.timeout_seconds,
        lifecycle: source.lifecycle,
        metadata: source.metadata.clone(),
        exposed_ports: source.exposed_ports.clone(),
        allow_public_traffic: source.allow_public_traffic,
        capture_output: source.capture_output,
        network: Network { version: source.network.version, policy: source.policy.clone() },
        // A volume is one sandbox's at a time.
        volume_mounts: Vec::new(),
        snapshot_id: source.snapshot_id.clone(),
        created_at: app.clock.now(),
    })
}

/// The source's environment, which is sealed for its own row only.
async fn open_envs(app: &App, source: &SandboxRow) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, ApiError> {
    let Some(sealed) = app.store.sandboxes.sealed_envs(&source.id).await? else { return Ok(None) };
    let open = app.vault.unseal(&source.id, &sealed);
    open.map(Some).map_err(|error| ApiError::internal(format!("envs of {}: {error}", source.id)))
}
