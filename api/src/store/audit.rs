//! Who asked for what, and how it ended.

use jiff::Timestamp;
use sandpiper_protocol::id;
use serde::Serialize;
use sqlx::Row;

use super::{Database, Statement, StoreError, Tx, count, from_ms, to_ms};

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
    /// HTTP status of the answer.
    pub status: u16,
}

/// The audit.
#[derive(Debug, Clone)]
pub struct AuditLog {
    database: Database,
}

impl AuditLog {
    pub(crate) fn new(database: Database) -> Self {
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
pub(super) async fn insert(tx: &mut Tx, entries: &[Entry]) -> Result<(), StoreError> {
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
