//! `/volume/…`: the volume that this guest was started for, for those who have no sandbox that has it. The requests are those of
//! [`sandpiper_protocol::volume`], which says what they mean.
//!
//! What is on the volume is somebody else's and may be anything. Every path is looked up by the kernel as if the volume's root
//! were the root of all (`RESOLVE_IN_ROOT`), so no link leads out of it; nothing but a regular file is read, and no open
//! waits; files and directories of any size take memory of a fixed size.

mod change;
mod draft;
mod entry;
mod list;
mod remove;
mod root;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::EXPECT;
use hyper::{Method, Request, StatusCode};
use rustix::fs::OFlags;
use sandpiper_durable::{Interrupted, blocking};
use sandpiper_protocol::agent::ErrorBody;
use sandpiper_protocol::volume::{ChangePath, check_path};
use tokio::time::timeout;

use super::files::{Opened, plain};
use super::http::{Response, json, status};
use super::pour::{PourError, pour};
use super::query::{QueryError, query};
use draft::Draft;
use root::Root;

/// For the rest of the body of a request that has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// For the body of a change, and its length.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CHANGE: usize = 64 * 1024;

/// How long one request removes what is at a path, far less than anybody waits for a response.
const REMOVE_TURN: Duration = Duration::from_secs(10);

const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// Of the user that every sandbox has.
const USER: u32 = 1000;

/// Why a request on a volume fails.
#[derive(Debug, thiserror::Error)]
enum VolumeError {
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("{0}")]
    Conflict(String),
    #[error("There is nothing at this path, or it has no such method")]
    NoRoute,
    #[error("{path}: {source}")]
    Path { path: String, source: io::Error },
    #[error("The request did not arrive whole: {0}")]
    Incomplete(String),
    #[error("The operation was cancelled: {0}")]
    Task(#[from] Interrupted),
}

impl VolumeError {
    fn at<E: Into<io::Error>>(path: &str) -> impl Fn(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| Self::Path { path: path.clone(), source: source.into() }
    }

    fn status_and_code(&self) -> (StatusCode, &'static str) {
        const INVALID: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "invalid_request");
        const CONFLICT: (StatusCode, &str) = (StatusCode::CONFLICT, "conflict");
        match self {
            Self::Invalid(_) | Self::Query(_) | Self::Incomplete(_) => INVALID,
            Self::Conflict(_) => CONFLICT,
            Self::NoRoute => (StatusCode::NOT_FOUND, "not_found"),
            Self::Task(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            Self::Path { source, .. } => match source.raw_os_error().unwrap_or(libc::EINVAL) {
                libc::ENOENT => (StatusCode::NOT_FOUND, "not_found"),
                libc::ENOSPC | libc::EDQUOT => (StatusCode::INSUFFICIENT_STORAGE, "volume_full"),
                libc::EFBIG => (StatusCode::PAYLOAD_TOO_LARGE, "volume_full"),
                // What ext4 says of what it cannot make sense of, and what follows once it has seen that.
                libc::EUCLEAN | libc::EBADMSG | libc::EIO | libc::EROFS | libc::ESHUTDOWN => {
                    (StatusCode::UNPROCESSABLE_ENTITY, "volume_damaged")
                }
                // The last two: a file that nobody may change (`chattr +i`), and one that is being run.
                libc::EEXIST | libc::ENOTEMPTY | libc::EBUSY | libc::EPERM | libc::ETXTBSY => CONFLICT,
                // EACCES, ENXIO: devices, and FIFOs that nobody reads, are not for this.
                libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::EINVAL | libc::ENAMETOOLONG | libc::EXDEV => INVALID,
                libc::EACCES | libc::ENXIO | libc::EMLINK => INVALID,
                _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            },
        }
    }

    fn response(&self) -> Response {
        let (status, code) = self.status_and_code();
        json(status, &ErrorBody { code: code.to_owned(), message: self.to_string() })
    }
}

/// Does what a request says to the volume whose root is the folder `root`.
pub(super) async fn call(request: Request<Incoming>, root: PathBuf) -> Response {
    let waits = request.headers().contains_key(EXPECT);
    let (head, mut body) = request.into_parts();
    match route(&Request::from_parts(head, ()), &mut body, root).await {
        Ok(response) => response,
        Err(error) => {
            // A client that is still sending when the connection closes may never read why.
            if !waits {
                let _ = timeout(DRAIN_TIMEOUT, async { while let Some(Ok(_)) = body.frame().await {} }).await;
            }
            error.response()
        }
    }
}

