//! Volumes: made under the quota, mounted by sandboxes, deleted. What happens to them is told by events: [`super::volume_events`].
//!
//! Which sandbox has a volume is not written here: the schema takes and releases volumes with the state of the sandbox that
//! mounts them, in its transaction (`sandbox_volumes`), and refuses what two live sandboxes would share.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, Tx, count, decode_enum, from_ms, to_ms};
use sandpiper_protocol::ids::{SandboxId, TeamId, VolumeId};
use sandpiper_protocol::volume::{self, VolumeMount};
use serde::Deserialize;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::events;
use super::idempotency;
use super::processes::OwnId;
use super::usage::{QuotaError, Usage, usage};
use super::volume_events;
use crate::plan::Quota;

/// Where a volume is in its life.
///
/// ```text
///   creating ──▶ ready ──DELETE──▶ deleting ──▶ deleted
///      │          │  ▲             ▲  │           ▲
///      │     lost │  │ found       │  └─refused─▶ ready
///      │          ▼  │             │              │
///      │         failed ───DELETE──┘              │
///      └──────── not made after all ──────────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Creating,
    Ready,
    /// The agent does not have it any more.
    Failed,
    /// The agent was told to remove it, and is told again until it has.
    Deleting,
    Deleted,
}

impl State {
    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Ready => "ready",
            State::Failed => "failed",
            State::Deleting => "deleting",
            State::Deleted => "deleted",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [State::Creating, State::Ready, State::Failed, State::Deleting, State::Deleted];
        all.into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

/// A volume that a request asks for.
#[derive(Debug, Clone)]
pub struct NewVolume {
    pub id: VolumeId,
    pub name: String,
    pub size_gib: u32,
    pub created_at: Timestamp,
}

/// A volume as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    pub id: VolumeId,
    pub team_id: TeamId,
    pub name: String,
    pub state: State,
    pub size_gib: u32,
    /// Of the host's disk.
    pub retained_bytes: u64,
    pub created_at: Timestamp,
    /// When it is to be deleted, as its team was told.
    pub expires_at: Option<Timestamp>,
    /// The live sandbox that has it.
    pub attached_to: Option<SandboxId>,
    /// The process that makes or removes it, if that is still alive.
    pub process: Option<String>,
}

/// Where a sandbox mounts a volume.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MountRow {
    /// Absolute, in the guest.
    pub path: String,
    pub volume: VolumeId,
    /// The volume's name, also where it was deleted.
    pub name: String,
}

/// Why a volume was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateVolumeError {
    #[error("Another volume of the team has this name")]
    NameTaken,
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error("The team stores all that it may")]
    StorageFull(Usage),
    #[error("Another process took the request over, because this one was not heard of for long")]
    ClaimLost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateVolumeError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            // Ids are random: the only thing that can be taken is the name.
            sqlx::Error::Database(refused) if refused.is_unique_violation() => CreateVolumeError::NameTaken,
            _ => CreateVolumeError::Store(error.into()),
        }
    }
}

/// One page.
#[derive(Debug)]
pub struct VolumePage {
    pub volumes: Vec<VolumeRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<String>,
}

/// With the sandbox that has it.
const SELECT: &str = "SELECT v.*, m.sandbox_id AS attached_to FROM volumes v \
                      LEFT JOIN sandbox_volumes m ON m.volume_id = v.id AND m.attached = 1 \
                      WHERE v.state <> 'deleted'";

/// The volumes.
#[derive(Debug, Clone)]
pub struct Volumes {
    database: Database,
    own: OwnId,
}

