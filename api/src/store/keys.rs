//! API keys, kept as hashes.

use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, decode_enum, from_ms, to_ms};
use sandpiper_protocol::id;
use serde::Serialize;
use sqlx::Row;

use super::teams::Team;

/// What a key may do: `write` includes `read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Lists and inspects.
    Read,
    /// Also creates, changes, deletes, and gets data-plane sessions.
    Write,
}

impl Capability {
    /// Its name in the database and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Capability::Read => "read",
            Capability::Write => "write",
        }
    }
}

impl FromStr for Capability {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "read" => Ok(Capability::Read),
            "write" => Ok(Capability::Write),
            _ => Err(()),
        }
    }
}

/// A key that may be used, with its team.
#[derive(Debug, Clone)]
pub struct ActiveKey {
    pub id: String,
    pub capability: Capability,
    pub team: Team,
}

/// A key as the operator's list shows it.
#[derive(Debug, Clone, Serialize)]
pub struct KeyRecord {
    pub id: String,
    pub team: String,
    pub name: String,
    pub capability: Capability,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// The keys.
#[derive(Debug, Clone)]
pub struct ApiKeys {
    database: Database,
}

impl ApiKeys {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Adds a key by its hash (64 hexadecimal digits); its id.
    pub async fn add(
        &self,
        team: &Team,
        name: &str,
        hash: &str,
        capability: Capability,
        now: Timestamp,
    ) -> Result<String, StoreError> {
        let key_id = id::generate("key");
        let mut tx = self.database.write_shared().await?;
        sqlx::query(
            "INSERT INTO api_keys (id, team_id, name, hash, capability, created_at_ms) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(&key_id)
        .bind(team.id.as_str())
        .bind(name)
        .bind(hash)
        .bind(capability.as_str())
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(key_id)
    }

    /// The key with this hash, unless it was revoked.
    pub async fn active(&self, hash: &str) -> Result<Option<ActiveKey>, StoreError> {
        self.active_where(" AND k.hash = ", hash).await
    }

    /// The key with this id, unless it was revoked: for what was made by it and is to end with it.
    pub async fn active_by_id(&self, id: &str) -> Result<Option<ActiveKey>, StoreError> {
        self.active_where(" AND k.id = ", id).await
    }

    async fn active_where(&self, condition: &'static str, value: &str) -> Result<Option<ActiveKey>, StoreError> {
        let mut query = Statement::new(
            "SELECT k.id, k.capability, t.id AS team_id, t.slug, t.plan, t.created_at_ms \
             FROM api_keys k JOIN teams t ON t.id = k.team_id WHERE k.revoked_at_ms IS NULL",
        );
        query.push(condition).push_bind(value);
        let row = query.build().fetch_optional(self.database.read()).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(ActiveKey {
            id: row.try_get("id")?,
            capability: decode_enum(row.try_get("capability")?)?,
            team: Team {
                id: row.try_get::<String, _>("team_id")?.into(),
                slug: row.try_get("slug")?,
                plan: decode_enum(row.try_get("plan")?)?,
                created_at: from_ms(row.try_get("created_at_ms")?)?,
            },
        }))
    }

    /// Every key, oldest first.
    pub async fn all(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT k.id, t.slug, k.name, k.capability, k.created_at_ms, k.revoked_at_ms \
             FROM api_keys k JOIN teams t ON t.id = k.team_id ORDER BY k.id",
        )
        .fetch_all(self.database.read())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(KeyRecord {
                    id: row.try_get("id")?,
                    team: row.try_get("slug")?,
                    name: row.try_get("name")?,
                    capability: decode_enum(row.try_get("capability")?)?,
                    created_at: from_ms(row.try_get("created_at_ms")?)?,
                    revoked_at: row.try_get::<Option<i64>, _>("revoked_at_ms")?.map(from_ms).transpose()?,
                })
            })
            .collect()
    }

    /// The ids of keys that were revoked after `since`, in order.
    pub async fn revoked_since(&self, since: Timestamp) -> Result<Vec<String>, StoreError> {
        let ids = sqlx::query_scalar("SELECT id FROM api_keys WHERE revoked_at_ms > $1 ORDER BY id")
            .bind(to_ms(since))
            .fetch_all(self.database.read())
            .await?;
        Ok(ids)
    }

    /// Ends a key; false when there is no such key or it had ended already.
    pub async fn revoke(&self, key_id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let mut revocation = Statement::new("UPDATE api_keys SET revoked_at_ms = ");
        revocation.push_bind(to_ms(now)).push(" WHERE id = ").push_bind(key_id).push(" AND revoked_at_ms IS NULL");
        self.database.changes_row(revocation).await
    }
}
