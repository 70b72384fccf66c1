//! The lock of the one process that serves a file of SQLite.
//!
//! Two would not spoil the file, but each would take what the other is at work on for abandoned. The lock is on a file
//! beside it: closing any descriptor of the database's own file would end SQLite's locks on it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Why this process may not serve the file.
#[derive(Debug, thiserror::Error)]
pub enum SoleError {
    #[error(
        "Another sandpiper-api serves {path:?}: a file of SQLite has one process; end it, or use PostgreSQL, which any \
         number may serve"
    )]
    Taken { path: PathBuf },
    #[error("Lock file {path:?}")]
    Io { path: PathBuf, source: io::Error },
}

/// Holds the lock until it is dropped; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub struct Sole {
    _lock: File,
}

impl Sole {
    /// Takes the lock for the database at `path`, whose folder exists.
    pub fn take(path: &Path) -> Result<Self, SoleError> {
        let mut name = OsString::from(path);
        name.push(".serving");
        let lock_path = PathBuf::from(name);
        let io = |source| SoleError::Io { path: lock_path.clone(), source };
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock_path).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(SoleError::Taken { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }
}
