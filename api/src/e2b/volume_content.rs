//! What is in a volume: `/volumecontent/{id}/path`, `…/dir`, `…/file`, with the volume's token.

use axum::Json as JsonBody;
use axum::Router;
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{ChangePath, EntryKind, VolumeEntry};
use serde::{Deserialize, Serialize};

use crate::agent_client::volumes::{Attributes, Entries};
use crate::auth::{ReadAccess, WriteAccess};
use crate::errors;
use crate::mutation::BodyRule;
use crate::orchestration::Progress;
use crate::orchestration::volume::remove_entry;
use crate::state::App;
use crate::v1::volumes::body::{checked_path, number, octal};
use crate::v1::volumes::detached;
use crate::v1::volumes::directories::checked_depth;
use crate::v1::volumes::files::{bytes, stream_to};

/// The routes.
pub const PATH: &str = "/volumecontent/{id}/path";
pub const DIRECTORY: &str = "/volumecontent/{id}/dir";
pub const FILE: &str = "/volumecontent/{id}/file";

/// Entries that are asked of the agent at a time, and that one response has at most: it has no pages.
const PAGE: u32 = 1000;
const MAX_ENTRIES: usize = 20_000;

/// The routes, to be served behind [`super::volume_token::authenticate`].
pub fn router() -> Router<App> {
    Router::new()
        .route(PATH, get(show).patch(change).delete(delete))
        .route(DIRECTORY, get(list).post(make))
        .route(FILE, get(read).put(write))
}

/// How the body of a request of this face is read: a file is a stream, whatever it says of itself.
pub fn body_rule(parts: &Parts) -> BodyRule {
    let is_file = parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == FILE);
    if is_file && parts.method == Method::PUT { BodyRule::Stream } else { BodyRule::Document }
}

/// Something in a volume, as the SDKs read it.
#[derive(Debug, Serialize)]
struct EntryStat {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    /// All three are when it was changed last.
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<VolumeEntry> for EntryStat {
    fn from(entry: VolumeEntry) -> Self {
        Self {
            name: entry.path.rsplit('/').next().unwrap_or_default().to_owned(),
            kind: match entry.kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Symlink => "symlink",
                EntryKind::Other => "unknown",
            },
            size: entry.size,
            // Four octal digits, as the agent writes them.
            mode: u32::from_str_radix(&entry.mode, 8).unwrap_or_default(),
            uid: entry.uid,
            gid: entry.gid,
            atime: entry.modified_at,
            mtime: entry.modified_at,
            ctime: entry.modified_at,
            target: entry.target,
            path: entry.path,
        }
    }
}

/// The parameters of a request.
#[derive(Debug, Default)]
struct Parameters {
    path: String,
    depth: u32,
    attributes: Attributes,
    force: bool,
}

impl Parameters {
    /// Takes `path`, which must be there, and `known` of the others.
    fn parse(Pairs(pairs): Pairs, known: &[&str]) -> Result<Self, ApiError> {
        let (mut parameters, mut path) = (Self { depth: 1, ..Self::default() }, None);
        for (name, value) in pairs {
            match name.as_str() {
                "path" if path.is_none() => path = Some(checked_path("path", absolute(&value))?),
                _ if !known.contains(&name.as_str()) => return Err(unknown(&name)),
                "depth" => parameters.depth = checked_depth(number("depth", &value)?.max(1))?,
                "uid" => parameters.attributes.uid = Some(number("uid", &value)?),
                "gid" => parameters.attributes.gid = Some(number("gid", &value)?),
                "mode" => parameters.attributes.mode = Some(octal(number("mode", &value)?)?),
                // The SDKs write it as their languages do.
                "force" => parameters.force = value.eq_ignore_ascii_case("true"),
                _ => return Err(unknown(&name)),
            }
        }
        parameters.path = path.ok_or_else(|| ApiError::invalid_field("path", "is required"))?;
        Ok(parameters)
    }
}

