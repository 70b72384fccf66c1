//! The connections, and how writers keep out of each other's way.
//!
//! Both databases are spoken to through `sqlx::Any`: one SQL text, one set of row types, chosen at run time. It carries
//! texts, 64-bit integers, bytes and their NULLs, and that is all the schema uses. Four things follow:
//!
//! - booleans are `BIGINT` with a CHECK, because a column that SQLite calls `BOOLEAN` cannot be read through it;
//! - `SUM` of integers is written `CAST(SUM(…) AS BIGINT)`, because it is a `NUMERIC` in PostgreSQL;
//! - SQL with parts that vary is a [`crate::Statement`], because sqlx's own builder writes `?` for `$1`;
//! - what SQLite is to do with its file is told it by `PRAGMA`, because only a URL reaches the driver.
//!
//! **SQLite** allows one writer. A transaction that reads first and writes later would fail with "database is locked" when
//! another wrote in between, so writes go through one connection and begin with `BEGIN IMMEDIATE`; reads have connections
//! of their own and never wait (WAL). `synchronous=FULL`: what was acknowledged survives a power cut.
//!
//! **PostgreSQL** allows many, in this process and in others. There are two kinds of transactions:
//!
//! | | [`Database::write`] | [`Database::write_shared`] |
//! |---|---|---|
//! | for | rules over many rows: a quota, a number that counts up, whether a key is taken | everything else |
//! | others of its kind | take turns, in all processes: each holds one advisory lock to its end | run beside it |
//! | what makes it right | what it has read stays so, unless shared writers may change it | row locks, constraints, conditions in the statement that writes |
//!
//! Isolation is READ COMMITTED: a statement sees what others have committed before it began, and an `UPDATE` that had to
//! wait for a row looks at its `WHERE` again. A shared transaction that changes several rows which others also change must
//! take them in one order, by key, or it may deadlock with them; serialised ones never do with each other. On SQLite both kinds
//! are the same.

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::Migrator;
use sqlx::{Any, AnyConnection, AnyPool, Connection, Transaction};
use tokio::sync::watch;

use super::location::DatabaseLocation;
use super::writes::Writes;
use super::{Statement, StoreError, sqlite_log};

/// Connections for reading.
const READERS: u32 = 8;
/// Connections for shared transactions, on PostgreSQL.
const SHARED_WRITERS: u32 = 8;
/// How long a request waits for its turn at a connection: on a busy host others come first, and waiting is better than a
/// refusal.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that answered since then is taken to be still there.
const JUST_NOW: Duration = Duration::from_secs(1);
/// Of PostgreSQL's advisory lock that serialised transactions hold; nothing else in the database has it.
const WRITE_LOCK: i64 = 0x7361_6e64_7069_7065;

/// 5 seconds is how long a statement waits for another process that writes (`sandpiper-api key create` beside the server).
const SQLITE_WRITER: &str = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                             PRAGMA foreign_keys = ON";
/// And a reader keeps up to 16 MiB of the file in memory, eight times what it does by default.
const SQLITE_READER: &str = "PRAGMA busy_timeout = 5000; PRAGMA cache_size = -16384";
/// Likewise; and a process that is gone, or hangs, with a transaction open does not keep others from its rows for long.
const POSTGRES: &str = "SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '60s'; \
                        SET default_transaction_isolation = 'read committed'";

static SQLITE_MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES_MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// A transaction that may write. Where it is dropped, nothing of it was.
#[derive(Debug)]
pub struct Tx {
    transaction: Transaction<'static, Any>,
    written: watch::Sender<()>,
}