impl Volumes {
    pub(crate) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Inserts a row in `creating`, of `team_id`, if `quota` has room for it. A claim of an idempotency key is told its id in
    /// the same transaction.
    ///
    /// # Errors
    ///
    /// Where the name is taken, or there is no room.
    pub async fn create(
        &self,
        team_id: &TeamId,
        new: &NewVolume,
        quota: &Quota,
        claim: Option<&idempotency::Claim>,
    ) -> Result<(), CreateVolumeError> {
        let mut tx = self.database.write().await?;
        let usage = usage(&mut tx, team_id, new.created_at).await?;
        let is_over = usage.volumes >= quota.volumes
            || usage.volume_gib.saturating_add(u64::from(new.size_gib)) > quota.volume_gib;
        sqlx::query(
            "INSERT INTO volumes (id, team_id, name, state, size_gib, created_at_ms, process) \
             VALUES ($1, $2, $3, 'creating', $4, $5, $6)",
        )
        .bind(new.id.as_str())
        .bind(team_id.as_str())
        .bind(&new.name)
        .bind(i64::from(new.size_gib))
        .bind(to_ms(new.created_at))
        .bind(self.own.as_str())
        .execute(&mut *tx)
        .await?;
        // After the name: who asks again for what is there already is told that.
        if is_over {
            return Err(CreateVolumeError::OverQuota(usage));
        }
        if usage.fills_storage(quota) {
            return Err(CreateVolumeError::StorageFull(usage));
        }
        if let Some(claim) = claim
            && !idempotency::name_resource(&mut tx, claim, &new.id).await?
        {
            return Err(CreateVolumeError::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }

    /// The team's volume of this id.
    pub async fn get(&self, team_id: &TeamId, id: &str) -> Result<Option<VolumeRow>, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND v.team_id = ").push_bind(team_id.as_str()).push(" AND v.id = ").push_bind(id);
        let row = query.build().fetch_optional(self.database.read()).await?;
        row.as_ref().map(read).transpose()
    }

    /// The team's volumes of these names.
    pub async fn by_names<'n>(
        &self,
        team_id: &TeamId,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<VolumeRow>, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND v.team_id = ").push_bind(team_id.as_str()).push(" AND v.name IN ").push_list(names);
        query.build().fetch_all(self.database.read()).await?.iter().map(read).collect()
    }

    /// The `limit` volumes of the team, newest first, from the one that follows `after`.
    pub async fn list(&self, team_id: &TeamId, after: Option<&str>, limit: u32) -> Result<VolumePage, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND v.team_id = ").push_bind(team_id.as_str());
        if let Some(after) = after {
            query.push(" AND v.id < ").push_bind(after);
        }
        // One more than asked for tells whether there is a next page.
        query.push(" ORDER BY v.id DESC LIMIT ").push_bind(i64::from(limit) + 1);

        let rows = query.build().fetch_all(self.database.read()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let volumes = rows.iter().take(limit).map(read).collect::<Result<Vec<_>, _>>()?;
        let after = volumes.last().filter(|_| rows.len() > limit).map(|last| last.id.to_string());
        Ok(VolumePage { volumes, after })
    }

    /// Every team's volumes that are not deleted.
    pub async fn existing(&self) -> Result<Vec<VolumeRow>, StoreError> {
        Statement::new(SELECT).build().fetch_all(self.database.read()).await?.iter().map(read).collect()
    }

