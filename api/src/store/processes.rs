//! The processes that serve one database, and what each of them is at work on.
//!
//! A process says every [`BEAT`] that it is alive, and is believed for [`ALIVE_FOR`]. Idempotency keys that it has claimed,
//! and rows of sandboxes and checkpoints that it starts, resumes, takes or removes, bear its id for as long; nobody else
//! settles them. When it dies they are anybody's: the next request with the key takes it over, the next round of
//! synchronisation makes the rows what the agent says. So does an orderly end, at once.
//!
//! A process that only stood still for so long finds its claims gone and can make nothing under them any more.
//!
//! On SQLite there is one process, which holds a lock to its end: see [`sandpiper_db::sole`]. It says so for a day at a time: each
//! write is news to everything that looks for some.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::{Database, StoreError, Tx, to_ms};
use sandpiper_protocol::id;

/// How often a process says that it is alive.
pub const BEAT: Duration = Duration::from_secs(4);
/// How long it is believed; several beats, for a database that is slow or away for a moment.
pub const ALIVE_FOR: Duration = Duration::from_secs(20);

/// How often the only process says that it is alive.
pub const BEAT_ALONE: Duration = Duration::from_secs(60 * 60);
const ALIVE_ALONE_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Who this process is, in whatever it writes.
#[derive(Debug, Clone)]
pub(crate) struct OwnId(Arc<str>);

impl OwnId {
    pub(super) fn new() -> Self {
        Self(id::generate("prc").into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The processes.
#[derive(Debug, Clone)]
pub struct Processes {
    database: Database,
    own: OwnId,
}

impl Processes {
    pub(super) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Enters this process, which works with `agent`; false, with nothing done, where another lives that works with another
    /// agent. Each would take the other's sandboxes for lost.
    pub async fn join(&self, agent: Option<&str>, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.database.write().await?;
        let other = sqlx::query("SELECT 1 FROM processes WHERE agent <> $1 AND alive_until_ms > $2")
            .bind(agent)
            .bind(to_ms(now))
            .fetch_optional(&mut *tx)
            .await?;
        if other.is_some() {
            return Ok(false);
        }
        self.enter(tx, agent, now, ALIVE_FOR).await?;
        Ok(true)
    }

    /// This process is alive.
    pub async fn beat(&self, agent: Option<&str>, now: Timestamp) -> Result<(), StoreError> {
        self.enter(self.database.write_shared().await?, agent, now, ALIVE_FOR).await
    }

    /// This process is alive, and no other ever is.
    pub async fn beat_alone(&self, agent: Option<&str>, now: Timestamp) -> Result<(), StoreError> {
        self.enter(self.database.write_shared().await?, agent, now, ALIVE_ALONE_FOR).await
    }

    /// Enters this process, and forgets those that died.
    async fn enter(
        &self,
        mut tx: Tx,
        agent: Option<&str>,
        now: Timestamp,
        alive_for: Duration,
    ) -> Result<(), StoreError> {
        // Not before the next beat of any process whose clock is slow.
        sqlx::query("DELETE FROM processes WHERE alive_until_ms < $1")
            .bind(to_ms(now.saturating_sub(ALIVE_FOR).unwrap_or(now)))
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "INSERT INTO processes (id, alive_until_ms, agent) VALUES ($1, $2, $3) \
             ON CONFLICT (id) DO UPDATE SET alive_until_ms = excluded.alive_until_ms",
        )
        .bind(self.own.as_str())
        .bind(to_ms(now.saturating_add(alive_for).unwrap_or(Timestamp::MAX)))
        .bind(agent)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// This process ends: what it leaves undone is anybody's.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.forget("DELETE FROM processes WHERE id = $1").await
    }

    /// No other process is alive. For the only one that may serve a database, when it starts.
    pub async fn outlive_others(&self) -> Result<(), StoreError> {
        self.forget("DELETE FROM processes WHERE id <> $1").await
    }

    async fn forget(&self, statement: &'static str) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        sqlx::query(statement).bind(self.own.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The ids of the others that are alive. Read after the rows that bear them: a process may have joined meanwhile.
    pub async fn others(&self, now: Timestamp) -> Result<HashSet<String>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM processes WHERE id <> $1 AND alive_until_ms > $2")
            .bind(self.own.as_str())
            .bind(to_ms(now))
            .fetch_all(self.database.read())
            .await?;
        Ok(ids.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::super::testing::test_store;
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[tokio::test]
    async fn a_process_is_alive_until_it_leaves_or_was_not_heard_of_for_long() {
        let store = test_store().await;
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        assert!(other.processes.join(Some("agent"), NOW).await.unwrap());
        let others = async |at| store.processes.others(at).await.unwrap().len();
        assert_eq!(others(NOW).await, 1);
        assert_eq!(others(NOW + ALIVE_FOR).await, 0);

        other.processes.beat(Some("agent"), NOW + BEAT).await.unwrap();

        assert_eq!(others(NOW + ALIVE_FOR).await, 1);
        assert_eq!(other.processes.others(NOW).await.unwrap().len(), 0, "it is no other to itself");
        other.processes.leave().await.unwrap();
        assert_eq!(others(NOW + ALIVE_FOR).await, 0);
    }

    #[tokio::test]
    async fn the_only_one_is_believed_from_one_of_its_beats_to_the_next() {
        let store = test_store().await;
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        assert!(store.processes.join(Some("agent"), NOW).await.unwrap());

        store.processes.beat_alone(Some("agent"), NOW).await.unwrap();

        assert_eq!(other.processes.others(NOW + 2 * BEAT_ALONE).await.unwrap().len(), 1);
        assert_eq!(other.processes.others(NOW + ALIVE_ALONE_FOR).await.unwrap().len(), 0);
    }

    #[tokio::test]
    async fn one_that_died_is_forgotten_at_the_next_beat_of_another() {
        let store = test_store().await;
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        assert!(other.processes.join(Some("agent"), NOW).await.unwrap());

        store.processes.beat(Some("agent"), NOW + 3 * ALIVE_FOR).await.unwrap();

        let left: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM processes").fetch_one(store.database.read()).await.unwrap();
        assert_eq!(left, 1);
    }

    #[tokio::test]
    async fn processes_with_different_agents_do_not_serve_one_database() {
        let store = test_store().await;
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        assert!(store.processes.join(Some("one"), NOW).await.unwrap());

        assert!(!other.processes.join(Some("two"), NOW).await.unwrap());

        assert!(other.processes.join(None, NOW).await.unwrap(), "without an agent it does nothing with sandboxes");
        let third = Store::new(Database::open(&store.location()).await.unwrap());
        assert!(third.processes.join(Some("two"), NOW + ALIVE_FOR).await.unwrap(), "the first is dead by now");
    }
}
