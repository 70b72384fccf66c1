//! Looking at a database as it is, without bringing it up to date.

use std::path::Path;

use sqlx::{AnyConnection, Connection};

use crate::database::{self, migrations};
use crate::{DatabaseLocation, StoreError};

/// The version that this program brings a database of this kind to: that of its newest migration.
pub fn newest(location: &DatabaseLocation) -> i64 {
    migrations(location).iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// A database that exists, with whatever tables it has.
#[derive(Debug)]
pub struct Untouched {
    connection: AnyConnection,
    is_sqlite: bool,
}

impl Untouched {
    /// Connects.
    ///
    /// # Errors
    ///
    /// There is no such file of SQLite, or the database does not respond.
    pub async fn open(location: &DatabaseLocation) -> Result<Self, StoreError> {
        let connection = database::connect_to_existing(location).await?;
        Ok(Self { connection, is_sqlite: matches!(location, DatabaseLocation::Sqlite(_)) })
    }

    /// The version of its newest migration; `None` if it has no tables of ours.
    ///
    /// # Errors
    ///
    /// The database does not respond.
    pub async fn version(&mut self) -> Result<Option<i64>, StoreError> {
        let table = if self.is_sqlite {
            "SELECT COUNT(*) FROM sqlite_master WHERE name = '_sqlx_migrations'"
        } else {
            "SELECT COUNT(*) FROM pg_catalog.pg_class WHERE oid = to_regclass('_sqlx_migrations')"
        };
        let tables: i64 = sqlx::query_scalar(table).fetch_one(&mut self.connection).await?;
        if tables == 0 {
            return Ok(None);
        }
        Ok(sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(&mut self.connection).await?)
    }

    /// Copies a file of SQLite, as it is at one moment, to the new file `copy`; whoever reads or writes goes on meanwhile. The copy
    /// is durable.
    ///
    /// # Errors
    ///
    /// The database is damaged, is none of SQLite, or the copy cannot be written.
    pub async fn copy_to(&mut self, copy: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::Copy { path: copy.to_owned(), source };
        let text = copy.to_str().ok_or_else(|| failed(std::io::ErrorKind::InvalidFilename.into()))?;
        sqlx::query("VACUUM INTO $1").bind(text.to_owned()).execute(&mut self.connection).await?;
        std::fs::File::open(copy).and_then(|file| file.sync_all()).map_err(failed)
    }

    /// Disconnects.
    ///
    /// # Errors
    ///
    /// The database does not respond.
    pub async fn close(self) -> Result<(), StoreError> {
        Ok(self.connection.close().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::testing::{TestDatabase, database_without_tables};

    #[tokio::test]
    async fn a_database_is_as_new_as_the_migrations_that_it_has_seen() {
        let home = database_without_tables().await;
        let location: DatabaseLocation = home.location.parse().unwrap();
        if let DatabaseLocation::Sqlite(path) = &location {
            let missing = Untouched::open(&location).await.unwrap_err();
            assert!(matches!(missing, StoreError::Missing { .. }), "{missing}");
            assert!(!path.exists(), "nothing is made");
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(Untouched::open(&location).await.unwrap().version().await.unwrap(), None);

        Database::open(&location).await.unwrap().close().await;

        let mut untouched = Untouched::open(&location).await.unwrap();
        assert_eq!(untouched.version().await.unwrap(), Some(newest(&location)));
        untouched.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_copy_has_what_was_committed_and_no_more() {
        let home = TestDatabase::new().await;
        let location: DatabaseLocation = home.location.parse().unwrap();
        let DatabaseLocation::Sqlite(path) = &location else { return };
        let database = Database::open(&location).await.unwrap();
        let mut tx = database.write().await.unwrap();
        sqlx::raw_sql("CREATE TABLE kept (n BIGINT); INSERT INTO kept VALUES (7)").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let mut open = database.write().await.unwrap();
        sqlx::raw_sql("INSERT INTO kept VALUES (8)").execute(&mut *open).await.unwrap();

        let copy = path.with_file_name("copy.db");
        Untouched::open(&location).await.unwrap().copy_to(&copy).await.unwrap();

        let copied = Database::open(&DatabaseLocation::Sqlite(copy.clone())).await.unwrap();
        let kept: Vec<i64> = sqlx::query_scalar("SELECT n FROM kept").fetch_all(copied.read()).await.unwrap();
        assert_eq!(kept, [7]);
        let again = Untouched::open(&location).await.unwrap().copy_to(&copy).await.unwrap_err();
        assert!(again.to_string().contains("Database"), "{again}");
    }
}
