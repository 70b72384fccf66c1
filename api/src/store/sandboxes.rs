//! Sandboxes: made under the quota, kept in step with the agent, ended.
//!
//! The quota is checked in the transaction that inserts a row, or that takes a stopped one back into use. Such transactions
//! take turns ([`super::database`]), so however many requests arrive at once, the sum never passes the limit.
//!
//! A sandbox has its volumes while it is live: see [`super::volumes`].
//!
//! A row that a process starts or resumes bears its id, until something is taken over from the agent: see
//! [`super::processes`].
//!
//! Whatever happens to a sandbox is told by an event of the same transaction: see [`super::sandbox_events`].

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, Tx, audit, count, decode_enum, to_ms};
use sandpiper_protocol::agent::{self, SandboxError};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;

use super::events;
use super::idempotency;
use super::processes::OwnId;
use super::sandbox_documents::{Documents, WITH_DOCUMENTS, insert_metadata};
use super::sandbox_events::{self, DeletionReason, Reported, ms};
use super::sandbox_network::{insert_policy, to_stored};
use super::sandbox_row::{NewSandbox, SandboxRow, State, on_timeout_word};
use super::usage::{QuotaError, Usage, usage};
use super::volumes::{attach, is_attached_elsewhere, lacks_volume};
use crate::plan::Quota;

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
    own: OwnId,
}

/// What is written of sandboxes and not committed. Dropped, it is not.
#[derive(Debug)]
#[must_use]
pub struct Uncommitted {
    tx: Tx,
}

impl Uncommitted {
    /// Has it be there, for others and after a crash.
    ///
    /// # Errors
    ///
    /// Those of the database; then it may be there or not.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}

impl Sandboxes {
    pub(crate) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Inserts a row in `creating` for each of `new`, all of `team_id`, if `quota` has room for all of them beside what is
    /// live, and for what they store, and no other sandbox has a volume of theirs; all or none. A claim of an idempotency key is told
    /// their ids in the same transaction. All but the commit: that nothing is in the way of the rows is known then.
    pub async fn begin_create(
        &self,
        team_id: &TeamId,
        new: &[NewSandbox],
        quota: &Quota,
        claim: Option<&idempotency::Claim>,
    ) -> Result<Uncommitted, QuotaError> {
        let mut tx = self.database.write().await?;
        let now = new.first().map_or(Timestamp::UNIX_EPOCH, |one| one.created_at);
        let usage = usage(&mut tx, team_id, now).await?;
        let sandboxes = u32::try_from(new.len()).unwrap_or(u32::MAX);
        let cpu = new.iter().fold(0, |sum: u32, one| sum.saturating_add(one.cpu));
        let memory_mb = new.iter().map(|one| u64::from(one.memory_mb)).sum();
        if !usage.leaves_room(quota, sandboxes, cpu, memory_mb) {
            return Err(QuotaError::OverQuota(usage));
        }
        if usage.fills_storage(quota) {
            return Err(QuotaError::StorageFull(usage));
        }
        if usage.has_stopped_too_many(quota) {
            return Err(QuotaError::TooManyStopped(usage));
        }
        for one in new {
            insert(&mut tx, team_id, one, &self.own).await?;
            attach(&mut tx, &one.id, &one.volume_mounts).await?;
        }
        if let Some(claim) = claim {
            let ids: Vec<&str> = new.iter().map(|one| one.id.as_str()).collect();
            if !idempotency::name_resource(&mut tx, claim, &ids.join(",")).await? {
                return Err(QuotaError::ClaimLost);
            }
        }
        events::write(&mut tx, new.iter().map(|one| sandbox_events::created(team_id, one)).collect()).await?;
        Ok(Uncommitted { tx })
    }

