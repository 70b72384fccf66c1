//! The line of endpoints that wait for attempts. Each endpoint's row has its place in it: `in_flight` and `next_at_ms` sum up
//! its deliveries, and are written in the transaction that changes these.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, Tx, count, from_ms, to_ms};
use sqlx::Row;

use super::{DeliveryStore, Endpoint, query, statement};
use crate::capacity::SMALLEST_CAP;

/// How much waits at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load<E> {
    pub endpoint: E,
    pub pending: u64,
    pub in_flight: u64,
}

impl<E: Endpoint> DeliveryStore<E> {
    /// When the first attempt at any endpoint is due that has room for one.
    pub async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let row = query::<E>(
            "SELECT MIN(next_at_ms) AS next_at_ms FROM {endpoints} \
             WHERE in_flight < cap AND next_at_ms IS NOT NULL AND NOT ({held})",
        )
        .fetch_one(self.database.read())
        .await?;
        row.try_get::<Option<i64>, _>("next_at_ms")?.map(from_ms).transpose()
    }

    /// What waits at the endpoints at which anything does.
    pub async fn loads(&self) -> Result<Vec<Load<E>>, StoreError> {
        let rows = query::<E>(
            "SELECT {owner}, {part}, CAST(SUM(pending) AS BIGINT) AS pending, \
                 CAST(SUM(in_flight) AS BIGINT) AS in_flight \
             FROM (SELECT {owner}, {part}, 1 AS pending, 0 AS in_flight FROM {deliveries} WHERE state = 'pending' \
                   UNION ALL \
                   SELECT {owner}, {part}, 0, 1 FROM {deliveries} WHERE state = 'in_flight') AS waiting \
             GROUP BY {owner}, {part}",
        )
        .fetch_all(self.database.read())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Load {
                    endpoint: E::read(row)?,
                    pending: count(row.try_get("pending")?)?,
                    in_flight: count(row.try_get("in_flight")?)?,
                })
            })
            .collect()
    }

    /// Takes every endpoint's cap back to the smallest: for the start of a process, at which much may be due at once. What is
    /// in flight then is mostly a dead process's, and would keep the endpoint from everything until those leases end: so it
    /// does not count, up to `largest_cap`.
    pub async fn begin_small(&self, largest_cap: u32) -> Result<(), StoreError> {
        self.batch
            .write(move |tx| {
                Box::pin(async move {
                    let cap = "UPDATE {endpoints} SET cap = $1 + CASE WHEN in_flight < $2 THEN in_flight ELSE $2 END";
                    query::<E>(cap)
                        .bind(i64::from(SMALLEST_CAP))
                        .bind(i64::from(largest_cap))
                        .execute(&mut **tx)
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Takes the caps of these endpoints back to the smallest.
    pub async fn slow_down(&self, endpoints: BTreeSet<E>) -> Result<(), StoreError> {
        if endpoints.is_empty() {
            return Ok(());
        }
        self.batch.write(move |tx| Box::pin(async move { slow_down(tx, &endpoints).await })).await
    }
}

/// Puts endpoints into the line, each at its time at the latest; those that have a URL.
pub async fn line_up<E: Endpoint>(tx: &mut Tx, due: BTreeMap<E, Timestamp>) -> Result<BTreeSet<E>, StoreError> {
    if due.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut statement = statement::<E>(
        "UPDATE {endpoints} SET next_at_ms = CASE WHEN next_at_ms <= column3 THEN next_at_ms ELSE column3 END FROM (",
    );
    statement.push_rows(due.into_iter().map(|(endpoint, at)| {
        let [owner, part] = endpoint.key();
        [owner.into(), part.into(), to_ms(at).into()]
    }));
    statement
        .push(") AS given WHERE {owner} = column1 AND {part} = column2 AND url IS NOT NULL RETURNING {owner}, {part}");
    let rows = statement.build().fetch_all(&mut **tx).await?;
    rows.iter().map(E::read).collect()
}

async fn slow_down<E: Endpoint>(tx: &mut Tx, endpoints: &BTreeSet<E>) -> Result<(), StoreError> {
    let mut statement = statement::<E>("UPDATE {endpoints} SET cap = ");
    statement.push_bind(i64::from(SMALLEST_CAP)).push(" FROM (");
    statement.push_rows(endpoints.iter().map(|one| one.key().map(Into::into)));
    statement.push(") AS given WHERE {owner} = column1 AND {part} = column2 AND cap > ");
    statement.push_bind(i64::from(SMALLEST_CAP));
    statement.build().execute(&mut **tx).await?;
    Ok(())
}

/// What an attempt's end needs to know of the endpoint.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) url: Option<String>,
    pub(super) cap: u32,
}

/// Reads them as they are in this transaction.
pub(super) async fn standings<'a, E: Endpoint>(
    tx: &mut Tx,
    endpoints: impl IntoIterator<Item = &'a E>,
) -> Result<BTreeMap<E, Standing>, StoreError> {
    let mut statement = statement::<E>("SELECT {owner}, {part}, url, cap FROM {endpoints} JOIN (");
    let rows = endpoints.into_iter().map(|one| one.key().map(Into::into));
    statement.push_rows(rows).push(") AS given ON {owner} = column1 AND {part} = column2");
    let rows = statement.build().fetch_all(&mut **tx).await?;
    rows.iter()
        .map(|row| Ok((E::read(row)?, Standing { url: row.try_get("url")?, cap: count(row.try_get("cap")?)? })))
        .collect()
}

/// What changes at an endpoint besides its deliveries.
#[derive(Debug, Default)]
pub struct Change {
    /// Attempts that may be under way at a time.
    pub cap: Option<u32>,
    /// Attempts began at this time, which puts the endpoint behind all that have waited until then.
    pub served_at: Option<Timestamp>,
}

/// Sums the endpoints' deliveries up anew. Ends every transaction that changed one of them, so that the line never forgets
/// an endpoint, and what was wrong would not stay so.
pub async fn refresh<E: Endpoint>(tx: &mut Tx, changes: &[(E, Change)]) -> Result<(), StoreError> {
    if !changes.is_empty() {
        summing_up(changes).build().execute(&mut **tx).await?;
    }
    Ok(())
}

/// What is in flight has a lease, and is asked for it so that SQLite sees which index is meant: it would take another, and
/// with it look at everything that was ever delivered to the endpoint.
fn summing_up<E: Endpoint>(changes: &[(E, Change)]) -> Statement {
    let mut statement = statement::<E>(
        "UPDATE {endpoints} SET \
             cap = COALESCE(column3, cap), \
             served_at_ms = COALESCE(column4, served_at_ms), \
             in_flight = (SELECT COUNT(*) FROM {deliveries} d \
                          WHERE d.{owner} = column1 AND d.{part} = column2 AND d.state = 'in_flight' \
                              AND d.lease_until_ms > 0), \
             next_at_ms = (SELECT CASE WHEN d.next_at_ms < COALESCE(column4, served_at_ms) \
                                       THEN COALESCE(column4, served_at_ms) ELSE d.next_at_ms END \
                           FROM {deliveries} d \
                           WHERE d.{owner} = column1 AND d.{part} = column2 AND d.state = 'pending' \
                           ORDER BY d.next_at_ms LIMIT 1) \
         FROM (",
    );
    statement.push_rows(changes.iter().map(|(endpoint, change)| {
        let [owner, part] = endpoint.key();
        [owner.into(), part.into(), change.cap.map(i64::from).into(), change.served_at.map(to_ms).into()]
    }));
    statement.push(") AS given WHERE {owner} = column1 AND {part} = column2");
    statement
}

/// Ends what is pending; how many deliveries that were.
pub async fn cancel_pending<E: Endpoint>(tx: &mut Tx, endpoint: &E, now: Timestamp) -> Result<u64, StoreError> {
    let cancelled = query::<E>(
        "UPDATE {deliveries} SET state = 'cancelled', next_at_ms = NULL, ended_at_ms = $3 \
         WHERE {owner} = $1 AND {part} = $2 AND state = 'pending'",
    )
    .bind(endpoint.key()[0].to_owned())
    .bind(endpoint.key()[1].to_owned())
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    Ok(cancelled.rows_affected())
}

#[cfg(test)]
mod tests {
    use sandpiper_db::{Database, DatabaseLocation};
    use sqlx::{AssertSqlSafe, Execute};

    use super::*;
    use crate::store::testing::TestEndpoint;

    #[tokio::test]
    async fn on_sqlite_summing_up_does_not_look_at_deliveries_that_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let location = DatabaseLocation::Sqlite(folder.path().join("api.db"));
        let database = Database::open(&location).await.unwrap();
        let endpoint = TestEndpoint(["m".to_owned(), "live".to_owned()]);
        let statement = summing_up(&[(endpoint, Change::default())]).build().sql().as_str().to_owned();

        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
        let plan = sqlx::query(explain).fetch_all(database.read()).await.unwrap();

        let steps: Vec<String> = plan.iter().map(|step| step.get("detail")).collect();
        let of_deliveries: Vec<_> = steps.iter().filter(|step| step.contains("webhook_deliveries")).collect();
        assert_eq!(of_deliveries.len(), 2, "{steps:?}");
        assert!(of_deliveries[0].contains("webhook_deliveries_in_flight"), "{steps:?}");
        assert!(of_deliveries[1].contains("webhook_deliveries_pending"), "{steps:?}");
    }
}
