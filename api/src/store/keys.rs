//! API keys, kept as hashes.

use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_accounts::UserId;
use sandpiper_accounts::sessions::LoginSessionId;
use sandpiper_db::{Database, Statement, StoreError, count, decode_enum, from_ms, to_ms};
use sandpiper_protocol::id;
use sandpiper_protocol::ids::{TeamId, VolumeId};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::teams::{Team, team};

/// Longest name of a key, in bytes.
pub const MAX_NAME: usize = 200;

/// What a key may do: `write` includes `read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
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

/// A key to be made.
#[derive(Debug)]
pub struct NewKey<'a> {
    pub name: &'a str,
    /// 64 hexadecimal digits.
    pub hash: &'a str,
    pub capability: Capability,
    /// Who makes it; `None`: the operator.
    pub created_by: Option<&'a UserId>,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
}

/// A key, without itself.
#[derive(Debug, Clone, Serialize)]
pub struct KeyRecord {
    pub id: String,
    /// Its slug.
    pub team: String,
    pub name: String,
    pub capability: Capability,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// To a minute.
    pub last_used_at: Option<Timestamp>,
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

    /// Adds a key; its id.
    pub async fn add(&self, team: &Team, key: &NewKey<'_>, now: Timestamp) -> Result<String, StoreError> {
        let key_id = id::generate("key");
        let mut tx = self.database.write_shared().await?;
        sqlx::query(
            "INSERT INTO api_keys (id, team_id, name, hash, capability, created_by, expires_at_ms, created_at_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&key_id)
        .bind(team.id.as_str())
        .bind(key.name)
        .bind(key.hash)
        .bind(key.capability.as_str())
        .bind(key.created_by.map(UserId::as_str))
        .bind(key.expires_at.map(to_ms))
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(key_id)
    }

    /// The key with this hash, unless it was revoked or has ended by itself.
    pub async fn active(&self, hash: &str, now: Timestamp) -> Result<Option<ActiveKey>, StoreError> {
        self.active_where(" AND k.hash = ", hash, now).await
    }

    /// The key with this id, unless it was revoked or has ended by itself: for what was made by it and is to end with it.
    pub async fn active_by_id(&self, id: &str, now: Timestamp) -> Result<Option<ActiveKey>, StoreError> {
        self.active_where(" AND k.id = ", id, now).await
    }

    async fn active_where(
        &self,
        condition: &'static str,
        value: &str,
        now: Timestamp,
    ) -> Result<Option<ActiveKey>, StoreError> {
        let mut query = Statement::new(
            "SELECT k.id AS key_id, k.capability, k.expires_at_ms, t.* \
             FROM api_keys k JOIN teams t ON t.id = k.team_id WHERE k.revoked_at_ms IS NULL",
        );
        query.push(condition).push_bind(value);
        let row = query.build().fetch_optional(self.database.read()).await?;
        let Some(row) = row else { return Ok(None) };
        if row.try_get::<Option<i64>, _>("expires_at_ms")?.is_some_and(|end| end <= to_ms(now)) {
            return Ok(None);
        }
        Ok(Some(ActiveKey {
            id: row.try_get("key_id")?,
            capability: decode_enum(row.try_get("capability")?)?,
            team: team(&row)?,
        }))
    }

    /// Every key, oldest first.
    pub async fn all(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let query = sqlx::query("SELECT k.*, t.slug FROM api_keys k JOIN teams t ON t.id = k.team_id ORDER BY k.id");
        query.fetch_all(self.database.read()).await?.iter().map(record).collect()
    }

    /// The team's keys, newest first, those that have ended among them: at most `limit`, those before `before`.
    pub async fn of(&self, team: &TeamId, before: Option<&str>, limit: u32) -> Result<Vec<KeyRecord>, StoreError> {
        let mut query =
            Statement::new("SELECT k.*, t.slug FROM api_keys k JOIN teams t ON t.id = k.team_id WHERE k.team_id = ");
        query.push_bind(team.as_str());
        if let Some(before) = before {
            query.push(" AND k.id < ").push_bind(before);
        }
        query.push(" ORDER BY k.id DESC LIMIT ").push_bind(i64::from(limit));
        query.build().fetch_all(self.database.read()).await?.iter().map(record).collect()
    }

    /// How many of the team's keys have not ended.
    pub async fn count(&self, team: &TeamId, now: Timestamp) -> Result<u32, StoreError> {
        let number = sqlx::query_scalar::<_, i64>(
            "SELECT COUNT(*) FROM api_keys WHERE team_id = $1 AND revoked_at_ms IS NULL \
             AND (expires_at_ms IS NULL OR expires_at_ms > $2)",
        )
        .bind(team.as_str())
        .bind(to_ms(now))
        .fetch_one(self.database.read())
        .await?;
        count(number)
    }

    /// The ids of keys that were revoked after `since`, or have ended by themselves, in order.
    pub async fn revoked_since(&self, since: Timestamp, now: Timestamp) -> Result<Vec<String>, StoreError> {
        let ids = sqlx::query_scalar(
            "SELECT id FROM api_keys WHERE revoked_at_ms > $1 OR (expires_at_ms > $1 AND expires_at_ms <= $2) \
             ORDER BY id",
        )
        .bind(to_ms(since))
        .bind(to_ms(now))
        .fetch_all(self.database.read())
        .await?;
        Ok(ids)
    }

    /// Ends a key, of this team if one is named; false when there is no such key or it had ended already.
    pub async fn revoke(&self, key_id: &str, team: Option<&TeamId>, now: Timestamp) -> Result<bool, StoreError> {
        let mut revocation = Statement::new("UPDATE api_keys SET revoked_at_ms = ");
        revocation.push_bind(to_ms(now)).push(" WHERE id = ").push_bind(key_id).push(" AND revoked_at_ms IS NULL");
        if let Some(team) = team {
            revocation.push(" AND team_id = ").push_bind(team.as_str());
        }
        self.database.changes_row(revocation).await
    }

    /// Notes when keys, login sessions and volumes were last used, by their ids.
    pub async fn note_use(&self, uses: &[(String, Timestamp)]) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        for (id, at) in uses {
            let statement = if id.starts_with(LoginSessionId::PREFIX) {
                "UPDATE login_sessions SET last_used_at_ms = $1 WHERE id = $2"
            } else if id.starts_with(VolumeId::PREFIX) {
                "UPDATE volumes SET last_used_at_ms = $1 WHERE id = $2"
            } else {
                "UPDATE api_keys SET last_used_at_ms = $1 WHERE id = $2"
            };
            sqlx::query(statement).bind(to_ms(*at)).bind(id).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

/// From a row that has a key's columns, and the team's slug.
fn record(row: &AnyRow) -> Result<KeyRecord, StoreError> {
    let time = |name: &str| row.try_get::<Option<i64>, _>(name)?.map(from_ms).transpose();
    Ok(KeyRecord {
        id: row.try_get("id")?,
        team: row.try_get("slug")?,
        name: row.try_get("name")?,
        capability: decode_enum(row.try_get("capability")?)?,
        created_by: row.try_get("created_by")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        expires_at: time("expires_at_ms")?,
        last_used_at: time("last_used_at_ms")?,
        revoked_at: time("revoked_at_ms")?,
    })
}