/// A path as the SDKs write it: it begins at the volume's root with or without a slash, and may end with one.
fn absolute(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

/// Show what is at a path.
async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Response, ApiError> {
    let Parameters { path, .. } = Parameters::parse(query, &[])?;
    let volume = detached(&app, &caller, &id).await?;
    Ok(response(StatusCode::OK, app.agent.volume_entry(&volume, &path).await?))
}

/// What to change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

/// Change owner and mode of what is at a path.
async fn change(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    Json(Change { uid, gid, mode }): Json<Change>,
) -> Result<Response, ApiError> {
    let Parameters { path, .. } = Parameters::parse(query, &[])?;
    let change = ChangePath { mode: mode.map(octal).transpose()?, uid, gid, move_to: None };
    let volume = detached(&app, &caller, &id).await?;
    Ok(response(StatusCode::OK, app.agent.change_volume_entry(&volume, &path, &change).await?))
}

/// Remove what is at a path, with all that is in it.
async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<StatusCode, ApiError> {
    let Parameters { path, .. } = Parameters::parse(query, &[])?;
    let volume = detached(&app, &caller, &id).await?;
    match remove_entry(&app, &volume, &path).await? {
        Progress::Done => Ok(StatusCode::NO_CONTENT),
        // The SDKs take every success for all of it.
        Progress::UnderWay => {
            Err(errors::volume_busy("Removing it takes long, and some of it is left; remove it again to go on"))
        }
    }
}

/// List a directory.
async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Response, ApiError> {
    let Parameters { path, depth, .. } = Parameters::parse(query, &["depth"])?;
    let volume = detached(&app, &caller, &id).await?;
    let (mut entries, mut listed) = (Entries { depth, limit: PAGE, after: None }, Vec::new());
    loop {
        let page = app.agent.volume_directory(&volume, &path, &entries).await?;
        listed.extend(page.entries.into_iter().map(EntryStat::from));
        if listed.len() > MAX_ENTRIES {
            let message = format!("There are more than {MAX_ENTRIES} entries; list the directories in it one by one");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        entries.after = page.next;
        if entries.after.is_none() {
            return Ok(JsonBody(listed).into_response());
        }
    }
}

/// Make a directory; with `force`, those above it, too.
async fn make(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Response, ApiError> {
    let Parameters { path, attributes, force, .. } = Parameters::parse(query, &["uid", "gid", "mode", "force"])?;
    let volume = detached(&app, &caller, &id).await?;
    if !force {
        check_parent(&app, &volume, &path).await?;
    }
    let (entry, _) = app.agent.make_volume_directory(&volume, &path, &attributes).await?;
    Ok(response(StatusCode::CREATED, entry))
}

/// 404, unless what `path` is to be in is there.
async fn check_parent(app: &App, volume: &VolumeId, path: &str) -> Result<(), ApiError> {
    match path.rsplit_once('/') {
        None | Some(("", _)) => Ok(()),
        Some((parent, _)) => Ok(app.agent.volume_entry(volume, parent).await.map(drop)?),
    }
}

/// Read a file, or the part of it that is asked for.
async fn read(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Parameters { path, .. } = Parameters::parse(query, &[])?;
    let volume = detached(&app, &caller, &id).await?;
    bytes(&app, &volume, &path, &headers).await
}

/// Write a file, of any length, in place of what is there.
async fn write(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    request: Request,
) -> Result<Response, ApiError> {
    // With or without `force`, what is there is overwritten, as the SDKs say.
    let Parameters { path, attributes, .. } = Parameters::parse(query, &["uid", "gid", "mode", "force"])?;
    let volume = detached(&app, &caller, &id).await?;
    Ok(response(StatusCode::CREATED, stream_to(&app, &volume, &path, attributes, request).await?))
}

fn response(status: StatusCode, entry: VolumeEntry) -> Response {
    (status, JsonBody(EntryStat::from(entry))).into_response()
}