    /// Takes a stopped sandbox back into use, as `restoring`, if `quota` has room for it and its volumes are free: all but the
    /// commit. `None` when it is not stopped.
    ///
    /// # Errors
    ///
    /// There is no room, or a volume is not free.
    pub async fn reserve(&self, id: &str, quota: &Quota, now: Timestamp) -> Result<Option<Uncommitted>, QuotaError> {
        let mut tx = self.database.write().await?;
        let row = sqlx::query("SELECT team_id, cpu, memory_mb FROM sandboxes WHERE id = $1 AND state = 'stopped'")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let usage = usage(&mut tx, &row.try_get::<String, _>("team_id")?.into(), now).await?;
        let (cpu, memory_mb) = (count(row.try_get("cpu")?)?, count(row.try_get("memory_mb")?)?);
        if !usage.leaves_room(quota, 1, cpu, memory_mb) {
            return Err(QuotaError::OverQuota(usage));
        }
        if lacks_volume(&mut tx, id).await? {
            return Err(QuotaError::VolumeGone);
        }
        // Whoever destroys it does not wait for this transaction.
        let taken =
            sqlx::query("UPDATE sandboxes SET state = 'restoring', process = $2 WHERE id = $1 AND state = 'stopped'")
                .bind(id)
                .bind(self.own.as_str())
                .execute(&mut *tx)
                .await;
        let taken = match taken {
            Err(error) if is_attached_elsewhere(&error) => return Err(QuotaError::VolumeAttached),
            taken => taken?,
        };
        Ok((taken.rows_affected() == 1).then_some(Uncommitted { tx }))
    }

    /// Shows a sandbox that runs as `stopping` from now on, before the agent is asked to stop it, if `quota` has room for another
    /// stopped one: all but the commit. `None` where it stops, or is stopped already, and has its room.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub async fn begin_stop(&self, id: &str, quota: &Quota, now: Timestamp) -> Result<Option<Uncommitted>, QuotaError> {
        let mut tx = self.database.write().await?;
        let running =
            "SELECT team_id FROM sandboxes WHERE id = $1 AND state IN ('ready', 'checkpointing', 'restoring')";
        let team: Option<String> = sqlx::query_scalar(running).bind(id).fetch_optional(&mut *tx).await?;
        let Some(team) = team else { return Ok(None) };
        let usage = usage(&mut tx, &team.into(), now).await?;
        if !usage.leaves_stop(quota) {
            return Err(QuotaError::TooManyStopped(usage));
        }
        mark_stopping(&mut tx, id, &self.own).await?;
        Ok(Some(Uncommitted { tx }))
    }

