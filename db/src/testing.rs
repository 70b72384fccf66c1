//! Databases for tests: a file of SQLite in a temporary folder, or, where `SANDPIPER_TEST_POSTGRES` is the URL
//! of a PostgreSQL server on which databases may be made, one of those.
//!
//! On PostgreSQL it is a copy of a database that has the tables already: every test's own migrations took longer than most
//! tests. The first test to come makes that one.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::any::AnyConnectOptions;
use sqlx::migrate::Migrator;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};
use tempfile::TempDir;

use crate::{Database, DatabaseLocation, Tx};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// The database that others are copied from.
const TEMPLATE: &str = "migrated";

/// The database, until this is dropped.
#[derive(Debug)]
pub struct TestDatabase {
    /// As in the configuration.
    pub location: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Sqlite { _folder: TempDir },
    Postgres { server: String, name: String },
}

impl TestDatabase {
    /// With today's tables on PostgreSQL; on SQLite whoever opens it makes them.
    pub async fn new() -> Self {
        Self::copied_from(TEMPLATE).await
    }

    /// On PostgreSQL a copy of that database.
    async fn copied_from(template: &str) -> Self {
        let Ok(server) = std::env::var("SANDPIPER_TEST_POSTGRES") else {
            let folder = tempfile::tempdir().unwrap();
            let location = folder.path().join("sandpiper.db").to_str().unwrap().to_owned();
            return Self { location, kind: Kind::Sqlite { _folder: folder } };
        };
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        sqlx::any::install_default_drivers();
        let mut administrator = AnyConnection::connect(&server).await.unwrap();
        if template == TEMPLATE {
            make_template(&server, &mut administrator).await;
        }
        execute(&mut administrator, format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        administrator.close().await.unwrap();
        Self { location: on(&server, &name), kind: Kind::Postgres { server, name } }
    }
}

/// A store on a database of its own, which goes with it.
#[derive(Debug)]
pub struct TestStore<S> {
    store: S,
    /// The same database, for what the store does not do.
    pub database: Database,
    home: TestDatabase,
}

impl<S> TestStore<S> {
    /// A store without any content.
    pub async fn new(make: impl FnOnce(Database) -> S) -> Self {
        let home = TestDatabase::new().await;
        let database = Database::open(&home.location.parse().unwrap()).await.unwrap();
        Self { store: make(database.clone()), database, home }
    }

    /// Where another store finds the same database.
    pub fn location(&self) -> DatabaseLocation {
        self.home.location.parse().unwrap()
    }
}

impl<S> Deref for TestStore<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.store
    }
}

/// A database without any table.
pub async fn database_without_tables() -> TestDatabase {
    TestDatabase::copied_from("template0").await
}

/// Why the database refuses a statement; empty where it does not. A refusal leaves the transaction as it was.
pub async fn refusal(tx: &mut Tx, statement: &'static str) -> String {
    let mut savepoint = Connection::begin(&mut **tx).await.unwrap();
    match sqlx::raw_sql(statement).execute(&mut *savepoint).await {
        Ok(_) => {
            savepoint.commit().await.unwrap();
            String::new()
        }
        Err(error) => {
            savepoint.rollback().await.unwrap();
            error.to_string()
        }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let Kind::Postgres { server, name } = &self.kind else { return };
        let (server, statement) = (server.clone(), format!("DROP DATABASE {name} WITH (FORCE)"));
        // On a thread of its own, for this one may be inside a runtime. What is not dropped ends with the server.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut administrator = AnyConnection::connect(&server).await.unwrap();
                execute(&mut administrator, statement).await;
            });
        });
        let _ = dropped.join();
    }
}

/// Makes the database that others are copied from, unless another test has.
async fn make_template(server: &str, administrator: &mut AnyConnection) {
    execute(administrator, "SELECT pg_advisory_lock(1)".to_owned()).await;
    let made = "SELECT count(*) FROM pg_database WHERE datname = $1 AND NOT datallowconn";
    let made: i64 = sqlx::query_scalar(made).bind(TEMPLATE).fetch_one(&mut *administrator).await.unwrap();
    if made == 0 {
        execute(administrator, format!("DROP DATABASE IF EXISTS {TEMPLATE}")).await;
        execute(administrator, format!("CREATE DATABASE {TEMPLATE} TEMPLATE template0")).await;
        let mut connection = AnyConnection::connect(&on(server, TEMPLATE)).await.unwrap();
        MIGRATIONS.run(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        // From here on nobody connects to it, who would be in the way of its copies: it is complete.
        execute(administrator, format!("ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false")).await;
    }
    execute(administrator, "SELECT pg_advisory_unlock(1)".to_owned()).await;
}

async fn execute(connection: &mut AnyConnection, statement: String) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.unwrap();
}

/// The URL of a database of this server.
fn on(server: &str, name: &str) -> String {
    let mut url = server.parse::<AnyConnectOptions>().unwrap().database_url;
    url.set_path(name);
    url.into()
}
