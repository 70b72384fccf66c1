//! Checkpoints: named, kept in step with the agent, deleted. What happens to them is told by events: [`super::checkpoint_events`].

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, Tx, count, decode_bool, decode_enum, from_ms, to_ms};
use sandpiper_protocol::agent::{self, SandboxError};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::checkpoint_events;
use super::events;
use super::idempotency;
use super::processes::OwnId;
use super::sandbox_row::SandboxRow;
use super::usage::{Usage, usage};
use crate::plan::Quota;

/// Where a checkpoint is in its life.
///
/// ```text
///   creating ──▶ ready ──DELETE──▶ deleted
///    │ │         │   ▲               ▲ ▲
///    │ │    lost │   │ found         │ │
///    │ │         ▼   │               │ │
///    │ └──late──▶ failed ───DELETE───┘ │
///    └─────── not taken after all ─────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Creating,
    Ready,
    /// It could not be taken, which came out after the response had been sent; or the agent does not have it any more.
    Failed,
    Deleted,
}

impl State {
    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Ready => "ready",
            State::Failed => "failed",
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
        let all = [State::Creating, State::Ready, State::Failed, State::Deleted];
        all.into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

/// How a new checkpoint is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Naming {
    /// By a name that no other has.
    Own(String),
    /// By its id until it is ready, then by this name, which another one loses that has it.
    TakeOver(String),
}

/// A checkpoint that a request asks for.
#[derive(Debug, Clone)]
pub struct NewCheckpoint {
    pub id: String,
    pub naming: Naming,
    pub memory: bool,
    pub created_at: Timestamp,
}

/// A checkpoint as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointRow {
    pub id: String,
    pub team_id: TeamId,
    pub name: String,
    pub state: State,
    pub sandbox_id: String,
    pub template: String,
    pub template_version: String,
    pub memory: bool,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub size_bytes: u64,
    /// Why it could not be taken.
    pub error: Option<SandboxError>,
    pub created_at: Timestamp,
    /// When it is to be deleted, as its team was told.
    pub expires_at: Option<Timestamp>,
    /// The response was sent before it was taken.
    pub accepted: bool,
    /// The process that takes or removes it, if that is still alive.
    pub process: Option<String>,
}

/// Why a checkpoint was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateCheckpointError {
    #[error("Another checkpoint of the team has this name")]
    NameTaken,
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error("The team stores all that it may")]
    StorageFull(Usage),
    #[error("The team has more stopped sandboxes than it may")]
    TooManyStopped(Usage),
    #[error("Another process took the request over, because this one was not heard of for long")]
    ClaimLost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateCheckpointError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            // Ids are random: the only thing that can be taken is the name.
            sqlx::Error::Database(refused) if refused.is_unique_violation() => CreateCheckpointError::NameTaken,
            _ => CreateCheckpointError::Store(error.into()),
        }
    }
}

/// One page.
#[derive(Debug)]
pub struct CheckpointPage {
    pub checkpoints: Vec<CheckpointRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<String>,
}

/// The checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    database: Database,
    own: OwnId,
}