    /// Shows a sandbox that runs as `stopping` from now on, before the agent is asked to stop it, whatever the quota; false where
    /// it does not run, or is being restored.
    pub async fn mark_stopping(&self, id: &str) -> Result<bool, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let is_marked = mark_stopping(&mut tx, id, &self.own).await?;
        tx.commit().await?;
        Ok(is_marked)
    }

    /// What the team's sandboxes, checkpoints and volumes hold now.
    pub async fn usage(&self, team_id: &TeamId, now: Timestamp) -> Result<Usage, StoreError> {
        let mut connection = self.database.read().acquire().await?;
        usage(&mut connection, team_id, now).await
    }

    /// The team's sandbox of this id, unless it is destroyed.
    pub async fn get(&self, team_id: &TeamId, id: &str) -> Result<Option<SandboxRow>, StoreError> {
        let mut query = Statement::new(WITH_DOCUMENTS);
        query.push("WHERE s.id = ").push_bind(id);
        query.push(" AND s.team_id = ").push_bind(team_id.as_str()).push(" AND s.state <> 'destroyed'");
        let row = query.build().fetch_optional(self.database.read()).await?;
        row.as_ref().map(SandboxRow::read_with_documents).transpose()
    }

    /// The team's sandboxes of these ids, in no particular order, without those that are destroyed.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn get_all(&self, team_id: &TeamId, ids: &[&str]) -> Result<Vec<SandboxRow>, StoreError> {
        let mut query = Statement::new(WITH_DOCUMENTS);
        query
            .push("WHERE s.team_id = ")
            .push_bind(team_id.as_str())
            .push(" AND s.state <> 'destroyed' AND s.id IN (''");
        for id in ids {
            query.push(", ").push_bind(*id);
        }
        query.push(")");
        let rows = query.build().fetch_all(self.database.read()).await?;
        rows.iter().map(SandboxRow::read_with_documents).collect()
    }

    /// Whether the team has, or ever had, a sandbox of this id.
    pub async fn was_owned(&self, team_id: &TeamId, id: &str) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT 1 FROM sandboxes WHERE id = $1 AND team_id = $2")
            .bind(id)
            .bind(team_id.as_str())
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
        state.map(|state| decode_enum(&state)).transpose()
    }

    /// The environment of a sandbox, sealed; `None` without any.
    pub async fn sealed_envs(&self, id: &str) -> Result<Option<String>, StoreError> {
        let sealed: Option<Option<String>> = sqlx::query_scalar("SELECT envs FROM sandboxes WHERE id = $1")
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        Ok(sealed.flatten())
    }

    /// Every team's sandboxes that are not destroyed, without their metadata and policies.
    pub async fn existing(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM sandboxes WHERE state <> 'destroyed'").fetch_all(self.database.read()).await?;
        rows.iter().map(|row| SandboxRow::read(row, Documents::default())).collect()
    }

    /// Live sandboxes of teams that are disabled, oldest first, without their metadata and policies.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn live_of_disabled_teams(&self) -> Result<Vec<SandboxRow>, StoreError> {
        // The states of `State::LIVE`.
        let rows = sqlx::query(
            "SELECT * FROM sandboxes WHERE state IN ('creating', 'ready', 'restoring', 'checkpointing', 'stopping') \
                 AND team_id IN (SELECT id FROM teams WHERE disabled_at_ms IS NOT NULL) ORDER BY id",
        );
        let rows = rows.fetch_all(self.database.read()).await?;
        rows.iter().map(|row| SandboxRow::read(row, Documents::default())).collect()
    }

    /// How many sandboxes are in each state, all teams together.
    pub async fn counts(&self) -> Result<Vec<(State, u64)>, StoreError> {
        let rows = sqlx::query("SELECT state, COUNT(*) AS n FROM sandboxes WHERE state <> 'destroyed' GROUP BY state")
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(|row| Ok((decode_enum(row.try_get("state")?)?, count(row.try_get("n")?)?))).collect()
    }

    /// How many sandboxes of a team there are in each state that has any.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn counts_of(&self, team_id: &TeamId) -> Result<Vec<(State, u64)>, StoreError> {
        let rows = sqlx::query(
            "SELECT state, COUNT(*) AS n FROM sandboxes WHERE team_id = $1 AND state <> 'destroyed' GROUP BY state",
        )
        .bind(team_id.as_str())
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(|row| Ok((decode_enum(row.try_get("state")?)?, count(row.try_get("n")?)?))).collect()
    }

    /// Takes over what the agent says of a sandbox. What ended in this store stays ended: a report may be older.
    pub async fn mirror(&self, report: &agent::Sandbox, now: Timestamp) -> Result<(), StoreError> {
        self.take_over(report, None, &[], now).await.map(drop)
    }

    /// Likewise of several, at once. None of them has volumes.
    ///
    /// # Errors
    ///
    /// Those of the database; then nothing was taken over.
    pub async fn mirror_all(&self, reports: &[agent::Sandbox], now: Timestamp) -> Result<(), StoreError> {
        // All who lock several rows do so in this order.
        let mut reports: Vec<_> = reports.iter().collect();
        reports.sort_by_key(|report| &report.id);
        let mut tx = self.database.write_shared().await?;
        for report in reports {
            take_over(&mut tx, report, None, &[], now).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Likewise, and with it writes the audit's entry on the request that the report answers. False where the transaction ended
    /// without either.
    pub async fn mirror_audited(
        &self,
        report: &agent::Sandbox,
        entry: &audit::Entry,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.take_over(report, None, std::slice::from_ref(entry), now).await
    }

    /// Likewise, unless the row has moved on since it was read as `seen`: the report may be older than that.
    pub async fn mirror_unless_moved(
        &self,
        report: &agent::Sandbox,
        seen: &SandboxRow,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.take_over(report, Some(seen), &[], now).await.map(drop)
    }

    /// How much of the host's disk sandboxes hold, all at once.
    pub async fn retain(&self, sizes: &[(&str, u64)]) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        for (id, bytes) in sizes {
            sqlx::query("UPDATE sandboxes SET retained_bytes = $2 WHERE id = $1 AND state <> 'destroyed'")
                .bind(id)
                .bind(i64::try_from(*bytes).unwrap_or(i64::MAX))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn take_over(
        &self,
        report: &agent::Sandbox,
        seen: Option<&SandboxRow>,
        entries: &[audit::Entry],
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let taken_over = take_over(&mut tx, report, seen, entries, now).await?;
        if taken_over {
            tx.commit().await?;
        }
        Ok(taken_over)
    }

    /// Applies what an update request changes and the agent does not know of.
    pub async fn change(&self, id: &str, change: &Change) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        // Also where the time-out stays: the row is the lock under which metadata is replaced.
        sqlx::query(
            "UPDATE sandboxes SET timeout_seconds = COALESCE($2, timeout_seconds) WHERE id = $1 AND state <> 'destroyed'",
        )
        .bind(id)
        .bind(change.timeout_seconds.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)))
        .execute(&mut *tx)
        .await?;
        if let Some(metadata) = &change.metadata {
            sqlx::query("DELETE FROM sandbox_metadata WHERE sandbox_id = $1").bind(id).execute(&mut *tx).await?;
            insert_metadata(&mut tx, id, metadata).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Notes when stopped sandboxes are to be deleted, or that they are not, by their ids.
    pub async fn announce(&self, expiries: &[(&str, Option<Timestamp>)]) -> Result<(), StoreError> {
        if expiries.is_empty() {
            return Ok(());
        }
        let mut tx = self.database.write_shared().await?;
        for (id, expires_at) in expiries {
            sqlx::query("UPDATE sandboxes SET expires_at_ms = $2 WHERE id = $1 AND state <> 'destroyed'")
                .bind(*id)
                .bind(expires_at.map(to_ms))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The sandbox ended without being asked to. Frees its quota; it stays visible until it is deleted.
    pub async fn fail(&self, id: &str, error: &SandboxError, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        let Some(locked) = sandbox_events::lock(&mut tx, id).await? else { return Ok(()) };
        sqlx::query(
            "UPDATE sandboxes SET state = 'failed', error_code = $2, error_message = $3, stopped_at_ms = $4 \
             WHERE id = $1",
        )
        .bind(id)
        .bind(&error.code)
        .bind(&error.message)
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        if locked.state != State::Failed {
            events::write(&mut tx, vec![locked.failed(error, now)]).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The sandbox is gone; false when it was already.
    pub async fn destroy(&self, id: &str, reason: DeletionReason, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let Some(locked) = sandbox_events::lock(&mut tx, id).await? else { return Ok(false) };
        sqlx::query("UPDATE sandboxes SET state = 'destroyed', destroyed_at_ms = $2, envs = NULL WHERE id = $1")
            .bind(id)
            .bind(to_ms(now))
            .execute(&mut *tx)
            .await?;
        sqlx::query("DELETE FROM sandbox_policies WHERE sandbox_id = $1").bind(id).execute(&mut *tx).await?;
        sqlx::query("DELETE FROM sandbox_metadata WHERE sandbox_id = $1").bind(id).execute(&mut *tx).await?;
        let news = vec![locked.deleted(reason, now)];
        if matches!(reason, DeletionReason::TimedOut | DeletionReason::Gone) {
            audit::insert(&mut tx, &sandbox_events::of_the_host(&news)).await?;
        }
        events::write(&mut tx, news).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// What [`Sandboxes::mirror`] and the like do, within a transaction; false where there is no such row, or where its volume is
/// another's yet, which no change of the transaction survives.
async fn take_over(
    tx: &mut Tx,
    report: &agent::Sandbox,
    seen: Option<&SandboxRow>,
    entries: &[audit::Entry],
    now: Timestamp,
) -> Result<bool, StoreError> {
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
    let Some(locked) = sandbox_events::lock(tx, &report.id).await? else { return Ok(false) };
    let reported = Reported { state, start_ms: ms(started_at), stop_ms: ms(stopped_at), error: error.as_ref() };
    let (news, told) = locked.reported(&reported, now);
    let versions = match state {
        State::Failed | State::Destroyed => locked.versions,
        _ => locked.versions.reported(report.network_version, seen.is_some()),
    };
    let taken_over = sqlx::query(
        "UPDATE sandboxes SET state = $2, deadline_ms = $3, on_timeout = $4, auto_resume = $5, exposed_ports = $6, \
             data_plane_url = $7, started_at_ms = $8, stopped_at_ms = $9, error_code = $10, error_message = $11, \
             retained_bytes = $12, allow_public_traffic = $15, pause_memory = $16, process = NULL, \
             told_start_ms = $17, told_stop_ms = $18, capture_output = $19, network_version = $20, network_applied = $21, \
             network_error = CASE WHEN $21 < network_version OR $21 = network_applied THEN network_error END \
         WHERE id = $1 AND state NOT IN ('failed', 'destroyed') AND state = COALESCE($13, state) \
             AND network_applied = COALESCE($14, network_applied)",
    )
    .bind(report.id.as_str())
    .bind(state.as_str())
    .bind(to_ms(report.deadline))
    .bind(on_timeout_word(report.lifecycle.on_timeout))
    .bind(i64::from(report.lifecycle.auto_resume))
    .bind(ports_json(&report.exposed_ports))
    .bind(&report.data_plane_url)
    .bind(reported.start_ms)
    .bind(reported.stop_ms)
    .bind(error.as_ref().map(|error| &error.code))
    .bind(error.as_ref().map(|error| &error.message))
    .bind(i64::try_from(report.retained_bytes).unwrap_or(i64::MAX))
    .bind(seen.map(|row| row.state.as_str()))
    .bind(seen.map(|row| to_stored(row.network.applied)))
    .bind(i64::from(report.allow_public_traffic))
    .bind(i64::from(report.lifecycle.pause_memory))
    .bind(told.start_ms)
    .bind(told.stop_ms)
    .bind(i64::from(report.capture_output))
    .bind(versions.newest)
    .bind(versions.applied)
    .execute(&mut **tx)
    .await;
    let taken_over = match taken_over {
        // It woke of itself, and the row of the one that had its volume before is not up to date yet: the next round of
        // synchronisation sees to both.
        Err(error) if is_attached_elsewhere(&error) => {
            tracing::warn!(sandbox = report.id.as_str(), "not taken over yet: another sandbox's row has its volume");
            return Ok(false);
        }
        taken_over => taken_over?,
    };
    audit::insert(tx, entries).await?;
    if taken_over.rows_affected() == 1 {
        // A request that changes a sandbox takes its own report over.
        if seen.is_some() {
            audit::insert(tx, &sandbox_events::of_the_host(&news)).await?;
        }
        events::write(tx, news).await?;
    }
    Ok(true)
}

/// One that is being restored belongs to that request.
async fn mark_stopping(tx: &mut Tx, id: &str, own: &OwnId) -> Result<bool, StoreError> {
    let marked = sqlx::query(
        "UPDATE sandboxes SET state = 'stopping', process = $2 WHERE id = $1 AND state IN ('ready', 'checkpointing')",
    )
    .bind(id)
    .bind(own.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(marked.rows_affected() == 1)
}

/// One row in `creating`, with its documents.
async fn insert(tx: &mut Tx, team_id: &TeamId, new: &NewSandbox, own: &OwnId) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
             timeout_seconds, on_timeout, auto_resume, exposed_ports, allow_public_traffic, envs, created_at_ms, \
             snapshot_id, network_version, process, pause_memory, capture_output) \
         VALUES ($1, $2, 'creating', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
    )
    .bind(&new.id)
    .bind(team_id.as_str())
    .bind(&new.template)
    .bind(&new.template_version)
    .bind(i64::from(new.cpu))
    .bind(i64::from(new.memory_mb))
    .bind(i64::from(new.disk_gib))
    .bind(i64::try_from(new.timeout_seconds).unwrap_or(i64::MAX))
    .bind(on_timeout_word(new.lifecycle.on_timeout))
    .bind(i64::from(new.lifecycle.auto_resume))
    .bind(ports_json(&new.exposed_ports))
    .bind(i64::from(new.allow_public_traffic))
    .bind(&new.sealed_envs)
    .bind(to_ms(new.created_at))
    .bind(&new.snapshot_id)
    .bind(to_stored(new.network.version))
    .bind(own.as_str())
    .bind(i64::from(new.lifecycle.pause_memory))
    .bind(i64::from(new.capture_output))
    .execute(&mut **tx)
    .await?;
    insert_policy(tx, &new.id, &new.network.policy).await?;
    insert_metadata(tx, &new.id, &new.metadata).await
}

/// Numbers, words and booleans always have a JSON form.
fn ports_json(ports: &[agent::ExposedPort]) -> String {
    serde_json::to_string(ports).unwrap_or_else(|_| "[]".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use sandpiper_protocol::agent::{Lifecycle, Network, RuntimeBaseline, TemplateVersion};
    use sandpiper_protocol::id;
    use sandpiper_protocol::template::ImageSettings;

    use super::super::Store;
    use super::super::testing::test_store;
    use super::*;
    use crate::plan::Plan;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn new_sandbox() -> NewSandbox {
        NewSandbox {
            id: id::generate("sbx"),
            template: "base".into(),
            template_version: "ver1".into(),
            cpu: 1,
            memory_mb: 512,
            disk_gib: 10,
            timeout_seconds: 60,
            lifecycle: Lifecycle::default(),
            metadata: BTreeMap::new(),
            exposed_ports: Vec::new(),
            allow_public_traffic: false,
            capture_output: false,
            network: Network { version: 1, ..Network::default() },
            volume_mounts: Vec::new(),
            sealed_envs: None,
            snapshot_id: None,
            created_at: NOW,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn two_processes_on_one_database_never_pass_the_quota_together() {
        let store = test_store().await;
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        let team = store.teams.ensure("acme", Plan::Pro, NOW).await.unwrap();
        let version = TemplateVersion {
            id: "ver1".into(),
            slug: "base".into(),
            digest: "d".into(),
            key: None,
            created_at: NOW,
            baseline: RuntimeBaseline { cpu: 1, memory_mb: 512 },
            team: None,
            disk_gib: 0,
            settings: ImageSettings::default(),
            start: None,
            command: None,
            images: BTreeMap::new(),
            retained_bytes: 0,
        };
        store.templates.replace(&HashSet::new(), &[version]).await.unwrap();

        let creates = [&*store, &other].into_iter().cycle().take(24).map(|store| {
            let (sandboxes, team_id) = (store.sandboxes.clone(), team.id.clone());
            let quota = Quota { sandboxes: 5, cpu: 100, memory_mb: 100_000, ..Quota::default() };
            tokio::spawn(async move {
                let rows = sandboxes.begin_create(&team_id, &[new_sandbox()], &quota, None).await?;
                Ok::<_, QuotaError>(rows.commit().await?)
            })
        });
        let mut made = 0;
        for create in creates.collect::<Vec<_>>() {
            made += u32::from(create.await.unwrap().is_ok());
        }

        assert_eq!(made, 5);
        assert_eq!(store.sandboxes.usage(&team.id, NOW).await.unwrap().sandboxes, 5);
    }
}
