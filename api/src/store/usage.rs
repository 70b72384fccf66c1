//! What a team holds, and why it gets no more.

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::{StoreError, count, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;

use crate::plan::Quota;

/// What a team's sandboxes, checkpoints, volumes and templates hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live sandboxes, and what they hold together.
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
    /// Stopped sandboxes, which hold none of that.
    pub stopped: u32,
    /// Live ones that are about to be.
    pub stopping: u32,
    pub volumes: u32,
    /// What they may grow to together.
    pub volume_gib: u64,
    /// Templates of its own.
    pub templates: u32,
    /// That its builds took within [`BUILD_WINDOW`], those that are under way among them; begun minutes as whole ones.
    pub build_minutes: u64,
    /// Of those the ones of builds that have ended.
    pub built_minutes: u64,
    /// Builds under way, also those that wait.
    pub builds: u32,
    pub webhooks: u32,
    pub checkpoints: u32,
    /// Of the host's disk: sandboxes, live or not, checkpoints, volumes, versions of templates, and files for builds.
    pub retained_bytes: u64,
}

const MINUTE_MS: u64 = 60_000;

/// For how long a build counts against the quota.
const BUILD_WINDOW: SignedDuration = SignedDuration::from_hours(30 * 24);

impl Usage {
    /// Whether `quota` has minutes left for one more build beside those under way, each of which may take `seconds`.
    pub(super) fn leaves_minutes(&self, quota: &Quota, seconds: u64) -> bool {
        let reserved = u64::from(self.builds).saturating_mul(seconds).div_ceil(60);
        self.built_minutes.saturating_add(reserved) < quota.build_minutes && self.build_minutes < quota.build_minutes
    }

    /// Whether `quota` has room for more beside this.
    pub(super) fn leaves_room(&self, quota: &Quota, sandboxes: u32, cpu: u32, memory_mb: u64) -> bool {
        self.sandboxes.saturating_add(sandboxes) <= quota.sandboxes
            && self.cpu.saturating_add(cpu) <= quota.cpu
            && self.memory_mb.saturating_add(memory_mb) <= quota.memory_mb
    }

    /// Whether `quota` has room for another stopped sandbox beside those that are about to be.
    pub(super) fn leaves_stop(&self, quota: &Quota) -> bool {
        quota.stopped == 0 || self.stopped.saturating_add(self.stopping) < quota.stopped
    }

    /// Whether there are more stopped sandboxes than `quota` allows: those that stop at their deadlines ask nobody.
    pub(super) fn has_stopped_too_many(&self, quota: &Quota) -> bool {
        quota.stopped > 0 && self.stopped > quota.stopped
    }

    /// Whether `quota` has room for another checkpoint.
    pub(super) fn leaves_checkpoint(&self, quota: &Quota) -> bool {
        quota.checkpoints == 0 || self.checkpoints < quota.checkpoints
    }

    /// Bytes that may still be stored; `None`: without limit.
    pub(super) fn storage_left(&self, quota: &Quota) -> Option<u64> {
        Some(quota.stored_bytes()?.saturating_sub(self.retained_bytes))
    }

    /// Whether all is stored that `quota` allows. How much anything new will store is not known before it is there.
    pub(super) fn fills_storage(&self, quota: &Quota) -> bool {
        self.storage_left(quota) == Some(0)
    }
}

/// Why a sandbox got no runtime capacity, or not its volumes.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error("The team stores all that it may")]
    StorageFull(Usage),
    #[error("The team has more stopped sandboxes than it may, or would have")]
    TooManyStopped(Usage),
    #[error("Another live sandbox has one of its volumes")]
    VolumeAttached,
    #[error("One of its volumes is deleted, or was lost")]
    VolumeGone,
    #[error("Another process took the request over, because this one was not heard of for long")]
    ClaimLost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for QuotaError {
    fn from(error: sqlx::Error) -> Self {
        QuotaError::Store(error.into())
    }
}

