//! Who asked for what, and how it ended.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_protocol::id;
use serde::Serialize;
use sqlx::Row;
use sqlx::any::AnyRow;

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
    /// Of the API key, or of the login session.
    pub key_id: String,
    /// Who was signed in.
    pub user_id: Option<String>,
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
        if !entries.is_empty() {
            self.database.changes_row(insertion(entries)).await?;
        }
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
        rows.iter().map(entry).collect()
    }

    /// The entries that `filter` selects, of a team or of all, newest first, with their ids: at most `limit`, those before the one of
    /// id `before`.
    pub async fn page(
        &self,
        team_id: Option<&str>,
        filter: &Filter,
        before: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Entry)>, StoreError> {
        let Filter { actor, action, resource, from, to } = filter;
        let mut query = Statement::new("SELECT * FROM audit WHERE 1 = 1");
        if let Some(team_id) = team_id {
            query.push(" AND team_id = ").push_bind(team_id);
        }
        if let Some(actor) = actor {
            query.push(" AND (user_id = ").push_bind(actor.as_str()).push(" OR key_id = ").push_bind(actor.as_str());
            query.push(")");
        }
        if let Some(action) = action {
            query.push(" AND action = ").push_bind(action.as_str());
        }
        if let Some(resource) = resource {
            query.push(" AND resource = ").push_bind(resource.as_str());
        }
        if let Some(from) = from {
            query.push(" AND at_ms >= ").push_bind(to_ms(*from));
        }
        if let Some(to) = to {
            query.push(" AND at_ms < ").push_bind(to_ms(*to));
        }
        if let Some(before) = before {
            query.push(" AND id < ").push_bind(before);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        let rows = query.build().fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok((row.try_get("id")?, entry(row)?))).collect()
    }
}

/// Which entries are looked for; what is `None` is not looked at.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Id of a user, a key or a login session.
    pub actor: Option<String>,
    /// Method and route.
    pub action: Option<String>,
    pub resource: Option<String>,
    pub from: Option<Timestamp>,
    /// Up to this moment, without it.
    pub to: Option<Timestamp>,
}

fn entry(row: &AnyRow) -> Result<Entry, StoreError> {
    Ok(Entry {
        at: from_ms(row.try_get("at_ms")?)?,
        team_id: row.try_get("team_id")?,
        key_id: row.try_get("key_id")?,
        user_id: row.try_get("user_id")?,
        request_id: row.try_get("request_id")?,
        action: row.try_get("action")?,
        resource: row.try_get("resource")?,
        status: count(row.try_get("status")?)?,
    })
}

/// Adds entries in the transaction of what they tell of.
pub async fn insert(tx: &mut Tx, entries: &[Entry]) -> Result<(), StoreError> {
    if !entries.is_empty() {
        insertion(entries).build().execute(&mut **tx).await?;
    }
    Ok(())
}

/// Adds these entries, of which there is one at least.
fn insertion(entries: &[Entry]) -> Statement {
    let mut statement = Statement::new(
        "INSERT INTO audit (id, at_ms, team_id, key_id, user_id, request_id, action, resource, status) SELECT * FROM (",
    );
    statement.push_rows(entries.iter().map(|entry| {
        [
            id::generate("aud").into(),
            to_ms(entry.at).into(),
            entry.team_id.as_str().into(),
            entry.key_id.as_str().into(),
            entry.user_id.as_deref().into(),
            entry.request_id.as_str().into(),
            entry.action.as_str().into(),
            entry.resource.as_deref().into(),
            i64::from(entry.status).into(),
        ]
    }));
    statement.push(") AS entries WHERE column1 IS NOT NULL");
    statement
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
            user_id: None,
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
