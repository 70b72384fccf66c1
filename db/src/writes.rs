//! Whether anybody has written to the database, for those who would otherwise read it again and again to see.

use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyPool};

use super::StoreError;
use super::database::Kind;

/// Sees that there were writes, of this process or another, and not what they were.
#[derive(Debug)]
pub struct Writes {
    kind: Kind,
    reader: AnyPool,
    /// SQLite tells each connection of the writes of others only.
    connection: Option<PoolConnection<Any>>,
}

/// Of one moment: as long as nobody has written, the mark of the next is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Writes {
    pub(super) fn new(kind: Kind, reader: AnyPool) -> Self {
        Self { kind, reader, connection: None }
    }

    /// The mark of now, to be compared with others of the same `Writes`.
    ///
    /// # Errors
    ///
    /// Where the database does not say; a server of PostgreSQL may forbid it. The next mark has nothing to do with those before.
    pub async fn mark(&mut self) -> Result<Mark, StoreError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.reader.acquire().await?,
        };
        let mark = match self.kind {
            Kind::Sqlite => {
                let version: i64 = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut *connection).await?;
                version.to_string()
            }
            // Of the whole server: more than is asked for.
            Kind::Postgres => {
                sqlx::query_scalar("SELECT CAST(pg_current_wal_insert_lsn() AS TEXT)")
                    .fetch_one(&mut *connection)
                    .await?
            }
        };
        if matches!(self.kind, Kind::Sqlite) {
            self.connection = Some(connection);
        }
        Ok(Mark(mark))
    }
}

#[cfg(test)]
mod tests {
    use crate::Statement;
    use crate::testing::TestStore;

    #[tokio::test]
    async fn a_mark_stays_the_same_until_somebody_writes() {
        let store = TestStore::new(|database| database).await;
        let mut writes = store.writes();
        let before = writes.mark().await.unwrap();
        sqlx::query("SELECT * FROM teams").fetch_all(store.read()).await.unwrap();
        assert_eq!(writes.mark().await.unwrap(), before);

        let team = "INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ('tem1', 'other', 'basic', 0)";
        assert!(store.changes_row(Statement::new(team)).await.unwrap());
        assert_ne!(writes.mark().await.unwrap(), before);
    }
}
