//! Sandboxes: made under the quota, kept in step with the agent, ended.
//!
//! The quota is checked in the transaction that inserts the row. Writers take turns ([`super`]), so however many create
//! requests arrive at once, the sum never passes the limit.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_protocol::agent::{self, SandboxError};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};

use super::sandbox_row::{NewSandbox, SandboxRow, State, on_timeout_word};
use super::{Database, StoreError, Tx, count, idempotency, to_ms, word};
use crate::plan::Quota;

/// What a team's live sandboxes hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
}

/// Why a sandbox was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateError {
    fn from(error: sqlx::Error) -> Self {
        CreateError::Store(error.into())
    }
}

/// What an update request changes; `None` leaves as is.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub timeout_seconds: Option<u64>,
    /// Replaces all of it.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// The sandboxes.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    pub(super) database: Database,
}

impl Sandboxes {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Inserts a row in `creating`, if `quota` has room for it beside what is live. A claim of an idempotency key is told
    /// the sandbox's id in the same transaction.
    pub async fn create(
        &self,
        new: &NewSandbox,
        quota: &Quota,
        claim: Option<&idempotency::Claim>,
    ) -> Result<(), CreateError> {
        let mut tx = self.database.write().await?;
        let usage = usage(&mut tx, &new.team_id).await?;
        let fits = usage.sandboxes < quota.sandboxes
            && usage.cpu.saturating_add(new.cpu) <= quota.cpu
            && usage.memory_mb.saturating_add(u64::from(new.memory_mb)) <= quota.memory_mb;
        if !fits {
            return Err(CreateError::OverQuota(usage));
        }
        sqlx::query(
            "INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
                 timeout_seconds, on_timeout, auto_resume, exposed_ports, allow_public_traffic, envs, created_at_ms) \
             VALUES ($1, $2, 'creating', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        )
        .bind(&new.id)
        .bind(&new.team_id)
        .bind(&new.template)
        .bind(&new.template_version)
        .bind(i64::from(new.cpu))
        .bind(i64::from(new.memory_mb))
        .bind(i64::from(new.disk_gib))
        .bind(i64::try_from(new.timeout_seconds).unwrap_or(i64::MAX))
        .bind(on_timeout_word(new.lifecycle.on_timeout))
        .bind(new.lifecycle.auto_resume)
        .bind(ports_json(&new.exposed_ports))
        .bind(new.allow_public_traffic)
        .bind(&new.sealed_envs)
        .bind(to_ms(new.created_at))
        .execute(&mut *tx)
        .await?;
        insert_metadata(&mut tx, &new.id, &new.metadata).await?;
        if let Some(claim) = claim {
            idempotency::name_resource(&mut tx, claim, &new.id).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// What the team's live sandboxes hold now.
    pub async fn usage(&self, team_id: &str) -> Result<Usage, StoreError> {
        let mut connection = self.database.read().acquire().await?;
        usage(&mut connection, team_id).await
    }

    /// The team's sandbox of this id, unless it is destroyed.
    pub async fn get(&self, team_id: &str, id: &str) -> Result<Option<SandboxRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM sandboxes WHERE id = $1 AND team_id = $2 AND state <> 'destroyed'")
            .bind(id)
            .bind(team_id)
            .fetch_optional(self.database.read())
            .await?;
        let Some(row) = row else { return Ok(None) };
        let mut metadata = self.metadata(std::slice::from_ref(&id.to_owned())).await?;
        SandboxRow::read(&row, metadata.remove(id).unwrap_or_default()).map(Some)
    }

    /// Whether the team has, or ever had, a sandbox of this id.
    pub async fn was_owned(&self, team_id: &str, id: &str) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT 1 FROM sandboxes WHERE id = $1 AND team_id = $2")
            .bind(id)
            .bind(team_id)
            .fetch_optional(self.database.read())
            .await?;
        Ok(row.is_some())
    }

    /// The state of any team's sandbox.
    pub async fn state(&self, id: &str) -> Result<Option<State>, StoreError> {
        let state: Option<String> = sqlx::query_scalar("SELECT state FROM sandboxes WHERE id = $1")
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        state.map(|state| word(&state)).transpose()
    }

    /// Every team's sandboxes that are not destroyed, without their metadata.
    pub async fn existing(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM sandboxes WHERE state <> 'destroyed'").fetch_all(self.database.read()).await?;
        rows.iter().map(|row| SandboxRow::read(row, BTreeMap::new())).collect()
    }

    /// How many sandboxes are in each state, all teams together.
    pub async fn counts(&self) -> Result<Vec<(State, u64)>, StoreError> {
        let rows = sqlx::query("SELECT state, COUNT(*) AS n FROM sandboxes WHERE state <> 'destroyed' GROUP BY state")
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(|row| Ok((word(row.try_get("state")?)?, count(row.try_get("n")?)?))).collect()
    }

