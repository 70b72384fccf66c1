//! What went through the networks of sandboxes, as the agent's journal tells it: what egress is billed by.
//!
//! A reading is of all since its interval began, so that one which is told twice, or not at all, changes no sum. Each hour of an
//! interval is a **part**, of which the last reading stays; the difference to the part before is what went through in that hour. A
//! part counts where it begins: with its hour, or with the interval where that is later.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use futures_util::{Stream, StreamExt};
use sandpiper_db::{Database, Statement, StoreError, count};
use sandpiper_protocol::ids::{IntervalId, TeamId};
use sandpiper_protocol::interval::{Bytes, Interval, IntervalRecord};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::billing::HOUR_MS;

/// The last readings of parts, by where these begin.
pub(super) type Parts = BTreeMap<i64, Bytes>;

/// What the records of a journal tell of each interval. Nothing where nothing went through.
pub(super) fn parts(records: &[IntervalRecord]) -> HashMap<&IntervalId, Parts> {
    let mut parts: HashMap<&IntervalId, Parts> = HashMap::new();
    for IntervalRecord { interval, .. } in records {
        if let Some(traffic) = interval.traffic.filter(|traffic| traffic.total != Bytes::default()) {
            parts.entry(&interval.id).or_default().insert(part_of(interval, traffic.at_ms), traffic.total);
        }
    }
    parts
}

/// Where the part begins that a reading is of: that which it ends, where it is of a full hour.
fn part_of(interval: &Interval, at_ms: i64) -> i64 {
    let hour = at_ms.saturating_sub(1).div_euclid(HOUR_MS).saturating_mul(HOUR_MS);
    hour.max(interval.began_at_ms)
}

