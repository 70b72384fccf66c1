//! `POST /files`.
//!
//! A file is written under a temporary name beside its target and takes its place when it is whole: an upload that
//! breaks off, or fills the disk, leaves what was there. Where the user may write the file but not its folder, it is
//! written in place.

use std::error::Error;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use hyper::{Request, StatusCode};
use multer::{Field, Multipart};
use sandpiper_protocol::process::WrittenFile;
use tokio::time::timeout;

use super::{FileError, PIECE, blocking, lookup, resolve, user_name};
use crate::serve::App;
use crate::serve::credentials::as_user;
use crate::serve::http::{Response, json, query};
use crate::users::User;

/// For the next piece of a body to arrive.
const PIECE_TIMEOUT: Duration = Duration::from_secs(120);

/// For the rest of the body of an upload that has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The form field that files are in.
const FIELD: &str = "file";

/// Mode of a new folder; the mask takes what it takes.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Tells the temporary files of this process apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Takes one file as the body, or several as a form.
pub(in crate::serve) async fn upload(request: Request<Incoming>, app: &Arc<App>) -> Response {
    let waits = request.headers().contains_key(EXPECT);
    let (head, mut body) = request.into_parts();
    match try_upload(&Request::from_parts(head, ()), &mut body, app).await {
        Ok(written) => json(StatusCode::OK, &written),
        Err(error) => {
            // A client that is still sending when the connection closes may never read why.
            if !waits {
                let _ = timeout(DRAIN_TIMEOUT, async { while let Some(Ok(_)) = body.frame().await {} }).await;
            }
            error.response()
        }
    }
}

async fn try_upload(request: &Request<()>, body: &mut Incoming, app: &Arc<App>) -> Result<Vec<WrittenFile>, FileError> {
    let path = query(request, "path");
    let name = user_name(request, app);
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if header(CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(FileError::Media("Compressed uploads are not supported: send the file as it is".into()));
    }
    let content_type = header(CONTENT_TYPE).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).ok();
    let is_bytes = content_type.split(';').next().is_some_and(|kind| kind.trim() == "application/octet-stream");
    let user = blocking(move || lookup(&name)).await?;
    match (boundary, path) {
        (Some(boundary), path) => {
            let mut form = Form::new(body, boundary, path);
            let mut written = Vec::new();
            while let Some((field, target)) = form.next().await? {
                written.push(receive(field.map_err(|error| error.to_string()), &target, user.clone()).await?);
            }
            Ok(written)
        }
        (None, Some(path)) if is_bytes => {
            let body = body.into_data_stream().map_err(|error| error.to_string());
            Ok(vec![receive(body, &path, user).await?])
        }
        (None, None) if is_bytes => Err(FileError::Request("The query names no path".into())),
        _ => Err(FileError::Request("Send a form (multipart/form-data) or application/octet-stream".into())),
    }
}

/// The files of a form: its fields called `file`, of which there must be one.
pub(in crate::serve) struct Form<'a> {
    fields: Multipart<'a>,
    /// Where the first file goes; others, and the first without it, say it in their file name.
    path: Option<String>,
    is_empty: bool,
}

impl<'a> Form<'a> {
    pub(in crate::serve) fn new<B>(body: B, boundary: String, path: Option<String>) -> Self
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>> + 'a> + Send + Unpin + 'a,
    {
        Self { fields: Multipart::new(body.into_data_stream(), boundary), path, is_empty: true }
    }

    /// The next file and where it goes; `None` at the end. The one before must have been read, or dropped.
    pub(in crate::serve) async fn next(&mut self) -> Result<Option<(Field<'a>, String)>, FileError> {
        let incomplete = |error: multer::Error| FileError::Incomplete(error.to_string());
        loop {
            let next = timeout(PIECE_TIMEOUT, self.fields.next_field()).await;
            let Some(field) = next.map_err(|_| late())?.map_err(incomplete)? else { break };
            if field.name() != Some(FIELD) {
                continue;
            }
            self.is_empty = false;
            let target = self.path.take().or_else(|| field.file_name().map(str::to_owned));
            let target = target.filter(|target| !target.is_empty());
            let target = target.ok_or_else(|| FileError::Request("A file of the form has no name".into()))?;
            return Ok(Some((field, target)));
        }
        match self.is_empty {
            true => Err(FileError::Request(format!("The form has no field called {FIELD:?}"))),
            false => Ok(None),
        }
    }
}

