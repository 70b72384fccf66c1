//! Files that were sent for builds. The agent has them; here is whose they are, and until when they are kept.
//!
//! A row is there before the first byte is at the agent, and bears the id of the process that receives the file until all of it
//! is there. If that process dies, what there is of the file is nobody's.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, count, from_ms, to_ms};
use sandpiper_protocol::ids::{TeamId, UploadId};
use sandpiper_protocol::template::Upload;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::processes::OwnId;
use super::usage::{Usage, usage};
use crate::plan::Quota;

/// How long a file is kept after it was sent, or used last.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// How long a file is kept that a newer one with the same name of its content has replaced: who has just been told of it still
/// comes for it.
pub const REPLACED_FOR: Duration = Duration::from_secs(60);

/// A file as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRow {
    pub id: UploadId,
    /// What was announced, until all of it is there.
    pub bytes: u64,
    /// `None` until all of it is there.
    pub sha256: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

/// A file that is about to be received.
#[derive(Debug, Clone, Copy)]
pub struct NewUpload<'a> {
    pub id: &'a UploadId,
    /// The name that an SDK gave to its content.
    pub hash: Option<&'a str>,
    /// As far as it is known.
    pub length: Option<u64>,
}

/// What a team may send of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub bytes: u64,
    /// Whether it ends where the team stores all that it may, and not with what the plan takes of files for builds.
    pub is_of_storage: bool,
}

/// Why a file is not to be received.
#[derive(Debug, thiserror::Error)]
pub enum BeginUploadError {
    #[error("The team's files for builds are over what its plan takes")]
    TooLarge,
    #[error("The team stores all that it may, or would")]
    StorageFull(Usage),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for BeginUploadError {
    fn from(error: sqlx::Error) -> Self {
        BeginUploadError::Store(error.into())
    }
}

/// A file of which not all is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    pub id: UploadId,
    /// The process that receives it, if that lives.
    pub process: String,
}

/// One page.
#[derive(Debug)]
pub struct UploadPage {
    pub uploads: Vec<UploadRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<String>,
}

/// The files.
#[derive(Debug, Clone)]
pub struct Uploads {
    database: Database,
    own: OwnId,
}