    /// The state of any team's volume.
    pub async fn state(&self, id: &VolumeId) -> Result<Option<State>, StoreError> {
        let state: Option<String> = sqlx::query_scalar("SELECT state FROM volumes WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(self.database.read())
            .await?;
        state.map(|state| decode_enum(&state)).transpose()
    }

    /// Takes over what the agent says of volumes that it has, all at once: they are ready, and hold so much. One that is to be
    /// deleted stays so.
    pub async fn mirror(&self, reports: &[&volume::Volume], now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        let mut news = Vec::new();
        for report in reports {
            let Some(locked) = volume_events::lock(&mut tx, &report.id).await? else { continue };
            news.extend(locked.reported(now));
            sqlx::query(
                "UPDATE volumes SET state = 'ready', size_gib = $2, retained_bytes = $3, process = NULL \
                 WHERE id = $1 AND state IN ('creating', 'ready', 'failed')",
            )
            .bind(report.id.as_str())
            .bind(i64::from(gib(report.size_bytes)))
            .bind(i64::try_from(report.retained_bytes).unwrap_or(i64::MAX))
            .execute(&mut *tx)
            .await?;
        }
        events::write(&mut tx, news).await?;
        tx.commit().await?;
        Ok(())
    }

    /// From now on it is to be deleted, and no sandbox gets it; false where a sandbox has it, or it is deleted already.
    pub async fn begin_removal(&self, id: &VolumeId) -> Result<bool, StoreError> {
        // In turn with those that attach.
        let mut tx = self.database.write().await?;
        let done = sqlx::query(
            "UPDATE volumes SET state = 'deleting', process = $2 WHERE id = $1 AND state <> 'deleted' \
                 AND NOT EXISTS (SELECT 1 FROM sandbox_volumes m WHERE m.volume_id = $1 AND m.attached = 1)",
        )
        .bind(id.as_str())
        .bind(self.own.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// The agent refused to delete it: it is ready as before.
    pub async fn end_removal(&self, id: &VolumeId) -> Result<(), StoreError> {
        self.update("UPDATE volumes SET state = 'ready', process = NULL WHERE id = $1 AND state = 'deleting'", id).await
    }

    /// The agent does not have it any more: `ready` becomes `failed`; false when it was not ready.
    pub async fn lose(&self, id: &VolumeId, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let locked = volume_events::lock(&mut tx, id).await?;
        let Some(locked) = locked.filter(|locked| locked.state == State::Ready) else { return Ok(false) };
        sqlx::query("UPDATE volumes SET state = 'failed', retained_bytes = 0 WHERE id = $1")
            .bind(id.as_str())
            .execute(&mut *tx)
            .await?;
        events::write(&mut tx, vec![locked.lost(now)]).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The volume is gone, or was never made.
    pub async fn delete(&self, id: &VolumeId, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        let Some(locked) = volume_events::lock(&mut tx, id).await? else { return Ok(()) };
        sqlx::query("UPDATE volumes SET state = 'deleted', deleted_at_ms = $2 WHERE id = $1")
            .bind(id.as_str())
            .bind(to_ms(now))
            .execute(&mut *tx)
            .await?;
        events::write(&mut tx, locked.deleted(now).into_iter().collect()).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn update(&self, statement: &'static str, id: &VolumeId) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        sqlx::query(statement).bind(id.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }
}

impl VolumeRow {
    /// Whether the agent's report holds nothing that this row does not say already.
    pub(crate) fn matches(&self, report: &volume::Volume) -> bool {
        self.state == State::Ready
            && (self.size_gib, self.retained_bytes) == (gib(report.size_bytes), report.retained_bytes)
    }
}

/// Attaches volumes to a sandbox whose row is new.
///
/// # Errors
///
/// Where another sandbox has one of them, or one is not ready any more.
pub(super) async fn attach(tx: &mut Tx, sandbox_id: &str, mounts: &[VolumeMount]) -> Result<(), QuotaError> {
    for VolumeMount { volume, path } in mounts {
        let attached = sqlx::query(
            "INSERT INTO sandbox_volumes (sandbox_id, path, volume_id, attached) \
             SELECT $1, $2, id, 1 FROM volumes WHERE id = $3 AND state = 'ready'",
        )
        .bind(sandbox_id)
        .bind(path)
        .bind(volume.as_str())
        .execute(&mut **tx)
        .await;
        match attached {
            Ok(done) if done.rows_affected() == 1 => {}
            Ok(_) => return Err(QuotaError::VolumeGone),
            Err(error) if is_attached_elsewhere(&error) => return Err(QuotaError::VolumeAttached),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a volume that a stopped sandbox mounts cannot be attached any more.
pub(super) async fn lacks_volume(tx: &mut Tx, sandbox_id: &str) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "SELECT 1 FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id \
         WHERE m.sandbox_id = $1 AND v.state <> 'ready'",
    )
    .bind(sandbox_id)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.is_some())
}

/// Whether a statement on sandboxes failed because another sandbox has a volume: nothing else of theirs is unique but ids,
/// which are random.
pub(super) fn is_attached_elsewhere(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(refused) if refused.is_unique_violation())
}

/// Whole GiB, rounded up: what a quota counts.
fn gib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 30)).unwrap_or(u32::MAX).max(1)
}

fn read(row: &AnyRow) -> Result<VolumeRow, StoreError> {
    Ok(VolumeRow {
        id: row.try_get::<String, _>("id")?.into(),
        team_id: row.try_get::<String, _>("team_id")?.into(),
        name: row.try_get("name")?,
        state: decode_enum(row.try_get("state")?)?,
        size_gib: count(row.try_get("size_gib")?)?,
        retained_bytes: count(row.try_get("retained_bytes")?)?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        expires_at: row.try_get::<Option<i64>, _>("expires_at_ms")?.map(from_ms).transpose()?,
        attached_to: row.try_get::<Option<String>, _>("attached_to")?.map(SandboxId::from),
        process: row.try_get("process")?,
    })
}
