//! Why the store did not do what it was asked.

use std::path::PathBuf;
use std::sync::Arc;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("Database")]
    Database(#[source] sqlx::Error),
    /// Nothing was done.
    #[error("All connections to the database were in use for longer than a request waits for one")]
    Busy,
    /// PostgreSQL keeps no text with one; SQLite does.
    #[error("A text has the character NUL")]
    NulCharacter,
    #[error("Database migration")]
    Migration(#[from] sqlx::migrate::MigrateError),
    #[error("Folder {path:?} of the database cannot be made")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("There is no database at {path:?}; the first `sandpiper-api serve` makes it")]
    Missing { path: PathBuf },
    #[error("Copy {path:?} of the database")]
    Copy { path: PathBuf, source: std::io::Error },
    #[error("A stored value cannot be read: {what}")]
    Corrupt { what: String },
    /// Shared by all writes of the batch.
    #[error("Database, at the commit of a batch")]
    Commit(#[source] Arc<sqlx::Error>),
    #[error("The write was abandoned; nothing was changed")]
    Unwritten,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if matches!(error, sqlx::Error::PoolTimedOut) {
            return StoreError::Busy;
        }
        // `character_not_in_repertoire`: what is bound is UTF-8, so it can be nothing else.
        match error.as_database_error().and_then(|refused| refused.code()) {
            Some(code) if code == "22021" => StoreError::NulCharacter,
            _ => StoreError::Database(error),
        }
    }
}
