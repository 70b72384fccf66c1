//! What stopped sandboxes, checkpoints, volumes and versions of templates hold of the host's disk, hour by hour: what storage is
//! billed by.
//!
//! In each full hour one process looks once, at what the rows of these say then. An hour in which no process ran has nothing.

use std::ops::Range;

use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, count, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::billing::HOUR_MS;

/// What is there of each kind, and how much of the disk it holds.
const KINDS: [&str; 4] = [
    "INSERT INTO storage_samples (hour_ms, object_id, team_id, kind, bytes) \
     SELECT CAST($1 AS BIGINT), id, team_id, 'sandbox', retained_bytes FROM sandboxes \
     WHERE state = 'stopped' AND retained_bytes > 0",
    "INSERT INTO storage_samples (hour_ms, object_id, team_id, kind, bytes) \
     SELECT CAST($1 AS BIGINT), id, team_id, 'checkpoint', size_bytes FROM checkpoints \
     WHERE state <> 'deleted' AND size_bytes > 0",
    "INSERT INTO storage_samples (hour_ms, object_id, team_id, kind, bytes) \
     SELECT CAST($1 AS BIGINT), id, team_id, 'volume', retained_bytes FROM volumes \
     WHERE state <> 'deleted' AND retained_bytes > 0",
    "INSERT INTO storage_samples (hour_ms, object_id, team_id, kind, bytes) \
     SELECT CAST($1 AS BIGINT), v.id, t.team_id, 'template_version', v.retained_bytes \
     FROM template_versions v JOIN templates t ON t.id = v.template_id \
     WHERE t.team_id IS NOT NULL AND v.retained_bytes > 0",
];

/// What one thing held for an hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub hour_ms: i64,
    pub team_id: TeamId,
    /// `sandbox`, `checkpoint`, `volume` or `template_version`.
    pub kind: String,
    pub object_id: String,
    pub bytes: u64,
}

/// The samples.
#[derive(Debug, Clone)]
pub struct Storage {
    database: Database,
}

impl Storage {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Notes what is held in the hour of `now`, unless that was done, by whatever process; the beginning of that hour.
    pub async fn sample(&self, now: Timestamp) -> Result<i64, StoreError> {
        let hour_ms = hour_of(now);
        let mut tx = self.database.write_shared().await?;
        let claimed = sqlx::query("INSERT INTO storage_hours (hour_ms) VALUES ($1) ON CONFLICT (hour_ms) DO NOTHING")
            .bind(hour_ms)
            .execute(&mut *tx)
            .await?;
        if claimed.rows_affected() > 0 {
            for kind in KINDS {
                sqlx::query(kind).bind(hour_ms).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(hour_ms)
    }

    /// What a team held in each hour that begins within `time`, together or of one thing: hours and bytes.
    pub async fn of_team(
        &self,
        team_id: &TeamId,
        time: &Range<i64>,
        object_id: Option<&str>,
    ) -> Result<Vec<(i64, u64)>, StoreError> {
        let mut query =
            Statement::new("SELECT hour_ms, CAST(SUM(bytes) AS BIGINT) AS bytes FROM storage_samples WHERE team_id = ");
        query.push_bind(team_id.as_str());
        if let Some(object_id) = object_id {
            query.push(" AND object_id = ").push_bind(object_id);
        }
        query.push(" AND hour_ms >= ").push_bind(time.start).push(" AND hour_ms < ").push_bind(time.end);
        query.push(" GROUP BY hour_ms");
        let rows = query.build().fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok((row.try_get("hour_ms")?, count(row.try_get("bytes")?)?))).collect()
    }

    /// The samples of hours that begin within `time`, as they are read, team by team.
    pub fn within(
        &self,
        time: &Range<i64>,
        team_id: Option<&TeamId>,
    ) -> impl Stream<Item = Result<Sample, StoreError>> + Send + Unpin + use<'_> {
        let mut query = Statement::new("SELECT * FROM storage_samples WHERE hour_ms >= ");
        query.push_bind(time.start).push(" AND hour_ms < ").push_bind(time.end);
        if let Some(team_id) = team_id {
            query.push(" AND team_id = ").push_bind(team_id.as_str());
        }
        query.push(" ORDER BY team_id, hour_ms, object_id");
        query.build().fetch(self.database.read()).map(|row| sample(&row?))
    }
}

fn sample(row: &AnyRow) -> Result<Sample, StoreError> {
    Ok(Sample {
        hour_ms: row.try_get("hour_ms")?,
        team_id: row.try_get::<String, _>("team_id")?.into(),
        kind: row.try_get("kind")?,
        object_id: row.try_get("object_id")?,
        bytes: count(row.try_get("bytes")?)?,
    })
}

/// When the hour began that `now` is in.
pub fn hour_of(now: Timestamp) -> i64 {
    to_ms(now).div_euclid(HOUR_MS) * HOUR_MS
}