/// The connections.
#[derive(Debug, Clone)]
pub struct Database {
    kind: Kind,
    /// One, for transactions that take turns.
    writer: AnyPool,
    /// On SQLite the writer again.
    shared: AnyPool,
    reader: AnyPool,
    /// Told of each write of this process.
    written: watch::Sender<()>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

impl Database {
    /// Connects, and brings the schema up to date. The folder of a file of SQLite is made where missing (mode 0700).
    pub async fn open(location: &DatabaseLocation) -> Result<Self, StoreError> {
        // Before the pools, which would not say why there is no connection.
        let (mut connection, migrations) = connect(location).await?;
        migrations.run(&mut connection).await?;
        connection.close().await?;
        match location {
            DatabaseLocation::Sqlite(path) => {
                // Connections are made once and kept: there is nobody to lose them to.
                let pool = |connections, settings| {
                    pool(connections, settings).min_connections(1).idle_timeout(None).max_lifetime(None)
                };
                let writer = pool(1, SQLITE_WRITER).connect_with(sqlite_options(path, "rw")?).await?;
                sqlite_log::lengthen(&writer, path).await?;
                let reader = pool(READERS, SQLITE_READER).connect_with(sqlite_options(path, "ro")?).await?;
                Ok(Self {
                    kind: Kind::Sqlite,
                    shared: writer.clone(),
                    writer,
                    reader,
                    written: watch::Sender::default(),
                })
            }
            DatabaseLocation::Postgres(options) => {
                let writer = pool(1, POSTGRES).connect_with(options.clone()).await?;
                let shared = pool(SHARED_WRITERS, POSTGRES).connect_with(options.clone()).await?;
                let reader = pool(READERS, POSTGRES).connect_with(options.clone()).await?;
                Ok(Self { kind: Kind::Postgres, writer, shared, reader, written: watch::Sender::default() })
            }
        }
    }

    /// Begins a transaction that takes turns with all others of this kind.
    pub async fn write(&self) -> Result<Tx, StoreError> {
        match self.kind {
            Kind::Sqlite => Ok(self.transaction(self.writer.begin_with("BEGIN IMMEDIATE").await?)),
            Kind::Postgres => {
                let mut tx = self.transaction(self.writer.begin().await?);
                sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(WRITE_LOCK).execute(&mut *tx).await?;
                Ok(tx)
            }
        }
    }

    /// Begins a transaction that may run beside others.
    pub async fn write_shared(&self) -> Result<Tx, StoreError> {
        match self.kind {
            Kind::Sqlite => self.write().await,
            Kind::Postgres => Ok(self.transaction(self.shared.begin().await?)),
        }
    }

    fn transaction(&self, transaction: Transaction<'static, Any>) -> Tx {
        Tx { transaction, written: self.written.clone() }
    }

    /// Carries out one statement beside others; whether it changed a row.
    ///
    /// # Errors
    ///
    /// Where the database does not carry it out.
    pub async fn changes_row(&self, statement: Statement) -> Result<bool, StoreError> {
        // A statement outside of a transaction is one.
        let has_changed = statement.build().execute(&self.shared).await?.rows_affected() > 0;
        if has_changed {
            self.written.send_replace(());
        }
        Ok(has_changed)
    }

    /// For statements that only read.
    pub fn read(&self) -> &AnyPool {
        &self.reader
    }

    /// Tells when anybody has written.
    pub fn writes(&self) -> Writes {
        Writes::new(self.kind, self.reader.clone(), self.written.subscribe())
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(self.read()).await?;
        Ok(())
    }

    /// Closes all connections, after which a file of SQLite is complete without its write-ahead log.
    pub async fn close(&self) {
        self.reader.close().await;
        self.shared.close().await;
        self.writer.close().await;
    }
}

impl Tx {
    /// Makes all of it so.
    ///
    /// # Errors
    ///
    /// Where the database does not; then nothing of it was done, unless the connection broke.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        self.transaction.commit().await?;
        self.written.send_replace(());
        Ok(())
    }

    /// Undoes all of it.
    ///
    /// # Errors
    ///
    /// Where the database does not answer; it is undone all the same.
    pub async fn rollback(self) -> Result<(), sqlx::Error> {
        self.transaction.rollback().await
    }
}

impl Deref for Tx {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.transaction
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.transaction
    }
}

/// One connection, and the migrations that are meant for it.
pub async fn connect(location: &DatabaseLocation) -> Result<(AnyConnection, &'static Migrator), StoreError> {
    sqlx::any::install_default_drivers();
    let connection = match location {
        DatabaseLocation::Sqlite(path) => {
            if let Some(folder) = path.parent() {
                crate::private_files::folder(folder)
                    .map_err(|source| StoreError::Folder { path: folder.to_owned(), source })?;
            }
            let mut connection = AnyConnection::connect_with(&sqlite_options(path, "rwc")?).await?;
            sqlx::raw_sql(SQLITE_WRITER).execute(&mut connection).await?;
            connection
        }
        DatabaseLocation::Postgres(options) => AnyConnection::connect_with(options).await?,
    };
    Ok((connection, migrations(location)))
}

