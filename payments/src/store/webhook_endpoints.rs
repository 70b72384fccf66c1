//! Where webhooks go: an endpoint for each realm of a merchant. Its row is also the endpoint's place in the line of those
//! that wait for attempts.

use std::ops::Deref;

use jiff::Timestamp;
use sandpiper_db::batch::Batch;
use sandpiper_db::statement::Names;
use sandpiper_db::{Database, StoreError, Tx, audit, decode_enum, from_ms, to_ms};
use sandpiper_delivery::capacity::SMALLEST_CAP;
use sandpiper_delivery::store::line::{Change, cancel_pending, refresh};
use sandpiper_delivery::store::{DeliveryStore, Endpoint, names};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::domain::realm::Realm;

/// Which endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    pub merchant_id: String,
    pub realm: Realm,
}

impl Endpoint for EndpointKey {
    const NAMES: &'static Names =
        &names("webhook_endpoints", "webhook_deliveries", "webhook_attempts", ["merchant_id", "realm"], "1 = 0");
    const LABELS: [&'static str; 2] = ["merchant", "realm"];

    fn key(&self) -> [&str; 2] {
        [&self.merchant_id, self.realm.as_str()]
    }

    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        read_key(row)
    }

    fn span(&self) -> tracing::Span {
        tracing::info_span!("endpoint", merchant = self.merchant_id, realm = %self.realm)
    }
}

/// What is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// `None`: it was taken away.
    pub url: Option<String>,
    pub updated_at: Timestamp,
}

/// The endpoints.
#[derive(Debug, Clone)]
pub struct WebhookEndpoints {
    database: Database,
    batch: Batch,
    line: DeliveryStore<EndpointKey>,
}

/// The line of those that wait for attempts.
impl Deref for WebhookEndpoints {
    type Target = DeliveryStore<EndpointKey>;

    fn deref(&self) -> &DeliveryStore<EndpointKey> {
        &self.line
    }
}

impl WebhookEndpoints {
    pub(crate) fn new(database: Database, batch: Batch) -> Self {
        let line = DeliveryStore::new(database.clone(), batch.clone());
        Self { database, batch, line }
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

/// The endpoint that a row names.
pub(super) fn read_key(row: &AnyRow) -> Result<EndpointKey, StoreError> {
    Ok(EndpointKey { merchant_id: row.try_get("merchant_id")?, realm: decode_enum(row.try_get("realm")?)? })
}

#[cfg(test)]
mod tests {
    use sandpiper_db::testing::refusal;

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
}
