//! The stand-in's pause, resume, forks and checkpoints.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use sandpiper_protocol::agent::{
    Checkpoint, CheckpointList, CreateCheckpoint, CreatedSandbox, ForkSandbox, ForkedSandboxes, PauseSandbox,
    ResumeSandbox, Sandbox, SandboxState, StartKind,
};

use super::agent::{Records, Shared, Turn, refusal, seconds};

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/fork", post(fork))
        .route("/sandboxes/{id}/checkpoints", post(take))
        .route("/checkpoints", get(list))
        .route("/checkpoints/{id}", get(show).delete(delete))
}

/// Takes a sandbox through `during` to the end of some work, or back to where it was if that is refused.
async fn work(shared: &Shared, id: &str, during: SandboxState) -> Result<SandboxState, Response> {
    let before = match shared.records().sandboxes.get_mut(id) {
        None => return Err(refusal(404, "not_found")),
        Some(sandbox) if sandbox.state == SandboxState::Failed => return Err(refusal(409, "invalid_state")),
        Some(sandbox) => std::mem::replace(&mut sandbox.state, during),
    };
    let refused = shared.pass().await;
    match shared.records().sandboxes.get_mut(id) {
        None => return Err(refusal(404, "not_found")),
        Some(sandbox) => sandbox.state = before,
    }
    refused.map_or(Ok(before), Err)
}

async fn pause(State(shared): State<Shared>, Path(id): Path<String>, Json(request): Json<PauseSandbox>) -> Response {
    shared.records().disk_only.push(request.disk_only);
    shared.records().forced.push(request.force);
    if let Err(refusal) = work(&shared, &id, SandboxState::Stopping).await {
        return refusal;
    }
    let mut records = shared.records();
    let Some(sandbox) = records.sandboxes.get_mut(&id) else { return refusal(404, "not_found") };
    if sandbox.state != SandboxState::Stopped {
        sandbox.turn(SandboxState::Stopped);
    }
    Json(&*sandbox).into_response()
}

async fn resume(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(request): Json<ResumeSandbox>,
) -> Response {
    shared.records().timeouts.push(request.timeout_seconds);
    shared.records().disk_only.push(request.disk_only);
    shared.records().allowances.extend(request.allowance);
    let was_stopped = shared.records().sandboxes.get(&id).is_some_and(|one| one.state == SandboxState::Stopped);
    if was_stopped && let Err(refusal) = work(&shared, &id, SandboxState::Restoring).await {
        return refusal;
    }
    let mut records = shared.records();
    let Some(sandbox) = records.sandboxes.get_mut(&id) else { return refusal(404, "not_found") };
    if sandbox.state == SandboxState::Failed {
        return refusal(409, "invalid_state");
    }
    let wanted = Timestamp::now() + seconds(request.timeout_seconds.unwrap_or(sandbox.timeout_seconds));
    sandbox.deadline = if was_stopped { wanted } else { sandbox.deadline.max(wanted) };
    sandbox.turn(SandboxState::Ready);
    let sandbox = sandbox.clone();
    let session = records.session(&headers, &id);
    Json(CreatedSandbox { sandbox, session }).into_response()
}

async fn fork(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(request): Json<ForkSandbox>,
) -> Response {
    shared.records().allowances.extend(request.allowance.clone());
    shared.records().forced.push(request.force);
    if let Err(refusal) = work(&shared, &id, SandboxState::Checkpointing).await {
        return refusal;
    }
    let mut records = shared.records();
    let mut source = records.sandboxes[&id].clone();
    source.timeout_seconds = request.timeout_seconds.unwrap_or(source.timeout_seconds);
    let sandboxes = request.ids.iter().map(|id| copy(&mut records, &headers, &source, id)).collect();
    (StatusCode::CREATED, Json(ForkedSandboxes { sandboxes })).into_response()
}

fn copy(records: &mut Records, headers: &HeaderMap, source: &Sandbox, id: &str) -> CreatedSandbox {
    let mut sandbox = Sandbox {
        id: id.into(),
        deadline: Timestamp::now() + seconds(source.timeout_seconds),
        data_plane_url: format!("http://{id}.sandbox.localhost:8080"),
        start: StartKind::Restored,
        is_bare: false,
        volume_mounts: Vec::new(),
        ..source.clone()
    };
    sandbox.turn(SandboxState::Ready);
    records.sandboxes.insert(id.to_owned(), sandbox.clone());
    if let Some(policy) = records.policies.get(source.id.as_str()).cloned() {
        records.policies.insert(id.to_owned(), policy);
    }
    CreatedSandbox { session: records.session(headers, id), sandbox }
}

async fn take(State(shared): State<Shared>, Path(id): Path<String>, Json(request): Json<CreateCheckpoint>) -> Response {
    shared.records().checkpoint_orders.push(request.id.to_string());
    shared.records().forced.push(request.force);
    if let Err(refusal) = work(&shared, &id, SandboxState::Checkpointing).await {
        return refusal;
    }
    let mut records = shared.records();
    let checkpoint = checkpoint(&records.sandboxes[&id], &request);
    records.checkpoints.insert(request.id.to_string(), checkpoint.clone());
    (StatusCode::CREATED, Json(checkpoint)).into_response()
}

/// What a request makes of a sandbox.
pub(super) fn checkpoint(sandbox: &Sandbox, request: &CreateCheckpoint) -> Checkpoint {
    Checkpoint {
        id: request.id.clone(),
        sandbox: sandbox.id.clone(),
        template_version: sandbox.template_version.clone(),
        memory: request.memory,
        cpu: sandbox.cpu,
        memory_mb: sandbox.memory_mb,
        disk_gib: sandbox.disk_gib,
        created_at: Timestamp::now(),
        retained_bytes: 500,
        stopped_us: 900,
    }
}

async fn list(State(shared): State<Shared>) -> Json<CheckpointList> {
    Json(CheckpointList { checkpoints: shared.records().checkpoints.values().cloned().collect() })
}

async fn show(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.records().checkpoints.get(&id) {
        Some(checkpoint) => Json(checkpoint).into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn delete(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.records().checkpoints.remove(&id) {
        Some(_) => StatusCode::NO_CONTENT.into_response(),
        None => refusal(404, "not_found"),
    }
}
