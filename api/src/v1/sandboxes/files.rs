//! What is in a sandbox that runs, to be looked at: `GET /v1/sandboxes/{id}/files`, `…/directories`, `…/path`, each with `?path=`
//!
//! Asked of its data plane, as the sandbox's default user, for callers who may read and get no session. Looking wakes nobody.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use jiff::Timestamp;
use sandpiper_client::{ClientError, DataPlane};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::filesystem::{EntryInfo, FileType};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{check_runs, owned};
use crate::auth::{Caller, ReadAccess};
use crate::errors;
use crate::state::App;
use crate::v1::page::{List, Paging};

/// Something in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxEntry)]
pub struct EntryBody {
    /// Absolute. A byte that is no UTF-8 is shown as U+FFFD, and the path then leads to nothing.
    #[schema(example = "/home/user/app.py")]
    pub path: String,
    pub kind: KindBody,
    /// Bytes.
    pub size: u64,
    /// Octal text of four digits; of a symbolic link, that of what it leads to.
    #[schema(example = "0644")]
    pub mode: String,
    /// Name of the user, or its number where it has none.
    #[schema(example = "user")]
    pub owner: String,
    #[schema(example = "user")]
    pub group: String,
    /// Absent where the sandbox says a time that there is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Timestamp>,
    /// Where a symbolic link leads to in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What something in a sandbox is; a symbolic link is what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SandboxEntryKind)]
pub enum KindBody {
    File,
    Directory,
    /// One that leads nowhere.
    Symlink,
    /// A device, a FIFO or a socket.
    Other,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxDirectory)]
pub struct DirectoryBody {
    /// By path.
    pub entries: Vec<EntryBody>,
    /// For the next page, with the same path; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

impl From<EntryInfo> for EntryBody {
    fn from(entry: EntryInfo) -> Self {
        Self {
            path: entry.path,
            kind: match entry.kind {
                FileType::File => KindBody::File,
                FileType::Directory => KindBody::Directory,
                FileType::Symlink => KindBody::Symlink,
                FileType::Unspecified => KindBody::Other,
            },
            size: u64::try_from(entry.size).unwrap_or_default(),
            mode: format!("{:04o}", entry.mode & 0o7777),
            owner: entry.owner,
            group: entry.group,
            modified_at: entry.modified_time.parse().ok(),
            target: entry.symlink_target,
        }
    }
}

/// Read a file of a sandbox
///
/// As its default user. Only of a sandbox that runs: one that is stopped is not resumed by it, but refused with 409
/// `invalid_state`. Ranges, conditions, and all that changes something: the data plane, with a session.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files",
    operation_id = "read_sandbox_file",
    tag = "files",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("path" = String, Query, description = "Absolute, or from the default user's home", example = "app.py"),
    ),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"))
)]
pub async fn read(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let path = only_path(pairs)?;
    let data_plane = data_plane(&app, &caller, &id).await?;
    let busy = || errors::too_many("The team reads too many files at a time; wait for one to end");
    let place = app.file_reads.enter(&caller.team.id).ok_or_else(busy)?;
    let download = data_plane.download(&path, None).await.map_err(refused)?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, download.size().to_string()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    // An error ends it early, which the client sees by the length.
    let pieces = stream::try_unfold((download, place), async |(mut download, place)| {
        Ok::<_, ClientError>(download.next().await?.map(|piece| (piece, (download, place))))
    });
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// List a directory of a sandbox
///
/// As its default user, page by page. Only of a sandbox that runs, as for its files.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/directories",
    operation_id = "list_sandbox_directory",
    tag = "files",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("path" = String, Query, description = "Absolute, or from the default user's home, which is `~`", example = "~"),
        ("limit" = Option<u32>, Query, description = "Entries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same path"),
    ),
    responses((status = 200, description = "A page", body = DirectoryBody))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<DirectoryBody>, ApiError> {
    let (mut paging, mut rest) = (Paging::default(), Vec::new());
    for (name, value) in pairs {
        match name.as_str() {
            "limit" | "next_token" => drop(paging.take(&name, &value)?),
            _ => rest.push((name, value)),
        }
    }
    let path = only_path(rest)?;
    let list = List::of_keys(&json!(["directory", id, path]));
    // Before a sandbox is asked.
    paging.after(&list)?;
    let data_plane = data_plane(&app, &caller, &id).await?;
    let mut entries = data_plane.list_dir(&path, 1, None).await.map_err(refused)?;
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let entries = entries.into_iter().map(|entry| (entry.path.clone(), EntryBody::from(entry)));
    let (entries, next_token) = paging.cut(&list, entries)?;
    Ok(Json(DirectoryBody { entries, next_token }))
}

/// Show what is at a path of a sandbox
///
/// As its default user. Only of a sandbox that runs, as for its files.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/path",
    operation_id = "show_sandbox_path",
    tag = "files",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("path" = String, Query, description = "Absolute, or from the default user's home, which is `~`", example = "app.py"),
    ),
    responses((status = 200, description = "What is there", body = EntryBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<EntryBody>, ApiError> {
    let path = only_path(pairs)?;
    let data_plane = data_plane(&app, &caller, &id).await?;
    Ok(Json(data_plane.stat(&path, None).await.map_err(refused)?.into()))
}

/// The one parameter of a request that takes only `path`.
fn only_path(pairs: Vec<(String, String)>) -> Result<String, ApiError> {
    let mut path = None;
    for (name, value) in pairs {
        match name.as_str() {
            "path" if path.is_none() => path = Some(value),
            "path" => return Err(ApiError::invalid_field("path", "is given twice")),
            _ => return Err(unknown(&name)),
        }
    }
    path.ok_or_else(|| ApiError::invalid_field("path", "is required"))
}

/// The data plane of the caller's sandbox, which runs by the word of its host: a request to one that was paused a moment ago
/// might wake it.
async fn data_plane(app: &App, caller: &Caller, id: &str) -> Result<DataPlane, ApiError> {
    let row = owned(app, caller, id).await?;
    check_runs(&row)?;
    let agent = app.agent.on_behalf_of(&caller.key_id);
    let gone = |error: crate::agent_client::AgentError| {
        if error.is_not_found() { errors::no_sandbox(id) } else { error.into() }
    };
    if !matches!(agent.show(id).await.map_err(gone)?.state, SandboxState::Ready | SandboxState::Checkpointing) {
        return Err(ApiError::invalid_state(format!("{id} does not run; resume it first")));
    }
    Ok(app.data_planes.of(agent.session(id).await.map_err(gone)?))
}

/// What a sandbox refuses, and that it does not respond.
fn refused(error: ClientError) -> ApiError {
    let ClientError::Refused { status, message, .. } = &error else { return silent(&error) };
    match status {
        400 | 401 => ApiError::invalid(message),
        403 => ApiError::new(StatusCode::FORBIDDEN, "permission_denied", message),
        404 => ApiError::not_found(message),
        409 => ApiError::conflict(message),
        429 => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "directory_too_large", message),
        _ => silent(&error),
    }
}

fn silent(error: &ClientError) -> ApiError {
    let message = "The sandbox's data plane does not respond as it should; try again in a few seconds";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "data_plane_unavailable", message)
        .retry_after(5)
        .because(chain(error))
}
