//! Who asked for what, and how it ended.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_protocol::id;
use serde::Serialize;
use sqlx::Row;

use super::{Database, Statement, StoreError, Tx, count, from_ms, to_ms};
use sandpiper_protocol::error_chain::chain;

/// Stands for a team in entries on the operator's own requests; no team's id is like it.
pub const OPERATOR: &str = "operator";

/// One mutating request.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct Entry {
    pub at: Timestamp,
    /// [`OPERATOR`] for what the operator did.
    pub team_id: String,
    pub key_id: String,
    pub request_id: String,
    /// Method and route: `DELETE /v1/sandboxes/{id}`.
    pub action: String,
    /// Id of what was acted on, where there is one.
    pub resource: Option<String>,
    /// HTTP status of the response.
    pub status: u16,
}

/// How often a write of entries is tried again, and how long after the last time.
const TRIES: usize = 60;
const PAUSE: Duration = Duration::from_secs(1);

/// The audit.
#[derive(Debug, Clone)]
pub struct AuditLog {
    database: Database,
}

impl AuditLog {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Adds the entries of one request: one for each resource that it acted on.
    pub async fn add(&self, entries: &[Entry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut tx = self.database.write_shared().await?;
        insert(&mut tx, entries).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Likewise; what the database does not take now is written behind the caller's back as soon as it does.
    pub async fn keep(&self, entries: Vec<Entry>) {
        let Err(error) = self.add(&entries).await else { return };
        tracing::warn!(error = chain(&error), "audit entries not written yet");
        let audit = self.clone();
        tokio::spawn(async move {
            for _ in 0..TRIES {
                tokio::time::sleep(PAUSE).await;
                if audit.add(&entries).await.is_ok() {
                    return;
                }
            }
            tracing::error!(?entries, "audit entries lost");
        });
    }

    /// The newest `limit` entries, newest first: of one resource, or of all.
    pub async fn newest(&self, resource: Option<&str>, limit: u32) -> Result<Vec<Entry>, StoreError> {
        let mut query = Statement::new("SELECT * FROM audit");
        if let Some(resource) = resource {
            query.push(" WHERE resource = ").push_bind(resource);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        let rows = query.build().fetch_all(self.database.read()).await?;
        rows.iter()
            .map(|row| {
                Ok(Entry {
                    at: from_ms(row.try_get("at_ms")?)?,
                    team_id: row.try_get("team_id")?,
                    key_id: row.try_get("key_id")?,
                    request_id: row.try_get("request_id")?,
                    action: row.try_get("action")?,
                    resource: row.try_get("resource")?,
                    status: count(row.try_get("status")?)?,
                })
            })
            .collect()
    }
}

/// Adds entries in the transaction of what they tell of.
pub async fn insert(tx: &mut Tx, entries: &[Entry]) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    let mut statement = Statement::new(
        "INSERT INTO audit (id, at_ms, team_id, key_id, request_id, action, resource, status) SELECT * FROM (",
    );
    statement.push_rows(entries.iter().map(|entry| {
        [
            id::generate("aud").into(),
            to_ms(entry.at).into(),
            entry.team_id.as_str().into(),
            entry.key_id.as_str().into(),
            entry.request_id.as_str().into(),
            entry.action.as_str().into(),
            entry.resource.as_deref().into(),
            i64::from(entry.status).into(),
        ]
    }));
    statement.push(") AS entries WHERE column1 IS NOT NULL");
    statement.build().execute(&mut **tx).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestStore;

    async fn run(store: &TestStore<Database>, statement: &'static str) {
        let mut tx = store.write().await.unwrap();
        sqlx::raw_sql(statement).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }

    #[tokio::test]
    async fn an_entry_that_the_database_does_not_take_now_is_written_when_it_does() {
        let store = TestStore::new(|database| database).await;
        let audit = AuditLog::new(store.clone());
        run(&store, "ALTER TABLE audit RENAME TO audit_elsewhere").await;
        let entry = Entry {
            at: Timestamp::UNIX_EPOCH,
            team_id: OPERATOR.to_owned(),
            key_id: "key".to_owned(),
            request_id: "request".to_owned(),
            action: "PUT /operator/v1/banks".to_owned(),
            resource: None,
            status: 200,
        };

        audit.keep(vec![entry.clone()]).await;
        run(&store, "ALTER TABLE audit_elsewhere RENAME TO audit").await;

        let kept = async {
            while audit.newest(None, 10).await.unwrap() != [entry.clone()] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), kept).await.unwrap();
    }
}
