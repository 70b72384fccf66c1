//! Where webhooks go: an endpoint for each realm of a merchant. Its row is also the endpoint's place in the line of those
//! that wait for attempts.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sandpiper_db::batch::Batch;
use sandpiper_db::{Database, Statement, StoreError, Tx, audit, count, decode_enum, from_ms, to_ms};
use sqlx::Row;

use crate::domain::capacity::SMALLEST_CAP;
use crate::domain::realm::Realm;

/// Which endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    pub merchant_id: String,
    pub realm: Realm,
}

/// What is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// `None`: it was taken away.
    pub url: Option<String>,
    pub updated_at: Timestamp,
}

/// How much waits at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    pub endpoint: EndpointKey,
    pub pending: u64,
    pub in_flight: u64,
}

/// The endpoints.
#[derive(Debug, Clone)]
pub struct WebhookEndpoints {
    database: Database,
    batch: Batch,
}

impl WebhookEndpoints {
    pub(crate) fn new(database: Database, batch: Batch) -> Self {
        Self { database, batch }
    }

    /// What is configured; `None` if nothing ever was.
    pub async fn get(&self, endpoint: &EndpointKey) -> Result<Option<Configuration>, StoreError> {
        let row = sqlx::query("SELECT url, updated_at_ms FROM webhook_endpoints WHERE merchant_id = $1 AND realm = $2")
            .bind(&endpoint.merchant_id)
            .bind(endpoint.realm.as_str())
            .fetch_optional(self.database.read())
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Configuration { url: row.try_get("url")?, updated_at: from_ms(row.try_get("updated_at_ms")?)? }))
    }

    /// Configures the URL from the next attempt on, and writes the audit's entry. Without a URL, what is pending is
    /// cancelled; how many deliveries that were.
    pub async fn configure(
        &self,
        endpoint: EndpointKey,
        url: Option<String>,
        entry: audit::Entry,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.batch
            .write(move |tx| {
                Box::pin(async move {
                    audit::insert(tx, &[entry]).await?;
                    configure(tx, &endpoint, url, now).await
                })
            })
            .await
    }

    /// When the first attempt at any endpoint is due that has room for one.
    pub async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let row = sqlx::query(
            "SELECT MIN(next_at_ms) AS next_at_ms FROM webhook_endpoints \
             WHERE in_flight < cap AND next_at_ms IS NOT NULL",
        )
        .fetch_one(self.database.read())
        .await?;
        row.try_get::<Option<i64>, _>("next_at_ms")?.map(from_ms).transpose()
    }

    /// What waits at the endpoints at which anything does.
    pub async fn loads(&self) -> Result<Vec<Load>, StoreError> {
        let rows = sqlx::query(
            "SELECT merchant_id, realm, CAST(SUM(pending) AS BIGINT) AS pending, \
                 CAST(SUM(in_flight) AS BIGINT) AS in_flight \
             FROM (SELECT merchant_id, realm, 1 AS pending, 0 AS in_flight FROM webhook_deliveries WHERE state = 'pending' \
                   UNION ALL \
                   SELECT merchant_id, realm, 0, 1 FROM webhook_deliveries WHERE state = 'in_flight') AS waiting \
             GROUP BY merchant_id, realm",
        )
        .fetch_all(self.database.read())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Load {
                    endpoint: read_key(row)?,
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
                    let cap =
                        "UPDATE webhook_endpoints SET cap = $1 + CASE WHEN in_flight < $2 THEN in_flight ELSE $2 END";
                    sqlx::query(cap)
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
    pub async fn slow_down(&self, endpoints: BTreeSet<EndpointKey>) -> Result<(), StoreError> {
        if endpoints.is_empty() {
            return Ok(());
        }
        self.batch.write(move |tx| Box::pin(async move { slow_down(tx, &endpoints).await })).await
    }
}

async fn configure(
    tx: &mut Tx,
    endpoint: &EndpointKey,
    url: Option<String>,
    now: Timestamp,
) -> Result<u64, StoreError> {
    sqlx::query(
        "INSERT INTO webhook_endpoints (merchant_id, realm, url, cap, updated_at_ms) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (merchant_id, realm) DO UPDATE SET url = excluded.url, updated_at_ms = excluded.updated_at_ms, \
             cap = CASE WHEN webhook_endpoints.url = excluded.url THEN webhook_endpoints.cap ELSE excluded.cap END",
    )
    .bind(&endpoint.merchant_id)
    .bind(endpoint.realm.as_str())
    .bind(&url)
    .bind(i64::from(SMALLEST_CAP))
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    if url.is_some() {
        return Ok(0);
    }
    let cancelled = cancel_pending(tx, endpoint, now).await?;
    refresh(tx, &[(endpoint.clone(), Change::default())]).await?;
    Ok(cancelled)
}

async fn slow_down(tx: &mut Tx, endpoints: &BTreeSet<EndpointKey>) -> Result<(), StoreError> {
    let mut statement = Statement::new("UPDATE webhook_endpoints SET cap = ");
    statement.push_bind(i64::from(SMALLEST_CAP)).push(" FROM (");
    statement.push_rows(endpoints.iter().map(|one| [one.merchant_id.as_str().into(), one.realm.as_str().into()]));
    statement.push(") AS given WHERE merchant_id = column1 AND realm = column2 AND cap > ");
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
pub(super) async fn standings<'a>(
    tx: &mut Tx,
    endpoints: impl IntoIterator<Item = &'a EndpointKey>,
) -> Result<BTreeMap<EndpointKey, Standing>, StoreError> {
    let mut statement = Statement::new("SELECT merchant_id, realm, url, cap FROM webhook_endpoints JOIN (");
    let rows = endpoints.into_iter().map(|one| [one.merchant_id.as_str().into(), one.realm.as_str().into()]);
    statement.push_rows(rows).push(") AS given ON merchant_id = column1 AND realm = column2");
    let rows = statement.build().fetch_all(&mut **tx).await?;
    rows.iter()
        .map(|row| Ok((read_key(row)?, Standing { url: row.try_get("url")?, cap: count(row.try_get("cap")?)? })))
        .collect()
}

/// What changes at an endpoint besides its deliveries.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) cap: Option<u32>,
    /// Attempts began at this time, which puts the endpoint behind all that have waited until then.
    pub(super) served_at: Option<Timestamp>,
}

