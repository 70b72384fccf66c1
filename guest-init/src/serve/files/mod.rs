//! `GET` and `POST /files`: one file out, files in, as the user that the request names.
//!
//! A path is taken as a shell would take it: `~` and relative paths count from the user's home. Every access is checked by
//! the kernel as that user's ([`as_user`](super::credentials::as_user)). Contents are streamed in bounded pieces both ways.

mod download;
mod path;
mod upload;

use std::io;
use std::sync::Arc;

use hyper::{Request, StatusCode};

pub(super) use download::download;
pub(super) use path::resolve;
#[cfg(fuzzing)]
pub(super) use upload::Form;
pub(super) use upload::upload;

use super::App;
use super::http::{Response, basic_user, error, query};
use crate::users::{self, LookupError, User};

/// Bytes that are read or written at once, and held in memory for each transfer.
const PIECE: usize = 256 * 1024;

/// Why a file request fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{0}")]
    Request(String),
    #[error("{0}")]
    Media(String),
    #[error(transparent)]
    User(#[from] LookupError),
    #[error("{path}: {source}")]
    Path { path: String, source: io::Error },
    #[error("The request did not arrive whole: {0}")]
    Incomplete(String),
    #[error("The operation was cancelled: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl FileError {
    fn path(path: &std::path::Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.display().to_string();
        move |source| Self::Path { path: path.clone(), source }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) | Self::Incomplete(_) => StatusCode::BAD_REQUEST,
            Self::Media(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::User(LookupError::Unknown(_)) => StatusCode::UNAUTHORIZED,
            Self::Path { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StatusCode::FORBIDDEN,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
                io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidFilename => StatusCode::BAD_REQUEST,
                // A loop of symbolic links has no stable kind.
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
fn user_name<B>(request: &Request<B>, app: &Arc<App>) -> String {
    query(request, "username").or_else(|| basic_user(request.headers())).unwrap_or_else(|| app.settings().default_user)
}

/// Does work that may wait for a disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    tokio::task::spawn_blocking(work).await?
}

fn lookup(name: &str) -> Result<User, FileError> {
    Ok(users::lookup(name)?)
}
