//! Files that were sent for builds. The agent has them; here is whose they are, and until when they are kept.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, count, from_ms, to_ms};
use sandpiper_protocol::ids::{TeamId, UploadId};
use sandpiper_protocol::template::Upload;
use sqlx::Row;
use sqlx::any::AnyRow;

/// How long a file is kept after it was sent, or used last.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// A file as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRow {
    pub id: UploadId,
    pub bytes: u64,
    pub sha256: String,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

/// The files.
#[derive(Debug, Clone)]
pub struct Uploads {
    database: Database,
}

impl Uploads {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Inserts a row for a file that is about to be received; `hash` is the name that an SDK gave to its content.
    pub async fn begin(
        &self,
        team: &TeamId,
        id: &UploadId,
        hash: Option<&str>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut query = Statement::new("INSERT INTO uploads (id, team_id, hash, created_at_ms, expires_at_ms) VALUES ");
        let values: [sandpiper_db::statement::Value; 5] =
            [id.as_str().into(), team.as_str().into(), hash.into(), to_ms(now).into(), expiry(now).into()];
        query.push_list(values);
        self.database.changes_row(query).await.map(drop)
    }

    /// All of it is at the agent.
    pub async fn finish(&self, upload: &Upload) -> Result<(), StoreError> {
        let mut query = Statement::new("UPDATE uploads SET bytes = ");
        query.push_bind(i64::try_from(upload.bytes).unwrap_or(i64::MAX)).push(", sha256 = ").push_bind(&upload.sha256);
        query.push(" WHERE id = ").push_bind(upload.id.as_str());
        self.database.changes_row(query).await.map(drop)
    }

    /// The agent has nothing of it any more.
    pub async fn forget(&self, id: &UploadId) -> Result<(), StoreError> {
        let mut query = Statement::new("DELETE FROM uploads WHERE id = ");
        query.push_bind(id.as_str());
        self.database.changes_row(query).await.map(drop)
    }

    /// The team's file of this id, which is kept for a while longer from now on.
    pub async fn keep(&self, team: &TeamId, id: &str, now: Timestamp) -> Result<Option<UploadRow>, StoreError> {
        let mut query = Statement::new("UPDATE uploads SET expires_at_ms = ");
        query.push_bind(expiry(now)).push(" WHERE sha256 IS NOT NULL AND team_id = ").push_bind(team.as_str());
        query.push(" AND id = ").push_bind(id).push(" RETURNING *");
        let mut tx = self.database.write_shared().await?;
        let row = query.build().fetch_optional(&mut *tx).await?;
        tx.commit().await?;
        row.as_ref().map(read).transpose()
    }

    /// The id of the team's newest file with this name of its content.
    pub async fn by_hash(&self, team: &TeamId, hash: &str) -> Result<Option<UploadId>, StoreError> {
        let row = sqlx::query(
            "SELECT id FROM uploads WHERE team_id = $1 AND hash = $2 AND sha256 IS NOT NULL ORDER BY id DESC LIMIT 1",
        )
        .bind(team.as_str())
        .bind(hash)
        .fetch_optional(self.database.read())
        .await?;
        row.map(|row| Ok(row.try_get::<String, _>("id")?.into())).transpose()
    }

    /// Bytes of all files of a team.
    pub async fn bytes(&self, team: &TeamId) -> Result<u64, StoreError> {
        let sum: i64 =
            sqlx::query_scalar("SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM uploads WHERE team_id = $1")
                .bind(team.as_str())
                .fetch_one(self.database.read())
                .await?;
        count(sum)
    }

    /// Every team's files that have been kept long enough.
    pub async fn expired(&self, now: Timestamp) -> Result<Vec<UploadId>, StoreError> {
        let rows = sqlx::query("SELECT id FROM uploads WHERE expires_at_ms <= $1 LIMIT 100")
            .bind(to_ms(now))
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(|row| Ok(row.try_get::<String, _>("id")?.into())).collect()
    }
}

fn expiry(now: Timestamp) -> i64 {
    to_ms(now).saturating_add(i64::try_from(KEPT_FOR.as_millis()).unwrap_or(i64::MAX))
}

fn read(row: &AnyRow) -> Result<UploadRow, StoreError> {
    Ok(UploadRow {
        id: row.try_get::<String, _>("id")?.into(),
        bytes: count(row.try_get("bytes")?)?,
        sha256: row.try_get("sha256")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        expires_at: from_ms(row.try_get("expires_at_ms")?)?,
    })
}
