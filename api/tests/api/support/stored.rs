//! The database itself, past the API: all that it holds, to look for what must not be in it; and changes that nobody makes
//! but a test.

use sandpiper_db::DatabaseLocation;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};

use super::Host;

impl Host {
    /// Whether `text` stands anywhere in the database.
    pub(crate) async fn stores(&self, text: &str) -> bool {
        let content = match self.config.database() {
            DatabaseLocation::Sqlite(_) => self.files(),
            DatabaseLocation::Postgres(_) => self.rows().await,
        };
        content.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// Carries out statements, as a process of its own would.
    pub(crate) async fn alter(&self, sqlite: &str, postgres: &str) {
        let (location, statements) = match self.config.database() {
            DatabaseLocation::Sqlite(path) => (format!("sqlite://{}", path.display()), sqlite),
            DatabaseLocation::Postgres(_) => (self.test_database.location.clone(), postgres),
        };
        let mut connection = AnyConnection::connect(&location).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// The file and its write-ahead log.
    fn files(&self) -> Vec<u8> {
        let files = std::fs::read_dir(self.config.database().folder().unwrap()).unwrap();
        files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    /// Every row of every table, as PostgreSQL writes it.
    async fn rows(&self) -> Vec<u8> {
        let mut connection = AnyConnection::connect(&self.test_database.location).await.unwrap();
        let tables = "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = 'public'";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut connection).await.unwrap();
        let mut content = String::new();
        for table in tables {
            let rows = AssertSqlSafe(format!("SELECT CAST(t AS TEXT) FROM {table} t"));
            let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(&mut connection).await.unwrap();
            content.extend(rows);
        }
        content.into_bytes()
    }
}