/// Sums the endpoints' deliveries up anew. Ends every transaction that changed one of them, so that the line never forgets
/// an endpoint, and what was wrong would not stay so.
pub(super) async fn refresh(tx: &mut Tx, changes: &[(EndpointKey, Change)]) -> Result<(), StoreError> {
    if !changes.is_empty() {
        summing_up(changes).build().execute(&mut **tx).await?;
    }
    Ok(())
}

/// What is in flight has a lease, and is asked for it so that SQLite sees which index is meant: it would take another, and
/// with it look at everything that was ever delivered to the endpoint.
fn summing_up(changes: &[(EndpointKey, Change)]) -> Statement {
    let mut statement = Statement::new(
        "UPDATE webhook_endpoints SET \
             cap = COALESCE(column3, cap), \
             served_at_ms = COALESCE(column4, served_at_ms), \
             in_flight = (SELECT COUNT(*) FROM webhook_deliveries d \
                          WHERE d.merchant_id = column1 AND d.realm = column2 AND d.state = 'in_flight' \
                              AND d.lease_until_ms > 0), \
             next_at_ms = (SELECT CASE WHEN d.next_at_ms < COALESCE(column4, served_at_ms) \
                                       THEN COALESCE(column4, served_at_ms) ELSE d.next_at_ms END \
                           FROM webhook_deliveries d \
                           WHERE d.merchant_id = column1 AND d.realm = column2 AND d.state = 'pending' \
                           ORDER BY d.next_at_ms LIMIT 1) \
         FROM (",
    );
    statement.push_rows(changes.iter().map(|(endpoint, change)| {
        [
            endpoint.merchant_id.as_str().into(),
            endpoint.realm.as_str().into(),
            change.cap.map(i64::from).into(),
            change.served_at.map(to_ms).into(),
        ]
    }));
    statement.push(") AS given WHERE merchant_id = column1 AND realm = column2");
    statement
}