impl Checkpoints {
    pub(crate) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Inserts a row in `creating`, of `sandbox`, which from now on is `checkpointing` if it is ready, if `quota` has room for it. A
    /// claim of an idempotency key is told the checkpoint's id in the same transaction.
    ///
    /// # Errors
    ///
    /// Where the name is taken, or there is no room.
    pub async fn create(
        &self,
        new: &NewCheckpoint,
        sandbox: &SandboxRow,
        quota: &Quota,
        claim: Option<&idempotency::Claim>,
    ) -> Result<(), CreateCheckpointError> {
        let (name, name_when_ready) = match &new.naming {
            Naming::Own(name) => (name, None),
            Naming::TakeOver(name) => (&new.id, Some(name)),
        };
        let mut tx = self.database.write().await?;
        let usage = usage(&mut tx, &sandbox.team_id, new.created_at).await?;
        sqlx::query(
            "INSERT INTO checkpoints (id, team_id, name, state, sandbox_id, template, template_version, memory, cpu, \
                 memory_mb, disk_gib, created_at_ms, process, name_when_ready) \
             VALUES ($1, $2, $3, 'creating', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        )
        .bind(&new.id)
        .bind(sandbox.team_id.as_str())
        .bind(name)
        .bind(&sandbox.id)
        .bind(&sandbox.template)
        .bind(&sandbox.template_version)
        .bind(i64::from(new.memory))
        .bind(i64::from(sandbox.cpu))
        .bind(i64::from(sandbox.memory_mb))
        .bind(i64::from(sandbox.disk_gib))
        .bind(to_ms(new.created_at))
        .bind(self.own.as_str())
        .bind(name_when_ready)
        .execute(&mut *tx)
        .await?;
        // After the name: who asks again for what is there already is told that.
        if !usage.leaves_checkpoint(quota) {
            return Err(CreateCheckpointError::OverQuota(usage));
        }
        if usage.fills_storage(quota) {
            return Err(CreateCheckpointError::StorageFull(usage));
        }
        if usage.has_stopped_too_many(quota) {
            return Err(CreateCheckpointError::TooManyStopped(usage));
        }
        sqlx::query("UPDATE sandboxes SET state = 'checkpointing' WHERE id = $1 AND state = 'ready'")
            .bind(&sandbox.id)
            .execute(&mut *tx)
            .await?;
        if let Some(claim) = claim
            && !idempotency::name_resource(&mut tx, claim, &new.id).await?
        {
            return Err(CreateCheckpointError::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }

    /// The team's checkpoint of this id.
    pub async fn get(&self, team_id: &TeamId, id: &str) -> Result<Option<CheckpointRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM checkpoints WHERE id = $1 AND team_id = $2 AND state <> 'deleted'")
            .bind(id)
            .bind(team_id.as_str())
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// The team's checkpoint of this name.
    pub async fn by_name(&self, team_id: &TeamId, name: &str) -> Result<Option<CheckpointRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM checkpoints WHERE name = $1 AND team_id = $2 AND state <> 'deleted'")
            .bind(name)
            .bind(team_id.as_str())
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// The `limit` checkpoints of the team, or of one of its sandboxes, newest first, from the one that follows `after`.
    pub async fn list(
        &self,
        team_id: &TeamId,
        sandbox_id: Option<&str>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<CheckpointPage, StoreError> {
        let mut query = Statement::new("SELECT * FROM checkpoints WHERE state <> 'deleted'");
        query.push(" AND team_id = ").push_bind(team_id.as_str());
        if let Some(sandbox_id) = sandbox_id {
            query.push(" AND sandbox_id = ").push_bind(sandbox_id);
        }
        if let Some(after) = after {
            query.push(" AND id < ").push_bind(after);
        }
        // One more than asked for tells whether there is a next page.
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit) + 1);

        let rows = query.build().fetch_all(self.database.read()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let checkpoints = rows.iter().take(limit).map(read).collect::<Result<Vec<_>, _>>()?;
        let after = checkpoints.last().filter(|_| rows.len() > limit).map(|last| last.id.clone());
        Ok(CheckpointPage { checkpoints, after })
    }

    /// Every team's checkpoints that are not deleted.
    pub async fn existing(&self) -> Result<Vec<CheckpointRow>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM checkpoints WHERE state <> 'deleted'").fetch_all(self.database.read()).await?;
        rows.iter().map(read).collect()
    }

    /// The state of any team's checkpoint.
    pub async fn state(&self, id: &str) -> Result<Option<State>, StoreError> {
        let state: Option<String> = sqlx::query_scalar("SELECT state FROM checkpoints WHERE id = $1")
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        state.map(|state| decode_enum(&state)).transpose()
    }

    /// Takes over what the agent says of checkpoints that it has, all at once: they are ready, of this size and shape. A
    /// deleted one stays deleted.
    pub async fn mirror(&self, reports: &[&agent::Checkpoint], now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        let mut news = Vec::new();
        for report in reports {
            let Some(locked) = checkpoint_events::lock(&mut tx, &report.id).await? else { continue };
            news.extend(locked.reported(now));
            sqlx::query(
                "UPDATE checkpoints SET state = 'ready', memory = $2, cpu = $3, memory_mb = $4, disk_gib = $5, \
                     size_bytes = $6, process = NULL, error_code = NULL, error_message = NULL \
                 WHERE id = $1",
            )
            .bind(report.id.as_str())
            .bind(i64::from(report.memory))
            .bind(i64::from(report.cpu))
            .bind(i64::from(report.memory_mb))
            .bind(i64::from(report.disk_gib))
            .bind(i64::try_from(report.retained_bytes).unwrap_or(i64::MAX))
            .execute(&mut *tx)
            .await?;
            take_name_over(&mut tx, report.id.as_str()).await?;
        }
        events::write(&mut tx, news).await?;
        tx.commit().await?;
        Ok(())
    }

    /// This process is about to have the agent remove it; until that is done, or this process is dead, others do not take
    /// it for lost.
    pub async fn mark_removal(&self, id: &str) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        sqlx::query("UPDATE checkpoints SET process = $2 WHERE id = $1")
            .bind(id)
            .bind(self.own.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    /// The response is sent before it is taken: from now on its tenant is to see how it ends.
    pub async fn accept(&self, id: &str) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        sqlx::query("UPDATE checkpoints SET accepted = 1 WHERE id = $1").bind(id).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    /// It could not be taken, and its tenant knows of it.
    pub async fn fail(&self, id: &str, error: &SandboxError, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        let locked = checkpoint_events::lock(&mut tx, id).await?;
        let Some(locked) = locked.filter(|locked| locked.state == State::Creating) else { return Ok(()) };
        sqlx::query(
            "UPDATE checkpoints SET state = 'failed', error_code = $2, error_message = $3, process = NULL \
             WHERE id = $1",
        )
        .bind(id)
        .bind(&error.code)
        .bind(&error.message)
        .execute(&mut *tx)
        .await?;
        events::write(&mut tx, vec![locked.failed(error, now)]).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The agent does not have it any more: `ready` becomes `failed`; false when it was not ready.
    pub async fn lose(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let locked = checkpoint_events::lock(&mut tx, id).await?;
        let Some(locked) = locked.filter(|locked| locked.state == State::Ready) else { return Ok(false) };
        sqlx::query("UPDATE checkpoints SET state = 'failed', size_bytes = 0 WHERE id = $1")
            .bind(id)
            .execute(&mut *tx)
            .await?;
        events::write(&mut tx, vec![locked.lost(now)]).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The checkpoint is gone, or was never taken.
    pub async fn delete(&self, id: &str, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        let Some(locked) = checkpoint_events::lock(&mut tx, id).await? else { return Ok(()) };
        sqlx::query("UPDATE checkpoints SET state = 'deleted', deleted_at_ms = $2 WHERE id = $1")
            .bind(id)
            .bind(to_ms(now))
            .execute(&mut *tx)
            .await?;
        events::write(&mut tx, locked.deleted(now).into_iter().collect()).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// Gives a checkpoint that is ready the name that it is to take over, if there is one; whichever had it is called by its id.
async fn take_name_over(tx: &mut Tx, id: &str) -> Result<(), StoreError> {
    let waiting = "SELECT team_id, name_when_ready FROM checkpoints \
         WHERE id = $1 AND state = 'ready' AND name_when_ready IS NOT NULL";
    let Some(row) = sqlx::query(waiting).bind(id).fetch_optional(&mut **tx).await? else { return Ok(()) };
    let (team_id, name): (String, String) = (row.try_get("team_id")?, row.try_get("name_when_ready")?);
    sqlx::query("UPDATE checkpoints SET name = id WHERE team_id = $1 AND name = $2 AND state <> 'deleted'")
        .bind(team_id)
        .bind(name)
        .execute(&mut **tx)
        .await?;
    sqlx::query("UPDATE checkpoints SET name = name_when_ready, name_when_ready = NULL WHERE id = $1")
        .bind(id)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

impl CheckpointRow {
    /// Whether the agent's report holds nothing that this row does not say already.
    pub(crate) fn matches(&self, report: &agent::Checkpoint) -> bool {
        self.state == State::Ready
            && self.size_bytes == report.retained_bytes
            && (self.memory, self.cpu, self.memory_mb, self.disk_gib)
                == (report.memory, report.cpu, report.memory_mb, report.disk_gib)
    }
}

fn read(row: &AnyRow) -> Result<CheckpointRow, StoreError> {
    let error_code: Option<String> = row.try_get("error_code")?;
    let error_message: Option<String> = row.try_get("error_message")?;
    Ok(CheckpointRow {
        id: row.try_get("id")?,
        team_id: row.try_get::<String, _>("team_id")?.into(),
        name: row.try_get("name")?,
        state: decode_enum(row.try_get("state")?)?,
        sandbox_id: row.try_get("sandbox_id")?,
        template: row.try_get("template")?,
        template_version: row.try_get("template_version")?,
        memory: decode_bool(row.try_get("memory")?)?,
        cpu: count(row.try_get("cpu")?)?,
        memory_mb: count(row.try_get("memory_mb")?)?,
        disk_gib: count(row.try_get("disk_gib")?)?,
        size_bytes: count(row.try_get("size_bytes")?)?,
        error: error_code.zip(error_message).map(|(code, message)| SandboxError { code, message }),
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        expires_at: row.try_get::<Option<i64>, _>("expires_at_ms")?.map(from_ms).transpose()?,
        accepted: decode_bool(row.try_get("accepted")?)?,
        process: row.try_get("process")?,
    })
}
