//! When sandboxes had a machine, as the agent's journal tells it: what runtime is billed by.
//!
//! Any number of processes may tell the same, in any order: of what is told of an interval, the record with the highest number
//! stays.

use std::collections::BTreeMap;
use std::ops::Range;

use futures_util::future::ready;
use futures_util::{Stream, StreamExt, TryStreamExt};
use sandpiper_db::{Database, Statement, StoreError, count, decode_enum};
use sandpiper_protocol::ids::{IntervalId, SandboxId, TeamId};
use sandpiper_protocol::interval::{Bytes, EndReason, Interval, IntervalPage, IntervalRecord};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::traffic;

/// How long a machine of a team ran, and what it had. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub id: IntervalId,
    /// Nobody, of a sandbox that no team here ever had.
    pub team_id: Option<TeamId>,
    pub sandbox_id: SandboxId,
    pub cpu: u32,
    pub memory_mb: u32,
    /// Of one that goes on, it reaches to where it was seen last.
    pub time: Range<i64>,
    /// None of one that goes on.
    pub end_reason: Option<EndReason>,
}

/// The intervals.
#[derive(Debug, Clone)]
pub struct Intervals {
    database: Database,
}

impl Intervals {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Takes over what a journal says, all of it or nothing.
    pub async fn take_over(&self, page: &IntervalPage) -> Result<(), StoreError> {
        // In the order of their ids, as every process has it, and each once.
        let newest: BTreeMap<&IntervalId, &IntervalRecord> =
            page.records.iter().map(|record| (&record.interval.id, record)).collect();
        let parts = traffic::parts(&page.records);
        let mut tx = self.database.write_shared().await?;
        for record in newest.into_values() {
            let Interval { id, sandbox, team, cpu, memory_mb, began_at_ms, traffic: _, end } = &record.interval;
            let sequence = i64::try_from(record.sequence).unwrap_or(i64::MAX);
            sqlx::query(
                "INSERT INTO usage_intervals (id, journal, sequence, team_id, sandbox_id, cpu, memory_mb, began_at_ms, \
                     ended_at_ms, end_reason) \
                 VALUES ($1, $2, $3, COALESCE($4, (SELECT team_id FROM sandboxes WHERE id = $5)), $5, $6, $7, $8, $9, $10) \
                 ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence, ended_at_ms = excluded.ended_at_ms, \
                     end_reason = excluded.end_reason WHERE usage_intervals.sequence < excluded.sequence",
            )
            .bind(id.as_str())
            .bind(&page.journal)
            .bind(sequence)
            .bind(team.as_ref().map(TeamId::as_str))
            .bind(sandbox.as_str())
            .bind(i64::from(*cpu))
            .bind(i64::from(*memory_mb))
            .bind(began_at_ms)
            .bind(end.map(|end| end.at_ms))
            .bind(end.map(|end| end.reason.as_str()))
            .execute(&mut *tx)
            .await?;
            if let Some(parts) = parts.get(id) {
                traffic::note(&mut tx, id, sequence, parts).await?;
            }
        }
        // Only then everything that had ended by that time is known to have.
        if let (Some(seen_at_ms), false) = (page.seen_at_ms, page.more) {
            sqlx::query(
                "INSERT INTO usage_journals (id, seen_at_ms) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE \
                 SET seen_at_ms = excluded.seen_at_ms WHERE usage_journals.seen_at_ms < excluded.seen_at_ms",
            )
            .bind(&page.journal)
            .bind(seen_at_ms)
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The runs that have a part within `time`, as they are read: of a team or of all, of one sandbox or of all. Runs of one team
    /// are in no order, those of all in that of their teams.
    pub fn within(
        &self,
        time: &Range<i64>,
        team_id: Option<&TeamId>,
        sandbox_id: Option<&str>,
    ) -> impl Stream<Item = Result<Run, StoreError>> + Send + Unpin + use<'_> {
        let query = select(Statement::new("SELECT i.*, j.seen_at_ms"), time, team_id, sandbox_id);
        let (rows, from) = (query.build().fetch(self.database.read()), time.start);
        let runs = rows.map(|row| run(&row?));
        runs.try_filter(move |run| ready(run.time.end > from))
    }

    /// As [`Self::within`], of all sandboxes, each with what went through its network in the hours that begin within `time`.
    pub fn with_traffic_within(
        &self,
        time: &Range<i64>,
        team_id: Option<&TeamId>,
    ) -> impl Stream<Item = Result<(Run, Bytes), StoreError>> + Send + Unpin + use<'_> {
        let mut columns = Statement::new("SELECT i.*, j.seen_at_ms");
        traffic::push_columns(&mut columns, time);
        let query = select(columns, time, team_id, None);
        let (rows, from) = (query.build().fetch(self.database.read()), time.start);
        let runs = rows.map(|row| {
            let row = row?;
            Ok((run(&row)?, traffic::bytes(&row)?))
        });
        runs.try_filter(move |(run, _)| ready(run.time.end > from))
    }

    /// Until when sandboxes that run are known to have run; nothing where none ever did.
    pub async fn seen_at_ms(&self) -> Result<Option<i64>, StoreError> {
        let row = sqlx::query("SELECT MAX(seen_at_ms) AS seen FROM usage_journals").fetch_one(self.database.read());
        Ok(row.await?.try_get("seen")?)
    }
}

/// A statement that begins with its columns, of the intervals that may have a part within `time`: see [`Intervals::within`].
fn select(mut query: Statement, time: &Range<i64>, team_id: Option<&TeamId>, sandbox_id: Option<&str>) -> Statement {
    query
        .push(" FROM usage_intervals i LEFT JOIN usage_journals j ON j.id = i.journal WHERE i.began_at_ms < ")
        .push_bind(time.end)
        .push(" AND (i.ended_at_ms > ")
        .push_bind(time.start)
        .push(" OR i.ended_at_ms IS NULL)");
    if let Some(team_id) = team_id {
        query.push(" AND i.team_id = ").push_bind(team_id.as_str());
    }
    if let Some(sandbox_id) = sandbox_id {
        query.push(" AND i.sandbox_id = ").push_bind(sandbox_id);
    }
    if team_id.is_none() {
        query.push(" ORDER BY i.team_id, i.began_at_ms, i.id");
    }
    query
}

fn run(row: &AnyRow) -> Result<Run, StoreError> {
    let began_at_ms: i64 = row.try_get("began_at_ms")?;
    let (ended, seen): (Option<i64>, Option<i64>) = (row.try_get("ended_at_ms")?, row.try_get("seen_at_ms")?);
    let end_reason: Option<&str> = row.try_get("end_reason")?;
    Ok(Run {
        id: row.try_get::<String, _>("id")?.into(),
        team_id: row.try_get::<Option<String>, _>("team_id")?.map(TeamId::from),
        sandbox_id: row.try_get::<String, _>("sandbox_id")?.into(),
        cpu: count(row.try_get("cpu")?)?,
        memory_mb: count(row.try_get("memory_mb")?)?,
        time: began_at_ms..ended.or(seen).unwrap_or(began_at_ms).max(began_at_ms),
        end_reason: end_reason.map(decode_enum).transpose()?,
    })
}