/// Ends what is pending; how many deliveries that were.
pub(super) async fn cancel_pending(tx: &mut Tx, endpoint: &EndpointKey, now: Timestamp) -> Result<u64, StoreError> {
    let cancelled = sqlx::query(
        "UPDATE webhook_deliveries SET state = 'cancelled', next_at_ms = NULL, ended_at_ms = $3 \
         WHERE merchant_id = $1 AND realm = $2 AND state = 'pending'",
    )
    .bind(&endpoint.merchant_id)
    .bind(endpoint.realm.as_str())
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    Ok(cancelled.rows_affected())
}

/// The endpoint that a row names.
pub(super) fn read_key(row: &sqlx::any::AnyRow) -> Result<EndpointKey, StoreError> {
    Ok(EndpointKey { merchant_id: row.try_get("merchant_id")?, realm: decode_enum(row.try_get("realm")?)? })
}

#[cfg(test)]
mod tests {
    use sandpiper_db::DatabaseLocation;
    use sandpiper_db::testing::refusal;
    use sqlx::{AssertSqlSafe, Execute};

    use super::*;
    use crate::store::testing::test_store;

    const DELIVERY: &str = "INSERT INTO merchants (id, name, created_at_ms) VALUES ('m', 'm', 0); \
        INSERT INTO webhook_endpoints (merchant_id, realm, url, cap, updated_at_ms) VALUES ('m', 'live', 'u', 4, 0); \
        INSERT INTO payments (id, merchant_id, realm, status, created_at_ms, updated_at_ms, document) \
            VALUES ('p', 'm', 'live', 'PENDING', 0, 0, '{}'); \
        INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, payment_id, payment_at_ms, \
            created_at_ms, next_at_ms, body) \
            VALUES ('dlv_00000000000000000000000000', 'm', 'live', 'pending', 'update', 'p', 0, 0, 0, '')";

    #[tokio::test]
    async fn the_schema_itself_keeps_states_and_columns_together() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        assert_eq!(refusal(&mut tx, DELIVERY).await, "");
        let mut refused = async |statement| refusal(&mut tx, statement).await.to_lowercase();

        for statement in [
            "UPDATE webhook_deliveries SET state = 'in_flight'",
            "UPDATE webhook_deliveries SET state = 'in_flight', claim = 'c', lease_until_ms = 1",
            "UPDATE webhook_deliveries SET next_at_ms = NULL",
            "UPDATE webhook_deliveries SET claim = 'c', lease_until_ms = 1",
            "UPDATE webhook_deliveries SET attempts = 100",
            "UPDATE webhook_deliveries SET state = 'failed'",
            "UPDATE webhook_deliveries SET state = 'delivered', next_at_ms = NULL, ended_at_ms = 1",
            "UPDATE webhook_deliveries SET state = 'delivered', next_at_ms = NULL, ended_at_ms = 1, status = 302",
            "UPDATE webhook_deliveries SET trigger = 'replay'",
            "UPDATE webhook_endpoints SET realm = 'production'",
        ] {
            assert!(refused(statement).await.contains("check"), "{statement}");
        }
        let again = "INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, payment_id, payment_at_ms, \
                         created_at_ms, next_at_ms, body) \
                     SELECT 'dlv_11111111111111111111111111', merchant_id, realm, state, trigger, payment_id, \
                         payment_at_ms, created_at_ms, next_at_ms, body FROM webhook_deliveries";
        assert!(refused(again).await.contains("unique"));

        let cancelled = "UPDATE webhook_deliveries SET state = 'cancelled', next_at_ms = NULL, ended_at_ms = 1";
        assert_eq!(refused(cancelled).await, "");
        let back = "UPDATE webhook_deliveries SET state = 'pending', next_at_ms = 1, ended_at_ms = NULL";
        assert!(refused(back).await.contains("ended stays ended"));
    }

    #[tokio::test]
    async fn on_sqlite_summing_up_does_not_look_at_deliveries_that_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let location = DatabaseLocation::Sqlite(folder.path().join("api.db"));
        let database = Database::open(&location).await.unwrap();
        let endpoint = EndpointKey { merchant_id: "m".to_owned(), realm: Realm::Live };
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