/// One connection to a database that is there.
pub(crate) async fn connect_to_existing(location: &DatabaseLocation) -> Result<AnyConnection, StoreError> {
    sqlx::any::install_default_drivers();
    match location {
        DatabaseLocation::Sqlite(path) if !path.exists() => Err(StoreError::Missing { path: path.clone() }),
        DatabaseLocation::Sqlite(path) => {
            let mut connection = AnyConnection::connect_with(&sqlite_options(path, "rw")?).await?;
            sqlx::raw_sql(SQLITE_READER).execute(&mut connection).await?;
            Ok(connection)
        }
        DatabaseLocation::Postgres(options) => Ok(AnyConnection::connect_with(options).await?),
    }
}

/// The migrations that are meant for this kind of database.
pub(crate) fn migrations(location: &DatabaseLocation) -> &'static Migrator {
    match location {
        DatabaseLocation::Sqlite(_) => &SQLITE_MIGRATIONS,
        DatabaseLocation::Postgres(_) => &POSTGRES_MIGRATIONS,
    }
}

fn pool(connections: u32, settings: &'static str) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_connect(move |connection, _| {
            Box::pin(async move { sqlx::raw_sql(settings).execute(connection).await.map(drop) })
        })
        .test_before_acquire(false)
        .before_acquire(|connection, used| Box::pin(async move { Ok(is_usable(connection, used.idle_for).await) }))
}

/// Whether a connection that has waited for `idle` is still there. To ask costs as much as a read, so what answered just now
/// is not asked.
///
/// When its disk is full, SQLite rolls back by itself; the driver's own rollback fails then, and it takes the connection for
/// one within a transaction for ever.
async fn is_usable(connection: &mut AnyConnection, idle: Duration) -> bool {
    !connection.is_in_transaction() && (idle < JUST_NOW || connection.ping().await.is_ok())
}

/// The file as a URL, in which every byte that could mean something else is escaped.
fn sqlite_options(path: &Path, mode: &str) -> Result<AnyConnectOptions, StoreError> {
    let path = std::path::absolute(path).map_err(|source| StoreError::Folder { path: path.to_owned(), source })?;
    let mut url = "sqlite://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => url.push(char::from(*byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(url, "%{byte:02X}")),
        }
    }
    Ok(format!("{url}?mode={mode}").parse()?)
}

#[cfg(test)]
mod tests {
    use sqlx::AssertSqlSafe;

    use super::*;
    use crate::testing::TestStore;

    type Sample = (Option<i64>, Option<String>, Option<Vec<u8>>);

