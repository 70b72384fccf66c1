//! The stand-in's volumes, with files that are only names and bytes.

use std::collections::BTreeMap;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use jiff::Timestamp;
use sandpiper_protocol::volume::{ChangePath, EntryKind, Volume, VolumeDirectory, VolumeEntry, VolumeList};
use serde::Deserialize;

use super::agent::{Shared, refusal};

/// What every volume holds of the disk.
pub(crate) const VOLUME_RETAINED: u64 = 4096;

/// A volume, and its files and directories by path; a directory has no bytes.
#[derive(Clone)]
pub(crate) struct StubVolume {
    pub(crate) volume: Volume,
    pub(crate) files: BTreeMap<String, (VolumeEntry, Vec<u8>)>,
}

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/volumes", get(list))
        .route("/volumes/{id}", put(create).get(show).delete(delete))
        .route("/volumes/{id}/files", get(read).put(write).delete(remove))
        .route("/volumes/{id}/directories", get(entries).post(make))
        .route("/volumes/{id}/path", get(stat).patch(change).delete(remove_tree))
}

#[derive(Deserialize)]
struct At {
    path: String,
    mode: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
    limit: Option<usize>,
    after: Option<String>,
}

impl At {
    fn entry(&self, kind: EntryKind, size: usize) -> VolumeEntry {
        VolumeEntry {
            path: self.path.clone(),
            kind,
            size: size as u64,
            mode: self.mode.clone().unwrap_or_else(|| "0755".to_owned()),
            uid: self.uid.unwrap_or(1000),
            gid: self.gid.unwrap_or(1000),
            modified_at: Timestamp::UNIX_EPOCH,
            target: None,
        }
    }
}

async fn list(State(shared): State<Shared>) -> Json<VolumeList> {
    let volumes = shared.records().volumes.values().map(|one| one.volume.clone()).collect();
    Json(VolumeList { volumes, unreadable: Vec::new() })
}

async fn create(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    if let Some(refusal) = shared.pass().await {
        return refusal;
    }
    let mut records = shared.records();
    let status = if records.volumes.contains_key(&id) { StatusCode::OK } else { StatusCode::CREATED };
    let made = records.volumes.entry(id.clone()).or_insert_with(|| StubVolume {
        volume: Volume {
            id: id.into(),
            size_bytes: 10 << 30,
            retained_bytes: VOLUME_RETAINED,
            attached_to: None,
            created_at: Timestamp::now(),
        },
        files: BTreeMap::new(),
    });
    (status, Json(made.volume.clone())).into_response()
}

async fn show(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.records().volumes.get(&id) {
        Some(one) => Json(one.volume.clone()).into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn delete(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    if let Some(refusal) = shared.pass().await {
        return refusal;
    }
    match shared.records().volumes.remove(&id) {
        Some(_) => StatusCode::NO_CONTENT.into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn read(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(at): Query<At>,
    headers: HeaderMap,
) -> Response {
    let records = shared.records();
    let Some((_, bytes)) = records.volumes.get(&id).and_then(|one| one.files.get(&at.path)) else {
        return refusal(404, "not_found");
    };
    // `bytes=a-b`, and nothing else.
    let range =
        headers.get(header::RANGE).map(|range| range.to_str().unwrap()["bytes=".len()..].split_once('-').unwrap());
    let Some((from, to)) = range else { return bytes.clone().into_response() };
    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
    let range = [(header::CONTENT_RANGE, format!("bytes {from}-{to}/{}", bytes.len()))];
    (StatusCode::PARTIAL_CONTENT, range, bytes[from..=to].to_vec()).into_response()
}

async fn write(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(at): Query<At>,
    request: Request,
) -> Response {
    let Ok(bytes) = to_bytes(request.into_body(), usize::MAX).await else { return refusal(400, "invalid_request") };
    let entry = at.entry(EntryKind::File, bytes.len());
    let mut records = shared.records();
    let Some(one) = records.volumes.get_mut(&id) else { return refusal(404, "not_found") };
    one.files.insert(at.path.clone(), (entry.clone(), bytes.to_vec()));
    Json(entry).into_response()
}

async fn remove(State(shared): State<Shared>, Path(id): Path<String>, Query(at): Query<At>) -> Response {
    let mut records = shared.records();
    match records.volumes.get_mut(&id).and_then(|one| one.files.remove(&at.path)) {
        Some(_) => StatusCode::NO_CONTENT.into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn remove_tree(State(shared): State<Shared>, id: Path<String>, at: Query<At>) -> Response {
    let left = {
        let mut records = shared.records();
        records.turns_left = records.turns_left.saturating_sub(1);
        records.turns_left
    };
    if left > 0 { StatusCode::ACCEPTED.into_response() } else { remove(State(shared), id, at).await }
}

async fn entries(State(shared): State<Shared>, Path(id): Path<String>, Query(at): Query<At>) -> Response {
    let records = shared.records();
    let Some(one) = records.volumes.get(&id) else { return refusal(404, "not_found") };
    let after = at.after.unwrap_or_default();
    let mut left = one.files.iter().filter(|(path, _)| path.starts_with(&at.path) && **path > after);
    let entries: Vec<VolumeEntry> =
        left.by_ref().take(at.limit.unwrap()).map(|(_, (entry, _))| entry.clone()).collect();
    let next = left.next().and(entries.last().map(|last| last.path.clone()));
    Json(VolumeDirectory { entries, next }).into_response()
}

async fn make(State(shared): State<Shared>, Path(id): Path<String>, Query(at): Query<At>) -> Response {
    let mut records = shared.records();
    let Some(one) = records.volumes.get_mut(&id) else { return refusal(404, "not_found") };
    let status = if one.files.contains_key(&at.path) { StatusCode::OK } else { StatusCode::CREATED };
    let entry = at.entry(EntryKind::Directory, 0);
    let (entry, _) = one.files.entry(at.path.clone()).or_insert((entry, Vec::new()));
    (status, Json(entry.clone())).into_response()
}

async fn stat(State(shared): State<Shared>, Path(id): Path<String>, Query(at): Query<At>) -> Response {
    let records = shared.records();
    let Some(one) = records.volumes.get(&id) else { return refusal(404, "not_found") };
    match one.files.get(&at.path) {
        Some((entry, _)) => Json(entry.clone()).into_response(),
        None if at.path == "/" => Json(at.entry(EntryKind::Directory, 0)).into_response(),
        None => refusal(404, "not_found"),
    }
}

async fn change(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(at): Query<At>,
    Json(change): Json<ChangePath>,
) -> Response {
    let mut records = shared.records();
    let Some(one) = records.volumes.get_mut(&id) else { return refusal(404, "not_found") };
    let Some((mut entry, bytes)) = one.files.remove(&at.path) else { return refusal(404, "not_found") };
    entry.mode = change.mode.unwrap_or(entry.mode);
    entry.uid = change.uid.unwrap_or(entry.uid);
    entry.gid = change.gid.unwrap_or(entry.gid);
    entry.path = change.move_to.unwrap_or(entry.path);
    one.files.insert(entry.path.clone(), (entry.clone(), bytes));
    Json(entry).into_response()
}

/// A body of `pieces` megabytes that is made while it is sent.
pub(crate) fn long_body(pieces: usize) -> Body {
    let piece = axum::body::Bytes::from(vec![7; 1 << 20]);
    Body::from_stream(futures_util::stream::iter((0..pieces).map(move |_| Ok::<_, std::io::Error>(piece.clone()))))
}
