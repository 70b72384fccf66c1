//! An empty database for one test: a file of SQLite in a temporary folder, or, where `SANDPIPER_TEST_POSTGRES` is the URL
//! of a PostgreSQL server on which databases may be made, one of those. Shared by the tests inside and outside the crate.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};
use tempfile::TempDir;

/// The database, until this is dropped.
#[derive(Debug)]
pub(crate) struct TestDatabase {
    /// As in the configuration.
    pub(crate) location: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Sqlite { _folder: TempDir },
    Postgres { server: String, name: String },
}

impl TestDatabase {
    pub(crate) async fn new() -> Self {
        let Ok(server) = std::env::var("SANDPIPER_TEST_POSTGRES") else {
            let folder = tempfile::tempdir().unwrap();
            let location = folder.path().join("sandpiper.db").to_str().unwrap().to_owned();
            return Self { location, kind: Kind::Sqlite { _folder: folder } };
        };
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        administer(&server, format!("CREATE DATABASE {name} TEMPLATE template0")).await.unwrap();
        let mut location = server.parse::<AnyConnectOptions>().unwrap().database_url;
        location.set_path(&name);
        Self { location: location.into(), kind: Kind::Postgres { server, name } }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let Kind::Postgres { server, name } = &self.kind else { return };
        let (server, statement) = (server.clone(), format!("DROP DATABASE {name} WITH (FORCE)"));
        // On a thread of its own, for this one may be inside a runtime. What is not dropped ends with the server.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(administer(&server, statement))
        });
        let _ = dropped.join();
    }
}

async fn administer(server: &str, statement: String) -> Result<(), sqlx::Error> {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(server).await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await
}
