//! What must survive: teams, keys, the template catalog, sandboxes, checkpoints, idempotency keys, the audit.
//!
//! One file per resource, each a handle over the same [`Database`]. The SQL is written once for SQLite and PostgreSQL:
//! `$1` placeholders, `ON CONFLICT`, `RETURNING`, text ids, integer times. What differs is in two places only, the
//! migrations (a folder per database) and this file.
//!
//! SQLite allows one writer. A transaction that reads first and writes later would fail with "database is locked" when
//! another wrote in between, so writes go through **one** connection and begin with `BEGIN IMMEDIATE`; reads have
//! connections of their own and never wait (WAL). `synchronous=FULL`: what was acknowledged survives a power cut.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, Transaction};

pub mod audit;
pub mod checkpoints;
pub mod idempotency;
pub mod keys;
pub mod sandbox_documents;
pub mod sandbox_list;
pub mod sandbox_network;
pub mod sandbox_row;
pub mod sandboxes;
pub mod teams;
pub mod templates;

pub use audit::AuditLog;
pub use checkpoints::Checkpoints;
pub use idempotency::IdempotencyKeys;
pub use keys::ApiKeys;
pub use sandboxes::Sandboxes;
pub use teams::Teams;
pub use templates::Templates;

/// Connections for reading.
const READERS: u32 = 4;
/// How long a statement waits for another process that writes (`sandpiper-api key create` beside the server).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for its turn at a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("src/store/migrations/sqlite");

/// A transaction that may write.
pub(crate) type Tx = Transaction<'static, Sqlite>;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("Database")]
    Database(#[from] sqlx::Error),
    #[error("Database migration")]
    Migration(#[from] sqlx::migrate::MigrateError),
    #[error("Folder {path:?} of the database cannot be made")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("A stored value cannot be read: {what}")]
    Corrupt { what: String },
}

/// The connections.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    writer: SqlitePool,
    reader: SqlitePool,
}

impl Database {
    /// Begins a transaction that holds the write lock from its first moment.
    pub(crate) async fn write(&self) -> Result<Tx, StoreError> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// For statements that only read.
    pub(crate) fn read(&self) -> &SqlitePool {
        &self.reader
    }
}

/// All handles.
#[derive(Debug, Clone)]
pub struct Store {
    pub teams: Teams,
    pub keys: ApiKeys,
    pub templates: Templates,
    pub sandboxes: Sandboxes,
    pub checkpoints: Checkpoints,
    pub idempotency: IdempotencyKeys,
    pub audit: AuditLog,
    database: Database,
}

impl Store {
    /// Opens the SQLite file at `path`, made together with its folder (mode 0700) where missing, and brings its schema up to
    /// date.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent() {
            crate::private_files::folder(folder)
                .map_err(|source| StoreError::Folder { path: folder.to_owned(), source })?;
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .min_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                .acquire_timeout(ACQUIRE_TIMEOUT)
        };
        let writer = pool(1).connect_with(options.clone()).await?;
        MIGRATIONS.run(&writer).await?;
        let reader = pool(READERS).connect_with(options.create_if_missing(false).read_only(true)).await?;

        let database = Database { writer, reader };
        Ok(Self {
            teams: Teams::new(database.clone()),
            keys: ApiKeys::new(database.clone()),
            templates: Templates::new(database.clone()),
            sandboxes: Sandboxes::new(database.clone()),
            checkpoints: Checkpoints::new(database.clone()),
            idempotency: IdempotencyKeys::new(database.clone()),
            audit: AuditLog::new(database.clone()),
            database,
        })
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(self.database.read()).await?;
        Ok(())
    }

    /// Closes all connections, after which the file is complete without its write-ahead log.
    pub async fn close(&self) {
        self.database.reader.close().await;
        self.database.writer.close().await;
    }
}