    #[tokio::test]
    async fn sqlite_keeps_its_promises_on_durability_and_references() {
        let folder = tempfile::tempdir().unwrap();
        let location = DatabaseLocation::Sqlite(folder.path().join("a folder/100%?.db"));
        let database = Database::open(&location).await.unwrap();

        let mut tx = database.write().await.unwrap();
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *tx).await.unwrap();
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *tx).await.unwrap();
        let foreign_keys: i64 = sqlx::query_scalar("PRAGMA foreign_keys").fetch_one(&mut *tx).await.unwrap();

        assert_eq!((journal.as_str(), synchronous, foreign_keys), ("wal", 2, 1));
        assert!(folder.path().join("a folder/100%?.db").exists());
        let refused = sqlx::query("DELETE FROM teams").execute(database.read()).await.unwrap_err();
        assert!(refused.to_string().contains("readonly"), "{refused}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn what_one_process_reads_and_writes_another_cannot_come_between() {
        let store = TestStore::new(|database| database).await;
        let other = Database::open(&store.location()).await.unwrap();
        let mut tx = store.write().await.unwrap();
        sqlx::raw_sql("CREATE TABLE tally (n BIGINT NOT NULL); INSERT INTO tally VALUES (0)")
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();

        let writers = [&*store, &other].into_iter().cycle().take(40).map(|store| {
            let database = store.clone();
            tokio::spawn(async move {
                let mut tx = database.write().await.unwrap();
                let n: i64 = sqlx::query_scalar("SELECT n FROM tally").fetch_one(&mut *tx).await.unwrap();
                sqlx::query("UPDATE tally SET n = $1").bind(n + 1).execute(&mut *tx).await.unwrap();
                tx.commit().await.unwrap();
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }

        let n: i64 = sqlx::query_scalar("SELECT n FROM tally").fetch_one(store.read()).await.unwrap();
        assert_eq!(n, 40);
    }

    #[tokio::test]
    async fn every_value_that_the_schema_uses_comes_back_as_it_went_in() {
        let store = TestStore::new(|database| database).await;
        let mut tx = store.write_shared().await.unwrap();
        let bytes_type = match store.kind {
            Kind::Sqlite => "BLOB",
            Kind::Postgres => "BYTEA",
        };
        let table = format!("CREATE TABLE samples (id BIGINT, text TEXT, bytes {bytes_type})");
        sqlx::raw_sql(AssertSqlSafe(table)).execute(&mut *tx).await.unwrap();
        let samples: [Sample; 3] = [
            (Some(i64::MIN), Some("naïve ☃".to_owned()), Some(vec![0, 255, 7])),
            (Some(i64::MAX), Some(String::new()), Some(Vec::new())),
            (Some(0), None, None),
        ];

        for (id, text, bytes) in &samples {
            let insert = sqlx::query("INSERT INTO samples VALUES ($1, $2, $3)");
            insert.bind(id).bind(text).bind(bytes).execute(&mut *tx).await.unwrap();
        }
        let read: Vec<Sample> = sqlx::query_as("SELECT * FROM samples").fetch_all(&mut *tx).await.unwrap();

        assert_eq!(read, samples);
    }

    #[tokio::test]
    async fn a_full_disk_costs_a_transaction_and_not_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(&DatabaseLocation::Sqlite(folder.path().join("api.db"))).await.unwrap();
        let mut tx = database.write().await.unwrap();
        sqlx::raw_sql("CREATE TABLE filled (bytes BLOB)").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let fill = "INSERT INTO filled VALUES (zeroblob(1000000))";

        let mut tx = database.write().await.unwrap();
        // The rollback by itself comes only when the cache has no room either.
        sqlx::raw_sql("PRAGMA max_page_count = 200; PRAGMA cache_size = 1").execute(&mut *tx).await.unwrap();
        let error = sqlx::raw_sql(fill).execute(&mut *tx).await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        assert!(tx.rollback().await.is_err(), "SQLite did not roll back by itself, so that this shows nothing");

        let mut tx = database.write().await.unwrap();
        sqlx::raw_sql(fill).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Comments, triggers and functions differ, and bytes have another name.
    fn tables(migrations: &Migrator) -> Vec<(i64, String)> {
        let statements = migrations.iter().flat_map(|migration| {
            let lines = migration.sql.as_str().lines().map(|line| line.split("--").next().unwrap_or_default());
            let text = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
            let statements = text.split_inclusive("; ").map(|statement| statement.trim_end_matches([';', ' ']));
            let wanted = ["CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE", "ALTER TABLE", "INSERT"];
            let kept = statements.filter(|statement| wanted.iter().any(|start| statement.starts_with(start)));
            kept.map(|statement| (migration.version, statement.replace("BYTEA", "BLOB"))).collect::<Vec<_>>()
        });
        statements.collect()
    }

    /// As the migration 0006 leaves it.
    fn with_truth_values(statement: &str) -> String {
        let columns = ["runnable", "auto_resume", "allow_public_traffic", "memory"];
        let statement = columns.iter().fold(statement.to_owned(), |statement, column| {
            let integer = format!(" {column} BIGINT NOT NULL CHECK ({column} IN (0, 1))");
            statement.replace(&format!(" {column} BOOLEAN NOT NULL"), &integer)
        });
        statement.replace("NOT auto_resume OR", "auto_resume = 0 OR")
    }

    /// What SQLite cannot be told, so that 0016 edits its schema instead.
    fn is_edit(statement: &str) -> bool {
        [" ADD FOREIGN KEY ", " DROP NOT NULL"].iter().any(|words| statement.contains(words))
    }

    /// How SQLite is told in 0025 that a column may have nothing: by another column in its place.
    fn is_replacement(statement: &str) -> bool {
        ["password_or_null", "ALTER TABLE users DROP COLUMN password"].iter().any(|words| statement.contains(words))
    }

    #[test]
    fn both_databases_get_the_same_tables() {
        let (mut sqlite, mut postgres) = (tables(&SQLITE_MIGRATIONS), tables(&POSTGRES_MIGRATIONS));
        postgres.retain(|(_, statement)| !is_edit(statement));
        sqlite.retain(|(_, statement)| !is_replacement(statement));
        sqlite.iter_mut().for_each(|(_, statement)| *statement = with_truth_values(statement));
        assert!(sqlite.len() > 20, "{sqlite:?}");
        assert_eq!(sqlite, postgres);
    }
}