/// Notes the parts of an interval, as told up to the record with this number, unless more was told of it already.
pub(super) async fn note(
    connection: &mut AnyConnection,
    id: &IntervalId,
    sequence: i64,
    parts: &Parts,
) -> Result<(), StoreError> {
    let stored = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    for (from_ms, Bytes { egress, ingress }) in parts {
        sqlx::query(
            "INSERT INTO usage_traffic (interval_id, from_ms, team_id, sandbox_id, egress_bytes, ingress_bytes) \
             SELECT id, CAST($1 AS BIGINT), team_id, sandbox_id, CAST($2 AS BIGINT), CAST($3 AS BIGINT) \
             FROM usage_intervals WHERE id = $4 AND sequence = $5 \
             ON CONFLICT (interval_id, from_ms) DO UPDATE \
             SET egress_bytes = excluded.egress_bytes, ingress_bytes = excluded.ingress_bytes",
        )
        .bind(from_ms)
        .bind(stored(*egress))
        .bind(stored(*ingress))
        .bind(id.as_str())
        .bind(sequence)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Adds columns to a statement whose `i` is an interval: `egress_bytes` and `ingress_bytes`, of the parts that begin within `time`.
pub(super) fn push_columns(statement: &mut Statement, time: &Range<i64>) {
    let columns = [
        (
            ", CAST(COALESCE((SELECT t.egress_bytes FROM usage_traffic t WHERE t.interval_id = i.id AND t.from_ms < ",
            " ORDER BY t.from_ms DESC LIMIT 1), 0) - \
             COALESCE((SELECT t.egress_bytes FROM usage_traffic t WHERE t.interval_id = i.id AND t.from_ms < ",
            " ORDER BY t.from_ms DESC LIMIT 1), 0) AS BIGINT) AS egress_bytes",
        ),
        (
            ", CAST(COALESCE((SELECT t.ingress_bytes FROM usage_traffic t WHERE t.interval_id = i.id AND t.from_ms < ",
            " ORDER BY t.from_ms DESC LIMIT 1), 0) - \
             COALESCE((SELECT t.ingress_bytes FROM usage_traffic t WHERE t.interval_id = i.id AND t.from_ms < ",
            " ORDER BY t.from_ms DESC LIMIT 1), 0) AS BIGINT) AS ingress_bytes",
        ),
    ];
    for (until_end, until_start, name) in columns {
        statement.push(until_end).push_bind(time.end).push(until_start).push_bind(time.start).push(name);
    }
}

/// What these columns say.
pub(super) fn bytes(row: &AnyRow) -> Result<Bytes, StoreError> {
    Ok(Bytes { egress: count(row.try_get("egress_bytes")?)?, ingress: count(row.try_get("ingress_bytes")?)? })
}

/// The traffic.
#[derive(Debug, Clone)]
pub struct Traffic {
    database: Database,
}

impl Traffic {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// The parts of a team that begin within `time`, or those of one sandbox, as they are read: where each begins, and what went
    /// through in it.
    pub fn of_team(
        &self,
        team_id: &TeamId,
        time: &Range<i64>,
        sandbox_id: Option<&str>,
    ) -> impl Stream<Item = Result<(i64, Bytes), StoreError>> + Send + Unpin + use<'_> {
        let mut query = Statement::new(
            "SELECT t.from_ms, \
             CAST(t.egress_bytes - COALESCE((SELECT p.egress_bytes FROM usage_traffic p \
                 WHERE p.interval_id = t.interval_id AND p.from_ms < t.from_ms \
                 ORDER BY p.from_ms DESC LIMIT 1), 0) AS BIGINT) AS egress_bytes, \
             CAST(t.ingress_bytes - COALESCE((SELECT p.ingress_bytes FROM usage_traffic p \
                 WHERE p.interval_id = t.interval_id AND p.from_ms < t.from_ms \
                 ORDER BY p.from_ms DESC LIMIT 1), 0) AS BIGINT) AS ingress_bytes \
             FROM usage_traffic t WHERE t.team_id = ",
        );
        query.push_bind(team_id.as_str());
        if let Some(sandbox_id) = sandbox_id {
            query.push(" AND t.sandbox_id = ").push_bind(sandbox_id);
        }
        query.push(" AND t.from_ms >= ").push_bind(time.start).push(" AND t.from_ms < ").push_bind(time.end);
        let rows = query.build().fetch(self.database.read());
        rows.map(|row| row.map_err(StoreError::from).and_then(|row| Ok((row.try_get("from_ms")?, bytes(&row)?))))
    }
}

#[cfg(test)]
mod tests {
    use sandpiper_protocol::interval::{Counters, Traffic};

    use super::*;

    #[test]
    fn the_last_reading_of_each_hour_stays_and_one_of_a_full_hour_is_of_the_hour_before() {
        let began_at_ms = HOUR_MS + 1000;
        let record = |sequence: i64, at_ms, egress: u64| IntervalRecord {
            sequence: sequence.unsigned_abs(),
            interval: Interval {
                id: "int1".into(),
                sandbox: "sbx1".into(),
                team: None,
                cpu: 1,
                memory_mb: 128,
                began_at_ms,
                traffic: Some(Traffic { at_ms, total: Bytes { egress, ingress: 0 }, counters: Counters::default() }),
                end: None,
            },
        };
        let readings = [
            (began_at_ms, 0),
            (began_at_ms + 5, 10),
            (2 * HOUR_MS, 30),
            (2 * HOUR_MS + 1, 31),
            (5 * HOUR_MS - 1, 50),
            (5 * HOUR_MS, 60),
        ];
        let records: Vec<_> = (1..).zip(readings).map(|(n, (at_ms, egress))| record(n, at_ms, egress)).collect();

        let parts = parts(&records).remove(&records[0].interval.id).unwrap();

        let told: Vec<_> = parts.into_iter().map(|(from_ms, total)| (from_ms, total.egress)).collect();
        assert_eq!(told, [(began_at_ms, 30), (2 * HOUR_MS, 31), (4 * HOUR_MS, 60)]);
        assert!(super::parts(&records[..1]).is_empty(), "nothing went through");
    }
}
