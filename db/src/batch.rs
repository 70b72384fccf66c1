//! Many small writes in one transaction.
//!
//! A commit that survives a power cut waits for the disk. One for each write would be a few hundred a second; so writes that
//! come often, each of its own caller, are handed to one task, which takes up all that have come while it was busy, carries
//! them out one after the other in one transaction, and answers each after the commit. Nobody waits for a batch to fill: a
//! write that comes alone is committed alone.
//!
//! Each write is under a savepoint, or the first of its transaction: one that fails is undone and fails alone. When the commit
//! fails, all fail, and nothing of any of them is left.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{Database, StoreError, Tx};
use sandpiper_protocol::error_chain::chain;

/// Writes that wait for their turn; callers wait when there are more.
const QUEUE: usize = 4096;
/// Writes in one transaction. More would not make each cheaper, only all wait longer.
const LARGEST: usize = 256;

/// What a write does, in the transaction that it gets.
pub type Work<'t, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 't>>;

/// The way to the task; clones lead to the same. The task ends when the last is gone.
#[derive(Clone)]
pub struct Batch {
    queue: mpsc::Sender<Box<dyn Entry>>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Batch")
    }
}

impl Batch {
    /// Starts the task.
    pub fn start(database: Database) -> Self {
        let (queue, entries) = mpsc::channel(QUEUE);
        tokio::spawn(run(database, entries));
        Self { queue }
    }

    /// Carries out `work` together with whatever else there is to write. On success it is committed; on an error nothing of
    /// it is left. Once it was handed over it is carried out even if the caller stops waiting.
    pub async fn write<T, E, W>(&self, work: W) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        W: for<'t> FnOnce(&'t mut Tx) -> Work<'t, T, E> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let entry = Box::new(Write { work: Some(work), result: None, answer });
        if self.queue.send(entry).await.is_err() {
            return Err(StoreError::Unwritten.into());
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unwritten.into()))
    }
}

/// A write, of whatever type its result is.
trait Entry: Send {
    /// Does the work; false when it has to be undone.
    fn carry_out<'t>(&'t mut self, tx: &'t mut Tx) -> Pin<Box<dyn Future<Output = bool> + Send + 't>>;
    /// Tells the caller how it went, the commit included.
    fn answer(self: Box<Self>, commit: Result<(), Arc<sqlx::Error>>);
}

struct Write<T, E, W> {
    work: Option<W>,
    result: Option<Result<T, E>>,
    answer: oneshot::Sender<Result<T, E>>,
}

impl<T, E, W> Entry for Write<T, E, W>
where
    T: Send,
    E: From<StoreError> + Send,
    W: for<'t> FnOnce(&'t mut Tx) -> Work<'t, T, E> + Send,
{
    fn carry_out<'t>(&'t mut self, tx: &'t mut Tx) -> Pin<Box<dyn Future<Output = bool> + Send + 't>> {
        Box::pin(async move {
            let Some(work) = self.work.take() else { return false };
            let result = work(tx).await;
            self.result.insert(result).is_ok()
        })
    }

    fn answer(self: Box<Self>, commit: Result<(), Arc<sqlx::Error>>) {
        let result = match (commit, self.result) {
            (Ok(()), Some(result)) | (Err(_), Some(result @ Err(_))) => result,
            (Err(error), _) => Err(StoreError::Commit(error).into()),
            (Ok(()), None) => Err(StoreError::Unwritten.into()),
        };
        // Who does not wait any more does not want to know.
        let _ = self.answer.send(result);
    }
}

async fn run(database: Database, mut queue: mpsc::Receiver<Box<dyn Entry>>) {
    let mut entries = Vec::with_capacity(LARGEST);
    while queue.recv_many(&mut entries, LARGEST).await > 0 {
        // On a task of its own: a panic in one batch must not end all writing. Its callers learn that they were dropped.
        let batch = carry_out(database.clone(), std::mem::take(&mut entries));
        if let Err(error) = tokio::spawn(batch).await {
            tracing::error!(error = chain(&error), "a batch of writes ended early");
        }
    }
}