/// What the team's sandboxes, checkpoints and volumes hold, seen by `connection`.
pub(super) async fn usage(
    connection: &mut sqlx::AnyConnection,
    team_id: &TeamId,
    now: Timestamp,
) -> Result<Usage, StoreError> {
    // `live`: the states of `State::LIVE`.
    let row = sqlx::query(
        "SELECT CAST(COALESCE(SUM(live), 0) AS BIGINT) AS sandboxes, \
             CAST(COALESCE(SUM(live * cpu), 0) AS BIGINT) AS cpu, \
             CAST(COALESCE(SUM(live * memory_mb), 0) AS BIGINT) AS memory_mb, \
             CAST(COALESCE(SUM(stopped), 0) AS BIGINT) AS stopped, \
             CAST(COALESCE(SUM(stopping), 0) AS BIGINT) AS stopping, \
             CAST(COALESCE(SUM(retained_bytes), 0) AS BIGINT) AS sandbox_bytes, \
             (SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM checkpoints \
              WHERE team_id = $1 AND state <> 'deleted') AS checkpoint_bytes, \
             (SELECT COUNT(*) FROM checkpoints WHERE team_id = $1 AND state <> 'deleted') AS checkpoints, \
             (SELECT COUNT(*) FROM volumes WHERE team_id = $1 AND state <> 'deleted') AS volumes, \
             (SELECT CAST(COALESCE(SUM(size_gib), 0) AS BIGINT) FROM volumes \
              WHERE team_id = $1 AND state <> 'deleted') AS volume_gib, \
             (SELECT CAST(COALESCE(SUM(retained_bytes), 0) AS BIGINT) FROM volumes \
              WHERE team_id = $1 AND state <> 'deleted') AS volume_bytes, \
             (SELECT COUNT(*) FROM templates WHERE team_id = $1 AND deleted_at_ms IS NULL) AS templates, \
             (SELECT CAST(COALESCE(SUM(v.finished_at_ms - v.started_at_ms), 0) AS BIGINT) FROM template_versions v \
              JOIN templates t ON t.id = v.template_id WHERE t.team_id = $1 AND v.finished_at_ms > $2) AS built_ms, \
             (SELECT CAST(COALESCE(SUM(CASE WHEN v.started_at_ms < $3 THEN $3 - v.started_at_ms ELSE 0 END), 0) AS BIGINT) \
              FROM template_versions v JOIN templates t ON t.id = v.template_id \
              WHERE t.team_id = $1 AND v.state IN ('queued', 'building', 'warming')) AS building_ms, \
             (SELECT COUNT(*) FROM template_versions v JOIN templates t ON t.id = v.template_id \
              WHERE t.team_id = $1 AND v.state IN ('queued', 'building', 'warming')) AS builds, \
             (SELECT COUNT(*) FROM team_webhooks WHERE team_id = $1 AND deleted_at_ms IS NULL) AS webhooks, \
             (SELECT CAST(COALESCE(SUM(v.retained_bytes), 0) AS BIGINT) FROM template_versions v \
              JOIN templates t ON t.id = v.template_id WHERE t.team_id = $1) AS version_bytes, \
             (SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM uploads WHERE team_id = $1) AS upload_bytes \
         FROM (SELECT cpu, memory_mb, retained_bytes, CASE state WHEN 'stopped' THEN 1 ELSE 0 END AS stopped, \
                   CASE state WHEN 'stopping' THEN 1 ELSE 0 END AS stopping, \
                   CASE WHEN state IN ('creating', 'ready', 'restoring', 'checkpointing', 'stopping') THEN 1 ELSE 0 END \
                       AS live \
               FROM sandboxes WHERE team_id = $1 AND state <> 'destroyed') AS held",
    )
    .bind(team_id.as_str())
    .bind(to_ms(now.saturating_sub(BUILD_WINDOW).unwrap_or(Timestamp::MIN)))
    .bind(to_ms(now))
    .fetch_one(connection)
    .await?;
    let bytes = |column: &str| -> Result<u64, StoreError> { count(row.try_get(column)?) };
    let built_ms = bytes("built_ms")?;
    Ok(Usage {
        sandboxes: count(row.try_get("sandboxes")?)?,
        cpu: count(row.try_get("cpu")?)?,
        memory_mb: count(row.try_get("memory_mb")?)?,
        stopped: count(row.try_get("stopped")?)?,
        stopping: count(row.try_get("stopping")?)?,
        volumes: count(row.try_get("volumes")?)?,
        volume_gib: count(row.try_get("volume_gib")?)?,
        templates: count(row.try_get("templates")?)?,
        build_minutes: built_ms.saturating_add(bytes("building_ms")?).div_ceil(MINUTE_MS),
        built_minutes: built_ms.div_ceil(MINUTE_MS),
        builds: count(row.try_get("builds")?)?,
        webhooks: count(row.try_get("webhooks")?)?,
        checkpoints: count(row.try_get("checkpoints")?)?,
        retained_bytes: bytes("sandbox_bytes")?
            .saturating_add(bytes("checkpoint_bytes")?)
            .saturating_add(bytes("volume_bytes")?)
            .saturating_add(bytes("version_bytes")?)
            .saturating_add(bytes("upload_bytes")?),
    })
}
