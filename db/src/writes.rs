//! Whether anybody has written to the database, for those who would otherwise read it again and again to see.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyPool};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::StoreError;
use super::database::Kind;

/// Sees that there were writes, of this process or another, and not what they were.
#[derive(Debug)]
pub struct Writes {
    kind: Kind,
    reader: AnyPool,
    /// SQLite tells each connection of the writes of others only.
    connection: Option<PoolConnection<Any>>,
    /// Of this process.
    own: watch::Receiver<()>,
}

/// Of one moment: as long as nobody has written, the mark of the next is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Writes {
    pub(super) fn new(kind: Kind, reader: AnyPool, own: watch::Receiver<()>) -> Self {
        Self { kind, reader, connection: None, own }
    }

    /// Returns when somebody may have written: at once if this process has, otherwise now and then; and not before `period` has
    /// passed.
    pub async fn wait(&mut self, period: Duration) {
        let now_and_then = match self.kind {
            // Others are commands that an operator gives.
            Kind::Sqlite => 8 * period,
            Kind::Postgres => period,
        };
        self.wait_between(period, now_and_then).await;
    }

    async fn wait_between(&mut self, least: Duration, most: Duration) {
        let earliest = Instant::now() + least;
        // An error is that it took too long, or that this process will not write any more.
        let _ = timeout(most, self.own.changed()).await;
        sleep_until(earliest).await;
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
    use super::*;
    use crate::Statement;
    use crate::testing::TestStore;

    #[tokio::test]
    async fn a_mark_stays_the_same_until_somebody_writes() {
        let store = TestStore::new(|database| database).await;
        let mut writes = store.writes();
        // On a server others may write at any time, though not all the time.
        let mut before = writes.mark().await.unwrap();
        for tries_left in (0..1000).rev() {
            sqlx::query("SELECT * FROM teams").fetch_all(store.read()).await.unwrap();
            let now = writes.mark().await.unwrap();
            if now == before {
                break;
            }
            assert!(tries_left > 0, "a read changes the mark");
            before = now;
        }

        let team = "INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ('tem1', 'other', 'basic', 0)";
        assert!(store.changes_row(Statement::new(team)).await.unwrap());
        assert_ne!(writes.mark().await.unwrap(), before);
    }

    #[tokio::test]
    async fn a_write_of_this_process_ends_the_wait_at_once() {
        const LONG: Duration = Duration::from_secs(3600);
        let store = TestStore::new(|database| database).await;
        let tx = store.write().await.unwrap();
        let mut writes = store.writes();
        // With an hour between two looks, and none at least.
        let mut wait = std::pin::pin!(writes.wait_between(Duration::ZERO, LONG));
        assert!(timeout(Duration::from_millis(20), &mut wait).await.is_err());
        tx.commit().await.unwrap();
        timeout(LONG / 60, wait).await.unwrap();

        let tx = store.write().await.unwrap();
        let mut again = store.writes();
        let mut wait = std::pin::pin!(again.wait_between(Duration::ZERO, LONG));
        tx.rollback().await.unwrap();
        assert!(timeout(Duration::from_millis(20), &mut wait).await.is_err());
    }
}