impl Uploads {
    pub(crate) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Inserts a row for a file that this process is about to receive, if the team's files leave room for it below `most`, and
    /// `quota` has room for what is stored; how much the file may have.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub async fn begin(
        &self,
        team: &TeamId,
        new: NewUpload<'_>,
        most: u64,
        quota: &Quota,
        now: Timestamp,
    ) -> Result<Room, BeginUploadError> {
        let mut tx = self.database.write().await?;
        let held: i64 =
            sqlx::query_scalar("SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM uploads WHERE team_id = $1")
                .bind(team.as_str())
                .fetch_one(&mut *tx)
                .await?;
        let left = most.saturating_sub(count(held)?);
        let bytes = new.length.unwrap_or_default();
        if left == 0 || bytes > left {
            return Err(BeginUploadError::TooLarge);
        }
        let usage = usage(&mut tx, team, now).await?;
        let storage_left = usage.storage_left(quota).unwrap_or(u64::MAX);
        if storage_left == 0 || bytes > storage_left {
            return Err(BeginUploadError::StorageFull(usage));
        }
        sqlx::query(
            "INSERT INTO uploads (id, team_id, hash, bytes, process, created_at_ms, expires_at_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(new.id.as_str())
        .bind(team.as_str())
        .bind(new.hash)
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .bind(self.own.as_str())
        .bind(to_ms(now))
        .bind(later(now, KEPT_FOR))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Room { bytes: left.min(storage_left), is_of_storage: storage_left < left })
    }

    /// All of it is at the agent; `None` where it was deleted meanwhile. Older files with the same name of their content are not
    /// needed any more.
    pub async fn finish(&self, upload: &Upload, now: Timestamp) -> Result<Option<UploadRow>, StoreError> {
        let mut tx = self.database.write().await?;
        let row = sqlx::query(
            "UPDATE uploads SET bytes = $2, sha256 = $3, process = NULL, expires_at_ms = $4 WHERE id = $1 RETURNING *",
        )
        .bind(upload.id.as_str())
        .bind(i64::try_from(upload.bytes).unwrap_or(i64::MAX))
        .bind(&upload.sha256)
        .bind(later(now, KEPT_FOR))
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        if let Some(hash) = row.try_get::<Option<String>, _>("hash")? {
            sqlx::query(
                "UPDATE uploads SET expires_at_ms = $3 \
                 WHERE team_id = $1 AND hash = $2 AND sha256 IS NOT NULL AND expires_at_ms > $3 AND id < \
                     (SELECT MAX(n.id) FROM uploads n WHERE n.team_id = $1 AND n.hash = $2 AND n.sha256 IS NOT NULL)",
            )
            .bind(row.try_get::<String, _>("team_id")?)
            .bind(hash)
            .bind(later(now, REPLACED_FOR))
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        read(&row).map(Some)
    }

    /// The agent has nothing of it any more.
    pub async fn forget(&self, id: &UploadId) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        for statement in ["DELETE FROM version_uploads WHERE upload_id = $1", "DELETE FROM uploads WHERE id = $1"] {
            sqlx::query(statement).bind(id.as_str()).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The team's file of this id, also one of which not all is there.
    pub async fn get(&self, team: &TeamId, id: &str) -> Result<Option<UploadRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM uploads WHERE team_id = $1 AND id = $2")
            .bind(team.as_str())
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// The `limit` newest files of a team, from the one that follows `after`; also those of which not all is there.
    pub async fn list(&self, team: &TeamId, after: Option<&str>, limit: u32) -> Result<UploadPage, StoreError> {
        let mut query = Statement::new("SELECT * FROM uploads WHERE team_id = ");
        query.push_bind(team.as_str());
        if let Some(after) = after {
            query.push(" AND id < ").push_bind(after);
        }
        // One more than asked for tells whether there is a next page.
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit) + 1);
        let rows = query.build().fetch_all(self.database.read()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let uploads = rows.iter().take(limit).map(read).collect::<Result<Vec<_>, _>>()?;
        let after = uploads.last().filter(|_| rows.len() > limit).map(|last| last.id.to_string());
        Ok(UploadPage { uploads, after })
    }

    /// The team's file of this id, which is kept for a while longer from now on; `None` also while not all of it is there.
    pub async fn keep(&self, team: &TeamId, id: &str, now: Timestamp) -> Result<Option<UploadRow>, StoreError> {
        let mut query = Statement::new("UPDATE uploads SET expires_at_ms = ");
        query.push_bind(later(now, KEPT_FOR)).push(" WHERE sha256 IS NOT NULL AND team_id = ").push_bind(team.as_str());
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

    /// Every team's files of which not all is there.
    pub async fn unfinished(&self) -> Result<Vec<Unfinished>, StoreError> {
        let rows = sqlx::query("SELECT id, process FROM uploads WHERE process IS NOT NULL");
        let rows = rows.fetch_all(self.database.read()).await?;
        let unfinished = |row: &AnyRow| -> Result<Unfinished, StoreError> {
            Ok(Unfinished { id: row.try_get::<String, _>("id")?.into(), process: row.try_get("process")? })
        };
        rows.iter().map(unfinished).collect()
    }

    /// Whether not all of a file is there.
    pub async fn is_unfinished(&self, id: &UploadId) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT 1 FROM uploads WHERE process IS NOT NULL AND id = $1").bind(id.as_str());
        Ok(row.fetch_optional(self.database.read()).await?.is_some())
    }

    /// Every team's files that have been kept long enough, and that no build needs which is under way.
    pub async fn expired(&self, now: Timestamp) -> Result<Vec<UploadId>, StoreError> {
        let rows = sqlx::query(
            "SELECT id FROM uploads WHERE expires_at_ms <= $1 AND process IS NULL AND NOT EXISTS \
                 (SELECT 1 FROM version_uploads u JOIN template_versions v ON v.id = u.version_id \
                  WHERE u.upload_id = uploads.id AND v.state IN ('queued', 'building', 'warming')) LIMIT 100",
        )
        .bind(to_ms(now))
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(|row| Ok(row.try_get::<String, _>("id")?.into())).collect()
    }
}

fn later(now: Timestamp, by: Duration) -> i64 {
    to_ms(now).saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX))
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