    /// Takes over what the agent says of a sandbox. What ended in this store stays ended: a report may be older.
    pub async fn mirror(&self, report: &agent::Sandbox) -> Result<(), StoreError> {
        let state = State::from(report.state);
        // The schema demands a start of whatever serves, and an explanation of whatever failed.
        let started_at = match (report.started_at, state) {
            (None, State::Ready) => Some(report.created_at),
            (started_at, _) => started_at,
        };
        let stopped_at = match (report.stopped_at, state) {
            (None, State::Failed) => Some(report.created_at),
            (stopped_at, _) => stopped_at,
        };
        let error = match (&report.error, state) {
            (None, State::Failed) => {
                Some(SandboxError { code: "guest_failed".into(), message: "The sandbox ended".into() })
            }
            (error, _) => error.clone(),
        };
        let mut tx = self.database.write().await?;
        sqlx::query(
            "UPDATE sandboxes SET state = $2, deadline_ms = $3, on_timeout = $4, auto_resume = $5, exposed_ports = $6, \
                 data_plane_url = $7, started_at_ms = $8, stopped_at_ms = $9, error_code = $10, error_message = $11 \
             WHERE id = $1 AND state NOT IN ('failed', 'destroyed')",
        )
        .bind(&report.id)
        .bind(state.as_str())
        .bind(to_ms(report.deadline))
        .bind(on_timeout_word(report.lifecycle.on_timeout))
        .bind(report.lifecycle.auto_resume)
        .bind(ports_json(&report.exposed_ports))
        .bind(&report.data_plane_url)
        .bind(started_at.map(to_ms))
        .bind(stopped_at.map(to_ms))
        .bind(error.as_ref().map(|error| &error.code))
        .bind(error.as_ref().map(|error| &error.message))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Applies what an update request changes and the agent does not know of.
    pub async fn change(&self, id: &str, change: &Change) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        if let Some(seconds) = change.timeout_seconds {
            sqlx::query("UPDATE sandboxes SET timeout_seconds = $2 WHERE id = $1 AND state <> 'destroyed'")
                .bind(id)
                .bind(i64::try_from(seconds).unwrap_or(i64::MAX))
                .execute(&mut *tx)
                .await?;
        }
        if let Some(metadata) = &change.metadata {
            sqlx::query("DELETE FROM sandbox_metadata WHERE sandbox_id = $1").bind(id).execute(&mut *tx).await?;
            insert_metadata(&mut tx, id, metadata).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The sandbox ended without being asked to. Frees its quota; it stays visible until it is deleted.
    pub async fn fail(&self, id: &str, error: &SandboxError, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        sqlx::query(
            "UPDATE sandboxes SET state = 'failed', error_code = $2, error_message = $3, stopped_at_ms = $4 \
             WHERE id = $1 AND state <> 'destroyed'",
        )
        .bind(id)
        .bind(&error.code)
        .bind(&error.message)
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// The sandbox is gone; false when it was already.
    pub async fn destroy(&self, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.database.write().await?;
        let done = sqlx::query(
            "UPDATE sandboxes SET state = 'destroyed', destroyed_at_ms = $2, envs = NULL \
             WHERE id = $1 AND state <> 'destroyed'",
        )
        .bind(id)
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// The metadata of each of these sandboxes that has any.
    pub(super) async fn metadata(
        &self,
        ids: &[String],
    ) -> Result<BTreeMap<String, BTreeMap<String, String>>, StoreError> {
        let mut by_sandbox: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        if ids.is_empty() {
            return Ok(by_sandbox);
        }
        let mut query =
            QueryBuilder::<Sqlite>::new("SELECT sandbox_id, key, value FROM sandbox_metadata WHERE sandbox_id IN (");
        let mut list = query.separated(", ");
        for id in ids {
            list.push_bind(id.as_str());
        }
        query.push(")");
        for row in query.build().fetch_all(self.database.read()).await? {
            by_sandbox
                .entry(row.try_get("sandbox_id")?)
                .or_default()
                .insert(row.try_get("key")?, row.try_get("value")?);
        }
        Ok(by_sandbox)
    }

    /// Rows with their metadata, in the order given.
    pub(super) async fn with_metadata(&self, rows: &[SqliteRow]) -> Result<Vec<SandboxRow>, StoreError> {
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<Result<Vec<String>, _>>()?;
        let mut metadata = self.metadata(&ids).await?;
        rows.iter().zip(&ids).map(|(row, id)| SandboxRow::read(row, metadata.remove(id).unwrap_or_default())).collect()
    }
}

/// What the team's live sandboxes hold, seen by `connection`.
async fn usage(connection: &mut sqlx::SqliteConnection, team_id: &str) -> Result<Usage, StoreError> {
    // The states of `State::LIVE`.
    let row = sqlx::query(
        "SELECT COUNT(*) AS sandboxes, COALESCE(SUM(cpu), 0) AS cpu, COALESCE(SUM(memory_mb), 0) AS memory_mb \
         FROM sandboxes WHERE team_id = $1 \
             AND state IN ('creating', 'ready', 'restoring', 'checkpointing', 'stopping')",
    )
    .bind(team_id)
    .fetch_one(connection)
    .await?;
    Ok(Usage {
        sandboxes: count(row.try_get("sandboxes")?)?,
        cpu: count(row.try_get("cpu")?)?,
        memory_mb: count(row.try_get("memory_mb")?)?,
    })
}

async fn insert_metadata(tx: &mut Tx, id: &str, metadata: &BTreeMap<String, String>) -> Result<(), StoreError> {
    for (key, value) in metadata {
        sqlx::query("INSERT INTO sandbox_metadata (sandbox_id, key, value) VALUES ($1, $2, $3)")
            .bind(id)
            .bind(key)
            .bind(value)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}

/// Numbers, words and booleans always have a JSON form.
fn ports_json(ports: &[agent::ExposedPort]) -> String {
    serde_json::to_string(ports).unwrap_or_else(|_| "[]".to_owned())
}