fn late() -> FileError {
    FileError::Incomplete("it did not go on".into())
}

/// Writes one file.
async fn receive(
    body: impl Stream<Item = Result<Bytes, String>>,
    path: &str,
    user: User,
) -> Result<WrittenFile, FileError> {
    let path = resolve(path, &user.home);
    let failed = FileError::path(&path);
    let mut upload = blocking({
        let (path, failed) = (path.clone(), FileError::path(&path));
        move || Upload::create(path, user).map_err(failed)
    })
    .await?;
    let mut body = std::pin::pin!(body);
    let mut held = Vec::new();
    loop {
        let piece = timeout(PIECE_TIMEOUT, body.next()).await.map_err(|_| late())?;
        let is_last = piece.is_none();
        if let Some(piece) = piece {
            held.extend_from_slice(&piece.map_err(FileError::Incomplete)?);
        }
        if is_last || held.len() >= PIECE {
            let bytes = std::mem::take(&mut held);
            let result;
            (upload, result) = tokio::task::spawn_blocking(move || {
                let result = upload.write(&bytes);
                (upload, result)
            })
            .await?;
            result.map_err(&failed)?;
        }
        if is_last {
            break;
        }
    }
    blocking({
        let failed = FileError::path(&path);
        move || upload.finish().map_err(failed)
    })
    .await?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(WrittenFile { path: path.to_string_lossy().into_owned(), name, kind: "file".to_owned() })
}

/// A file that is being written. Dropped before [`Self::finish`], it leaves nothing behind.
#[derive(Debug)]
struct Upload {
    user: User,
    file: File,
    /// Where the bytes are until they are whole; `None` if they go straight to the target.
    temporary: Option<PathBuf>,
    target: PathBuf,
}

impl Upload {
    /// Makes the parent folders and the temporary file.
    fn create(path: PathBuf, user: User) -> io::Result<Self> {
        let (file, temporary, target) = as_user(&user, || begin(path))??;
        Ok(Self { user, file, temporary, target })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        as_user(&self.user, || self.file.write_all(bytes))?
    }

    /// Puts the file in its place.
    fn finish(mut self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            as_user(&self.user, || fs::rename(temporary, &self.target))??;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Already on the way out of an error, and the folder may be gone with the file.
            let _ = as_user(&self.user, || fs::remove_file(temporary));
        }
    }
}

/// Opens what the bytes of `path` are written to: the file, its temporary name if it has one, and its final one.
fn begin(path: PathBuf) -> io::Result<(File, Option<PathBuf>, PathBuf)> {
    // What a link leads to is replaced, not the link.
    let target = match fs::canonicalize(&path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path,
        Err(error) => return Err(error),
    };
    let existing = match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&target) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mode = match &existing {
        Some(file) => {
            let meta = file.metadata()?;
            if !meta.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            meta.permissions().mode() & 0o777
        }
        None => FILE_MODE,
    };
    let folder = target.parent().ok_or(io::ErrorKind::IsADirectory)?;
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let temporary = temporary_name(folder);
    match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
        Ok(file) => {
            // Past the mask, which would narrow the mode of a file that exists.
            file.set_permissions(Permissions::from_mode(mode))?;
            Ok((file, Some(temporary), target))
        }
        Err(error) => match existing {
            Some(file) if error.kind() == io::ErrorKind::PermissionDenied => {
                file.set_len(0)?;
                Ok((file, None, target))
            }
            _ => Err(error),
        },
    }
}

/// A name in `folder` that is hidden and of no fixed length, so that a long target name is no obstacle.
fn temporary_name(folder: &Path) -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".sandpiper-upload-{}-{number}", std::process::id()))
}
