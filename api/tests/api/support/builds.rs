//! The stand-in's builds, which go on when a test says so, and files for builds, of which it keeps the length alone.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use futures_util::StreamExt;
use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::template::{
    Build, BuildError, BuildList, BuildLogEntry, BuildLogPage, BuildState, ImageSettings, LogLevel, StartBuild, Upload,
};
use serde::Deserialize;

use super::agent::{Records, Shared, StubAgent, refusal};

/// What every version holds of the disk.
pub(crate) const VERSION_RETAINED: u64 = 2000;

/// A build, and how it was asked for.
pub(crate) struct StubBuild {
    pub(crate) order: StartBuild,
    pub(crate) build: Build,
    pub(crate) log: Vec<BuildLogEntry>,
}

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/builds", get(list).post(start))
        .route("/builds/{id}", get(show))
        .route("/builds/{id}/logs", get(logs))
        .route("/builds/{id}/cancel", post(cancel))
        .route("/uploads/{id}", put(upload).get(show_upload).delete(remove_upload))
        .route("/templates/{id}", delete(remove))
}

impl StubAgent {
    /// The build goes on to this state.
    pub(crate) fn advance(&self, id: &str, state: BuildState) {
        self.records().build(id).advance(state);
    }

    /// The build is ready, and the version among the agent's.
    pub(crate) fn finish_build(&self, id: &str) {
        let mut records = self.records();
        let one = records.build(id);
        one.advance(BuildState::Ready);
        let version = TemplateVersion {
            id: id.to_owned(),
            slug: one.order.slug.clone(),
            digest: "11".repeat(32),
            key: None,
            created_at: one.build.created_at,
            baseline: one.order.baseline,
            team: Some(one.order.team.clone()),
            disk_gib: one.order.disk_gib,
            settings: ImageSettings {
                env: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
                workdir: Some("/app".to_owned()),
                user: None,
            },
            start: one.order.start.clone(),
            command: Some("node server.js".to_owned()),
            images: BTreeMap::from([("registry.example/node:22".to_owned(), "sha256:ab".to_owned())]),
            retained_bytes: VERSION_RETAINED,
        };
        one.build.version = Some(version.clone());
        records.templates.push(version);
    }

    /// The build failed.
    pub(crate) fn fail_build(&self, id: &str, code: &str) {
        let mut records = self.records();
        let one = records.build(id);
        one.advance(BuildState::Failed);
        one.build.error = Some(BuildError { code: code.into(), message: "Step 2 ended with 1".into(), step: Some(2) });
    }

    /// The build has said something.
    pub(crate) fn print(&self, id: &str, text: &str) {
        self.say(id, Timestamp::now(), LogLevel::Info, text);
    }

    /// The build has said something at this time.
    pub(crate) fn say(&self, id: &str, time: Timestamp, level: LogLevel, text: &str) {
        let mut records = self.records();
        let one = records.build(id);
        one.build.log_end += 1;
        let (number, text) = (one.build.log_end, text.to_owned());
        one.log.push(BuildLogEntry { number, time, level, step: Some(1), text });
    }
}

impl Records {
    fn build(&mut self, id: &str) -> &mut StubBuild {
        self.builds.get_mut(id).unwrap()
    }
}

impl StubBuild {
    fn advance(&mut self, state: BuildState) {
        let now = Timestamp::now();
        self.build.state = state;
        self.build.position = None;
        // As if it had taken a while.
        self.build.started_at.get_or_insert(now - SignedDuration::from_secs(90));
        self.build.finished_at = state.has_ended().then_some(now);
    }
}

async fn list(State(shared): State<Shared>) -> Json<BuildList> {
    // What came of them is told with each alone.
    let listed = |one: &StubBuild| Build { version: None, ..one.build.clone() };
    Json(BuildList { builds: shared.records().builds.values().map(listed).collect() })
}

async fn start(State(shared): State<Shared>, Json(order): Json<StartBuild>) -> Response {
    if let Some(refusal) = shared.pass().await {
        return refusal;
    }
    let mut records = shared.records();
    if let Some(known) = records.builds.get(order.id.as_str()) {
        return Json(known.build.clone()).into_response();
    }
    let build = Build {
        id: order.id.clone(),
        state: BuildState::Queued,
        position: Some(1),
        error: None,
        version: None,
        created_at: Timestamp::now(),
        started_at: None,
        finished_at: None,
        log_end: 0,
    };
    let one = StubBuild { build: build.clone(), order, log: Vec::new() };
    records.builds.insert(build.id.to_string(), one);
    (StatusCode::ACCEPTED, Json(build)).into_response()
}

async fn show(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.records().builds.get(&id) {
        Some(one) => Json(one.build.clone()).into_response(),
        None => refusal(404, "not_found"),
    }
}

#[derive(Deserialize)]
struct Lines {
    after: u64,
    limit: usize,
}

async fn logs(State(shared): State<Shared>, Path(id): Path<String>, Query(lines): Query<Lines>) -> Response {
    let records = shared.records();
    let Some(one) = records.builds.get(&id) else { return refusal(404, "not_found") };
    let mut left = one.log.iter().filter(|entry| entry.number > lines.after);
    let entries: Vec<_> = left.by_ref().take(lines.limit).cloned().collect();
    let is_complete = left.next().is_none() && one.build.state.has_ended();
    Json(BuildLogPage { entries, is_complete }).into_response()
}

async fn cancel(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let mut records = shared.records();
    let Some(one) = records.builds.get_mut(&id) else { return refusal(404, "not_found") };
    if !one.build.state.has_ended() {
        one.advance(BuildState::Cancelled);
    }
    Json(one.build.clone()).into_response()
}

async fn upload(State(shared): State<Shared>, Path(id): Path<String>, request: Request) -> Response {
    let (mut pieces, mut bytes) = (request.into_body().into_data_stream(), 0);
    while let Some(piece) = pieces.next().await {
        let Ok(piece) = piece else { return refusal(400, "invalid_request") };
        bytes += piece.len() as u64;
    }
    shared.records().uploads.insert(id.clone(), bytes);
    (StatusCode::CREATED, Json(Upload { id: id.into(), bytes, sha256: "ab".repeat(32) })).into_response()
}

async fn show_upload(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.records().uploads.get(&id) {
        Some(bytes) => Json(Upload { id: id.into(), bytes: *bytes, sha256: "ab".repeat(32) }).into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn remove_upload(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.records().uploads.remove(&id) {
        Some(_) => StatusCode::NO_CONTENT.into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn remove(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let mut records = shared.records();
    records.removed_versions.push(id.clone());
    let before = records.templates.len();
    records.templates.retain(|version| version.id != id);
    if records.templates.len() == before {
        return refusal(404, "not_found");
    }
    StatusCode::NO_CONTENT.into_response()
}