async fn route(request: &Request<()>, body: &mut Incoming, root: PathBuf) -> Result<Response, VolumeError> {
    let path = path_of(request)?;
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/volume/files") => {
            let opened = on(root, path, read).await?;
            Ok(plain(opened, request.headers()))
        }
        (&Method::PUT, "/volume/files") => put(request, body, root, path).await,
        (&Method::DELETE, "/volume/files") => {
            on(root, path, remove::file).await?;
            Ok(status(StatusCode::NO_CONTENT))
        }
        (&Method::GET, "/volume/directories") => {
            let page = list::Page::of(request)?;
            let listed = on(root, path, move |root, path| list::list(root, path, &page)).await?;
            Ok(json(StatusCode::OK, &listed))
        }
        (&Method::POST, "/volume/directories") => {
            let attributes = Attributes::of(request, FOLDER_MODE)?;
            let (entry, is_new) = on(root, path, move |root, path| change::make_folder(root, path, attributes)).await?;
            Ok(json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &entry))
        }
        (&Method::GET, "/volume/path") => Ok(json(StatusCode::OK, &on(root, path, entry::at).await?)),
        (&Method::PATCH, "/volume/path") => {
            let change = message(body).await?;
            Ok(json(StatusCode::OK, &on(root, path, move |root, path| change::change(root, path, &change)).await?))
        }
        (&Method::DELETE, "/volume/path") => {
            let deadline = Instant::now() + REMOVE_TURN;
            let all = on(root, path, move |root, path| remove::tree(root, path, deadline)).await?;
            Ok(status(if all { StatusCode::NO_CONTENT } else { StatusCode::ACCEPTED }))
        }
        _ => Err(VolumeError::NoRoute),
    }
}

/// Does work on a path of the volume, where it may wait for the disk.
async fn on<T: Send + 'static>(
    root: PathBuf,
    path: String,
    work: impl FnOnce(&Root, &str) -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    blocking(move || work(&Root::open(&root).map_err(VolumeError::at("/"))?, &path)).await
}

fn read(root: &Root, path: &str) -> Result<Opened, VolumeError> {
    let failed = VolumeError::at(path);
    // Without O_NONBLOCK, opening a named pipe would wait for its writer.
    let file = root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(&failed)?;
    Opened::read(File::from(file)).map_err(VolumeError::at(path))
}

async fn put(request: &Request<()>, body: &mut Incoming, root: PathBuf, path: String) -> Result<Response, VolumeError> {
    let attributes = Attributes::of(request, FILE_MODE)?;
    let length = body.size_hint().exact();
    let failed = VolumeError::at(&path);
    // Before the body is read: a client that waits for leave to send it is to hear of a refusal first.
    let draft = on(root, path, move |root, path| Draft::begin(root, path, attributes, length)).await?;
    let pieces = body.into_data_stream().map_err(|error| error.to_string());
    let draft = pour(pieces, draft, Draft::write).await;
    let draft = draft.map_err(|error| match error {
        PourError::Late => VolumeError::Incomplete("it did not go on".to_owned()),
        PourError::Broken(reason) => VolumeError::Incomplete(reason),
        PourError::Write(error) => failed(error),
        PourError::Task(error) => error.into(),
    })?;
    let entry = blocking(move || draft.finish()).await?;
    Ok(json(StatusCode::OK, &entry))
}

/// What a new file or directory is to be like.
#[derive(Debug, Clone, Copy)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Attributes {
    fn of(request: &Request<()>, mode: u32) -> Result<Self, VolumeError> {
        Ok(Self {
            mode: query(request, "mode")?.map_or(Ok(mode), |text| mode_of(&text))?,
            uid: number(request, "uid")?.map_or(Ok(USER), owner_of)?,
            gid: number(request, "gid")?.map_or(Ok(USER), owner_of)?,
        })
    }
}

fn path_of(request: &Request<()>) -> Result<String, VolumeError> {
    let path = query(request, "path")?.ok_or_else(|| VolumeError::Invalid("The query names no `path`".to_owned()))?;
    checked("path", path)
}

fn checked(name: &str, path: String) -> Result<String, VolumeError> {
    match check_path(&path) {
        Ok(()) => Ok(path),
        Err(error) => Err(VolumeError::Invalid(format!("`{name}` {error}"))),
    }
}

/// A mode as octal text.
fn mode_of(text: &str) -> Result<u32, VolumeError> {
    let is_octal = (1..=5).contains(&text.len()) && text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let mode = if is_octal { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| VolumeError::Invalid("`mode` must be octal, from 0000 to 7777".to_owned()))
}

/// The id of a user or a group.
fn owner_of(id: u32) -> Result<u32, VolumeError> {
    // The kernel takes this id for "leave it as it is".
    if id == u32::MAX { Err(VolumeError::Invalid(format!("`uid` and `gid` must be less than {id}"))) } else { Ok(id) }
}

/// A parameter that is a whole number.
fn number<T: std::str::FromStr>(request: &Request<()>, name: &str) -> Result<Option<T>, VolumeError> {
    let parsed = query(request, name)?.map(|text| text.parse());
    parsed.transpose().map_err(|_| VolumeError::Invalid(format!("`{name}` must be a whole number")))
}

async fn message(body: &mut Incoming) -> Result<ChangePath, VolumeError> {
    let whole = timeout(CHANGE_TIMEOUT, Limited::new(body, MAX_CHANGE).collect()).await;
    let whole = whole.map_err(|_| VolumeError::Incomplete("it did not go on".to_owned()))?;
    let whole = whole.map_err(|error| VolumeError::Incomplete(error.to_string()))?;
    serde_json::from_slice(&whole.to_bytes())
        .map_err(|error| VolumeError::Invalid(format!("The change cannot be read: {error}")))
}