async fn carry_out(database: Database, mut entries: Vec<Box<dyn Entry>>) {
    let commit = in_one_transaction(&database, &mut entries).await.map_err(Arc::new);
    for entry in entries {
        entry.answer(commit.clone());
    }
}

async fn in_one_transaction(database: &Database, entries: &mut [Box<dyn Entry>]) -> Result<(), sqlx::Error> {
    let mut tx = begin(database).await?;
    // A statement costs a change of threads or a round trip, mostly more than what it does: so the transaction itself is the
    // first write's savepoint, the end of one write and the beginning of the next are one, and the last ends with the
    // transaction.
    let mut entries = entries.iter_mut();
    let mut next = "SAVEPOINT entry";
    for first in entries.by_ref() {
        if first.carry_out(&mut tx).await {
            break;
        }
        tx.rollback().await?;
        tx = begin(database).await?;
    }
    for entry in entries {
        sqlx::raw_sql(next).execute(&mut *tx).await?;
        if !entry.carry_out(&mut tx).await {
            sqlx::raw_sql("ROLLBACK TO SAVEPOINT entry").execute(&mut *tx).await?;
        }
        next = "RELEASE SAVEPOINT entry; SAVEPOINT entry";
    }
    tx.commit().await
}

async fn begin(database: &Database) -> Result<Tx, sqlx::Error> {
    database.write().await.map_err(|error| match error {
        StoreError::Database(error) => error,
        StoreError::Busy => sqlx::Error::PoolTimedOut,
        other => sqlx::Error::Configuration(other.into()),
    })
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use sqlx::Row;

    use super::*;
    use crate::testing::TestStore;

    fn insert(tx: &mut Tx, slug: String) -> Work<'_, (), StoreError> {
        Box::pin(async move {
            sqlx::query("INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ($1, $1, 'pro', 0)")
                .bind(slug)
                .execute(&mut **tx)
                .await?;
            Ok(())
        })
    }

    async fn store() -> (TestStore<Database>, Batch) {
        let store = TestStore::new(|database| database).await;
        let batch = Batch::start(store.clone());
        (store, batch)
    }

    async fn teams(store: &TestStore<Database>) -> i64 {
        let row = sqlx::query("SELECT COUNT(*) FROM teams").fetch_one(store.read()).await.unwrap();
        row.get(0)
    }

    #[tokio::test]
    async fn every_write_is_answered_after_its_commit() {
        let (store, batch) = store().await;
        let writes = (0..1000).map(|n| batch.write(move |tx| insert(tx, format!("team-{n}"))));
        for result in join_all(writes).await {
            result.unwrap();
        }
        assert_eq!(teams(&store).await, 1000);
    }

    #[tokio::test]
    async fn a_write_that_fails_fails_alone() {
        let (store, batch) = store().await;
        batch.write(|tx| insert(tx, "taken".to_owned())).await.unwrap();
        let slugs = ["one", "taken", "two", "two", "three"];

        let results = join_all(slugs.map(|slug| batch.write(move |tx| insert(tx, slug.to_owned())))).await;

        let failed: Vec<_> = results.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, false, true, false]);
        assert_eq!(teams(&store).await, 4);
    }

    fn half(tx: &mut Tx) -> Work<'_, (), StoreError> {
        Box::pin(async move {
            insert(tx, "half".to_owned()).await?;
            Err(StoreError::Corrupt { what: "enough".to_owned() })
        })
    }

    #[tokio::test]
    async fn what_a_write_did_before_it_failed_is_undone() {
        let (store, batch) = store().await;
        let alone = batch.write(half).await;
        let together = join_all([0, 1].map(|_| batch.write(half))).await;
        assert!(alone.is_err() && together.iter().all(Result::is_err));
        assert_eq!(teams(&store).await, 0);
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_batch_only() {
        let (store, batch) = store().await;
        let result: Result<(), StoreError> = batch.write(|_| Box::pin(async { panic!("a bug in a write") })).await;
        assert!(matches!(result, Err(StoreError::Unwritten)));
        batch.write(|tx| insert(tx, "after".to_owned())).await.unwrap();
        assert_eq!(teams(&store).await, 1);
    }
}
