//! Operator keys: `opk_` and 40 hexadecimal digits, kept as hashes.

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, from_ms, to_ms};
use sandpiper_http::keys;
use sandpiper_protocol::id;
use serde::Serialize;
use sqlx::Row;
use zeroize::Zeroizing;

const PREFIX: &str = "opk_";

/// A new key, shown once.
pub fn generate() -> Zeroizing<String> {
    keys::generate(PREFIX)
}

/// The hash under which a key is stored; `None` for text that is no operator key.
pub fn hash(key: &str) -> Option<String> {
    keys::hash(PREFIX, key)
}

/// A key as the operator's list shows it.
#[derive(Debug, Clone, Serialize)]
pub struct OperatorKeyRecord {
    pub id: String,
    pub name: String,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// The keys.
#[derive(Debug, Clone)]
pub struct OperatorKeys {
    database: Database,
}

impl OperatorKeys {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Adds a key by its hash (64 hexadecimal digits); its id.
    pub async fn add(&self, name: &str, hash: &str, now: Timestamp) -> Result<String, StoreError> {
        let key_id = id::generate("opk");
        let mut tx = self.database.write().await?;
        sqlx::query("INSERT INTO operator_keys (id, name, hash, created_at_ms) VALUES ($1, $2, $3, $4)")
            .bind(&key_id)
            .bind(name)
            .bind(hash)
            .bind(to_ms(now))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(key_id)
    }

    /// The id of the key with this hash, unless it was revoked.
    pub async fn active(&self, hash: &str) -> Result<Option<String>, StoreError> {
        let row = sqlx::query("SELECT id FROM operator_keys WHERE hash = $1 AND revoked_at_ms IS NULL")
            .bind(hash)
            .fetch_optional(self.database.read())
            .await?;
        Ok(row.map(|row| row.try_get("id")).transpose()?)
    }

    /// Every key, oldest first.
    pub async fn all(&self) -> Result<Vec<OperatorKeyRecord>, StoreError> {
        let rows = sqlx::query("SELECT id, name, created_at_ms, revoked_at_ms FROM operator_keys ORDER BY id")
            .fetch_all(self.database.read())
            .await?;
        rows.iter()
            .map(|row| {
                Ok(OperatorKeyRecord {
                    id: row.try_get("id")?,
                    name: row.try_get("name")?,
                    created_at: from_ms(row.try_get("created_at_ms")?)?,
                    revoked_at: row.try_get::<Option<i64>, _>("revoked_at_ms")?.map(from_ms).transpose()?,
                })
            })
            .collect()
    }

    /// Ends a key; false when there is no such key or it had ended already.
    pub async fn revoke(&self, key_id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let mut revocation = Statement::new("UPDATE operator_keys SET revoked_at_ms = ");
        revocation.push_bind(to_ms(now)).push(" WHERE id = ").push_bind(key_id).push(" AND revoked_at_ms IS NULL");
        self.database.changes_row(revocation).await
    }
}
