//! `GET` and `POST /files`: one file out, files in, as the user that the request names. `POST /files/compose`: one of several.
//!
//! A path is taken as a shell would take it: `~` and relative paths count from the user's home. Every access is checked by
//! the kernel as that user's ([`as_user`](super::credentials::as_user)). Contents are streamed in bounded pieces both ways.

mod buffers;
mod compose;
mod condition;
mod download;
mod draft;
mod encoding;
mod form;
mod metadata;
mod path;
mod range;
mod upload;

use std::io;
use std::path::Path;
use std::sync::Arc;

use hyper::{Request, StatusCode};
use sandpiper_durable::Interrupted;
use sandpiper_protocol::process::WrittenFile;

pub(super) use compose::compose;
pub(super) use download::{Opened, download, plain};
#[cfg(fuzzing)]
pub(super) use form::Form;
pub(super) use metadata::ATTRIBUTE;
pub(super) use path::resolve;
pub(super) use upload::upload;

use self::metadata::Metadata;

use super::http::{Response, basic_user, error};
use super::pour::{PIECE, PIECE_TIMEOUT};
use super::query::{QueryError, query};
use super::{App, Settings};
use crate::users::{LookupError, User};

/// Why a file request fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{0}")]
    Request(String),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("{0}")]
    Media(String),
    #[error("The file can be sent as it is, or compressed with gzip, and the request takes neither")]
    NotAcceptable,
    #[error("The file is in another state than the one that the request is for")]
    Condition,
    #[error(transparent)]
    User(#[from] LookupError),
    #[error("{path}: {source}")]
    Path { path: String, source: io::Error },
    #[error("The request did not arrive whole: {0}")]
    Incomplete(String),
    #[error("The operation was cancelled: {0}")]
    Task(#[from] Interrupted),
}

impl FileError {
    fn path(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.display().to_string();
        move |source| Self::Path { path: path.clone(), source }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) | Self::Query(_) | Self::Incomplete(_) => StatusCode::BAD_REQUEST,
            Self::Media(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::Condition => StatusCode::PRECONDITION_FAILED,
            Self::User(LookupError::Unknown(_)) => StatusCode::UNAUTHORIZED,
            Self::Path { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StatusCode::FORBIDDEN,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
                io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidFilename => StatusCode::BAD_REQUEST,
                io::ErrorKind::UnexpectedEof => StatusCode::CONFLICT,
                // A loop of symbolic links, or a link where none is followed, has no stable kind.
                _ if source.raw_os_error() == Some(libc::ELOOP) => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::User(LookupError::Database(_)) | Self::Task(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn response(&self) -> Response {
        error(self.status(), &self.to_string())
    }
}

/// The name of the user that a request acts as.
///
/// Where the URL is signed, it is the one that was signed with it, or the default one: whoever was given the URL is not to
/// choose another by a header field that no signature covers.
fn user_name<B>(request: &Request<B>, app: &Arc<App>) -> Result<String, FileError> {
    let is_signed = query(request, "signature")?.is_some();
    let from_field = || basic_user(request.headers()).filter(|_| !is_signed);
    Ok(query(request, "username")?.or_else(from_field).unwrap_or_else(|| app.settings().default_user))
}

fn late() -> FileError {
    FileError::Incomplete("it did not go on".into())
}

/// What is said of a file that was written.
fn written(path: &Path, metadata: Metadata) -> WrittenFile {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = path.to_string_lossy().into_owned();
    WrittenFile { path, name, kind: "file".to_owned(), metadata: metadata.into_map() }
}

fn lookup(name: &str, settings: &Settings) -> Result<User, FileError> {
    Ok(settings.user(name)?)
}
