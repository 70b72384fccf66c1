//! `POST /files/compose`: makes one file of several, in order, and removes them.
//!
//! So a client may upload the parts of a large file side by side. The new file takes its place when it is whole, and only
//! then are the parts removed: until then nothing has changed. A part is removed only while its name still means the file
//! that was read, so one that another has put there since stays, the composed file itself above all. Parts are not
//! reached through a link in their last place, which would be removed instead of what was read.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use rustix::fs::{AtFlags, OFlags, StatxFlags, statx, unlinkat};
use rustix::io::Errno;
use sandpiper_durable::blocking;
use sandpiper_protocol::process::WrittenFile;
use serde::Deserialize;
use tokio::time::timeout;

use super::draft::{Draft, Place};
use super::metadata::Metadata;
use super::{FileError, late, lookup, resolve, user_name, written};
use crate::serve::App;
use crate::serve::credentials::as_user;
use crate::serve::http::{Response, json};
use crate::serve::open::{open, parent};
use crate::users::User;

const MAX_SOURCES: usize = 10_000;

/// Bytes of a request's body.
const MAX_BODY: usize = 8 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that are copied before it is looked whether the client is still there.
const STEP: u64 = 64 * 1024 * 1024;

#[derive(Deserialize)]
struct Compose {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

/// Composes a file.
pub(in crate::serve) async fn compose(request: Request<Incoming>, app: &Arc<App>) -> Response {
    match try_compose(request, app).await {
        Ok(written) => json(StatusCode::OK, &written),
        Err(error) => error.response(),
    }
}

async fn try_compose(request: Request<Incoming>, app: &Arc<App>) -> Result<WrittenFile, FileError> {
    let metadata = Metadata::of(request.headers())?;
    let name = user_name(&request, app)?;
    let Compose { source_paths, destination, username } = read(request.into_body()).await?;
    if source_paths.is_empty() || source_paths.len() > MAX_SOURCES {
        let message = format!("source_paths must name 1 to {MAX_SOURCES} files, not {}", source_paths.len());
        return Err(FileError::Request(message));
    }
    if destination.is_empty() {
        return Err(FileError::Request("The request names no destination".into()));
    }
    let name = username.filter(|name| !name.is_empty()).unwrap_or(name);
    let settings = app.settings();
    let user = blocking(move || lookup(&name, &settings)).await?;
    let path = resolve(&destination, &user);
    let mut draft = blocking({
        let (path, user, metadata, failed) = (path.clone(), user.clone(), metadata.clone(), FileError::path(&path));
        move || Draft::create(path, user, &metadata, Place::Beside).map_err(failed)
    })
    .await?;
    let mut read = Vec::with_capacity(source_paths.len());
    for source in source_paths {
        let source = resolve(&source, &user);
        let mut source = blocking({
            let user = user.clone();
            move || Source::open(source, &user)
        })
        .await?;
        while source.left > 0 {
            (draft, source) = blocking(move || {
                source.copy(&mut draft)?;
                Ok::<_, FileError>((draft, source))
            })
            .await?;
        }
        read.push(source.name);
    }
    blocking({
        let failed = FileError::path(&path);
        move || {
            draft.finish().map_err(&failed)?;
            as_user(&user, || read.iter().try_for_each(Name::remove)).map_err(failed)?
        }
    })
    .await?;
    Ok(written(&path, metadata))
}

async fn read(body: Incoming) -> Result<Compose, FileError> {
    let body = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await.map_err(|_| late())?;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => FileError::Request(format!("The request is over the limit of {MAX_BODY} bytes")),
        false => FileError::Incomplete("it broke off".into()),
    })?;
    serde_json::from_slice(&body.to_bytes())
        .map_err(|error| FileError::Request(format!("The request cannot be read: {error}")))
}

/// A part that is being read.
struct Source {
    file: File,
    /// Bytes to copy yet, of those that it had when it was opened.
    left: u64,
    name: Name,
}

/// The name of a part, and the file that it meant.
struct Name {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Source {
    fn open(path: PathBuf, user: &User) -> Result<Self, FileError> {
        let failed = FileError::path(&path);
        let opened = as_user(user, || {
            let (folder, name) = parent(&path)?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = File::from(open(folder, name, flags)?);
            let meta = file.metadata()?;
            if !meta.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            Ok((file, meta))
        });
        let (file, meta) = opened.and_then(|opened| opened).map_err(failed)?;
        Ok(Self { file, left: meta.len(), name: Name { path, device: meta.dev(), inode: meta.ino() } })
    }

    /// Copies a piece.
    fn copy(&mut self, draft: &mut Draft) -> Result<(), FileError> {
        let failed = FileError::path(&self.name.path);
        let copied = draft.append(&self.file, self.left.min(STEP)).map_err(&failed)?;
        if copied == 0 {
            let changed = io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read");
            return Err(failed(changed));
        }
        self.left = self.left.saturating_sub(copied);
        Ok(())
    }
}

impl Name {
    /// Removes the name, if it means the same file still.
    fn remove(&self) -> Result<(), FileError> {
        let removed = || -> io::Result<()> {
            let (folder, name) = parent(&self.path)?;
            let stat = statx(&folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO)?;
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            if (device, stat.stx_ino) == (self.device, self.inode) {
                unlinkat(&folder, name, AtFlags::empty())?;
            }
            Ok(())
        };
        match removed() {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
            Err(error) => {
                let message = format!("the file is composed, but this part of it cannot be removed: {error}");
                Err(FileError::path(&self.path)(io::Error::new(error.kind(), message)))
            }
            Ok(()) => Ok(()),
        }
    }
}