/// A time as it is stored.
pub(crate) fn to_ms(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// A stored time.
pub(crate) fn from_ms(ms: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_millisecond(ms).map_err(|_| StoreError::Corrupt { what: format!("time {ms}") })
}

/// A stored count.
pub(crate) fn count<T: TryFrom<i64>>(value: i64) -> Result<T, StoreError> {
    T::try_from(value).map_err(|_| StoreError::Corrupt { what: format!("number {value}") })
}

/// A stored word of a known few.
pub(crate) fn word<T: std::str::FromStr>(value: &str) -> Result<T, StoreError> {
    value.parse().map_err(|_| StoreError::Corrupt { what: format!("word {value:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_database_keeps_its_promises_on_durability_and_references() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("api/sandpiper.db")).await.unwrap();

        let mut tx = store.database.write().await.unwrap();
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *tx).await.unwrap();
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *tx).await.unwrap();
        let foreign_keys: i64 = sqlx::query_scalar("PRAGMA foreign_keys").fetch_one(&mut *tx).await.unwrap();

        assert_eq!((journal.as_str(), synchronous, foreign_keys), ("wal", 2, 1));
    }

    #[tokio::test]
    async fn what_was_committed_is_there_after_the_file_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sandpiper.db");
        let store = Store::open(&path).await.unwrap();
        let made = store.teams.ensure("acme", crate::plan::Plan::Pro, Timestamp::UNIX_EPOCH).await.unwrap();
        // As after a kill: nothing is closed, the log is not merged.
        std::mem::forget(store);

        let reopened = Store::open(&path).await.unwrap();

        assert_eq!(reopened.teams.by_slug("acme").await.unwrap().map(|team| team.id), Some(made.id));
    }

    #[tokio::test]
    async fn the_schema_itself_keeps_the_dead_dead() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("sandpiper.db")).await.unwrap();
        let mut tx = store.database.write().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO teams VALUES ('t', 't', 'pro', 0); \
             INSERT INTO template_versions VALUES ('v', 'base', 1, 'd', 1, 1, 0, TRUE); \
             INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
                 timeout_seconds, on_timeout, auto_resume, exposed_ports, allow_public_traffic, created_at_ms, \
                 error_code, error_message) \
             VALUES ('s', 't', 'failed', 'base', 'v', 1, 1, 1, 1, 'kill', FALSE, '[]', TRUE, 0, 'c', 'm'); \
             INSERT INTO checkpoints (id, team_id, name, state, sandbox_id, template, template_version, memory, cpu, \
                 memory_mb, disk_gib, created_at_ms) \
             VALUES ('c', 't', 'n', 'ready', 's', 'base', 'v', FALSE, 1, 1, 1, 0)",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        let mut refused = async |statement: &'static str| {
            sqlx::raw_sql(statement).execute(&mut *tx).await.err().map(|error| error.to_string()).unwrap_or_default()
        };

        assert!(refused("UPDATE sandboxes SET state = 'stopped'").await.contains("ended stays ended"));
        assert!(refused("UPDATE checkpoints SET state = 'creating'").await.contains("cannot change its state"));
        assert!(refused("UPDATE checkpoints SET state = 'deleted'").await.contains("CHECK"));
        assert_eq!(refused("UPDATE checkpoints SET state = 'deleted', deleted_at_ms = 1").await, "");
        assert!(
            refused("UPDATE checkpoints SET state = 'ready', deleted_at_ms = NULL").await.contains("cannot change")
        );
        assert_eq!(refused("UPDATE sandboxes SET state = 'destroyed', destroyed_at_ms = 1").await, "");
        assert!(refused("UPDATE sandboxes SET state = 'failed', destroyed_at_ms = NULL").await.contains("stays ended"));
    }

    #[tokio::test]
    async fn writers_wait_for_each_other_and_none_fails() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("sandpiper.db")).await.unwrap();

        let writers = (0..32).map(|n| {
            let teams = store.teams.clone();
            tokio::spawn(async move {
                teams.ensure(&format!("team-{n}"), crate::plan::Plan::Basic, Timestamp::UNIX_EPOCH).await
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap().unwrap();
        }

        assert_eq!(store.teams.all().await.unwrap().len(), 32);
    }
}
