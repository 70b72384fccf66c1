//! Payments, each in its newest state. How updates come in is in [`super::payment_updates`].

use jiff::Timestamp;
use sandpiper_db::batch::Batch;
use sandpiper_db::{Database, Statement, StoreError, audit, decode_enum, from_ms};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::deliveries::DeliveryId;
use super::payment_updates::{PaymentUpdates, Report};
use crate::domain::ids::MerchantId;
use crate::domain::order::{PaymentOrder, Status};
use crate::domain::realm::Realm;
use crate::domain::transition::Refusal;

/// A payment, and whose it is.
#[derive(Debug, Clone)]
pub struct PaymentRow {
    pub id: String,
    pub merchant_id: String,
    pub realm: Realm,
    /// The PaymentOrder, as text.
    pub document: String,
    /// Its place in lists.
    pub created_at: Timestamp,
}

/// A payment as it is reported now.
#[derive(Debug, Clone)]
pub struct PaymentUpdate {
    pub merchant_id: String,
    pub realm: Realm,
    pub order: PaymentOrder,
}

/// What became of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// The payment was not known. The webhook's delivery, unless the realm has no address to tell.
    Created(Option<DeliveryId>),
    /// It has a new state.
    Updated(Option<DeliveryId>),
    /// The update was accepted before; nothing was done. The delivery it gave rise to then, as long as that is kept.
    Repeated(Option<DeliveryId>),
}

/// Why an update was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PutPaymentError {
    #[error("There is no merchant {0}")]
    NoMerchant(String),
    #[error("The payment is of another merchant or realm; give this one an id of its own")]
    OfOther,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for PutPaymentError {
    fn from(error: sqlx::Error) -> Self {
        PutPaymentError::Store(error.into())
    }
}

/// Which payments a list shows; all of what is given must match.
#[derive(Debug, Clone, Default)]
pub struct PaymentFilter {
    pub merchant_id: Option<String>,
    pub realm: Option<Realm>,
    pub status: Option<Status>,
}

/// The payments.
#[derive(Debug, Clone)]
pub struct Payments {
    database: Database,
    updates: PaymentUpdates,
}

impl Payments {
    pub(crate) fn new(database: Database, batch: Batch) -> Self {
        Self { database, updates: PaymentUpdates::new(batch) }
    }

    /// Takes over an update, enqueues its webhook, and writes the audit's entry, together with whatever else there is to
    /// write. What is refused leaves nothing. Once it was handed over it is carried out even if the caller stops waiting.
    pub async fn put(
        &self,
        update: PaymentUpdate,
        entry: audit::Entry,
        now: Timestamp,
    ) -> Result<Accepted, PutPaymentError> {
        let document = update.order.document().map_err(|error| StoreError::Corrupt { what: error.to_string() })?;
        self.updates.put(Report { update, document, entry, at: now }).await
    }

    /// The payment with this id.
    pub async fn get(&self, payment_id: &str) -> Result<Option<PaymentRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM payments WHERE id = $1")
            .bind(payment_id)
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(payment).transpose()
    }

    /// The JSON of a merchant's payment in a realm.
    pub async fn document(
        &self,
        merchant_id: &MerchantId,
        realm: Realm,
        payment_id: &str,
    ) -> Result<Option<String>, StoreError> {
        let row = sqlx::query("SELECT document FROM payments WHERE id = $1 AND merchant_id = $2 AND realm = $3")
            .bind(payment_id)
            .bind(merchant_id.as_str())
            .bind(realm.as_str())
            .fetch_optional(self.database.read())
            .await?;
        Ok(row.map(|row| row.try_get("document")).transpose()?)
    }

    /// Up to `limit` payments that match, newest first, from the one after `after`: a creation time in
    /// milliseconds, and an id.
    pub async fn list(
        &self,
        filter: &PaymentFilter,
        after: Option<(i64, &str)>,
        limit: u32,
    ) -> Result<Vec<PaymentRow>, StoreError> {
        let mut statement = Statement::new("SELECT * FROM payments WHERE 1 = 1");
        if let Some(merchant_id) = &filter.merchant_id {
            statement.push(" AND merchant_id = ").push_bind(merchant_id.as_str());
        }
        if let Some(realm) = filter.realm {
            statement.push(" AND realm = ").push_bind(realm.as_str());
        }
        if let Some(status) = filter.status {
            statement.push(" AND status = ").push_bind(status.as_str());
        }
        if let Some((created_at_ms, id)) = after {
            statement.push(" AND (created_at_ms, id) < (").push_bind(created_at_ms).push(", ");
            statement.push_bind(id).push(")");
        }
        statement.push(" ORDER BY created_at_ms DESC, id DESC LIMIT ").push_bind(i64::from(limit));
        let rows = statement.build().fetch_all(self.database.read()).await?;
        rows.iter().map(payment).collect()
    }
}

impl PaymentRow {
    /// What the document says.
    pub fn order(&self) -> Result<PaymentOrder, StoreError> {
        serde_json::from_str(&self.document).map_err(|error| StoreError::Corrupt { what: format!("payment: {error}") })
    }
}

pub(super) fn payment(row: &AnyRow) -> Result<PaymentRow, StoreError> {
    Ok(PaymentRow {
        id: row.try_get("id")?,
        merchant_id: row.try_get("merchant_id")?,
        realm: decode_enum(row.try_get("realm")?)?,
        document: row.try_get("document")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}

#[cfg(test)]
mod tests {
    use sandpiper_db::testing::refusal;

    use crate::store::testing::test_store;

    #[tokio::test]
    async fn the_schema_itself_keeps_payments_in_order() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        let mut refused = async |statement: &'static str| refusal(&mut tx, statement).await;
        let made = refused(
            "INSERT INTO merchants (id, name, created_at_ms) VALUES ('m', 'm', 0); \
             INSERT INTO payments (id, merchant_id, realm, status, created_at_ms, updated_at_ms, document) \
             VALUES ('p', 'm', 'live', 'PENDING', 1, 5, '{}')",
        );
        assert_eq!(made.await, "");

        let wrong = "cannot be updated like this";
        assert!(refused("UPDATE payments SET status = 'PENDING', updated_at_ms = 5").await.contains(wrong));
        assert!(refused("UPDATE payments SET status = 'PENDING', updated_at_ms = 4").await.contains(wrong));
        assert_ne!(refused("UPDATE payments SET status = 'COMPLETED', updated_at_ms = 6").await, "");
        assert_ne!(refused("UPDATE payments SET created_at_ms = 6").await, "");
        assert_eq!(refused("UPDATE payments SET status = 'FAILED', updated_at_ms = 6").await, "");
        assert!(refused("UPDATE payments SET status = 'PENDING', updated_at_ms = 7").await.contains(wrong));
        let completed = "UPDATE payments SET status = 'COMPLETED', actual_amount = '1', updated_at_ms = 7";
        assert_eq!(refused(completed).await, "");
        assert!(refused("UPDATE payments SET status = 'FAILED', updated_at_ms = 8").await.contains(wrong));
    }

    #[tokio::test]
    async fn the_schema_itself_allows_one_signing_key_and_keeps_no_other_secret() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        let mut refused = async |statement: &'static str| refusal(&mut tx, statement).await;
        let made = refused(
            "INSERT INTO merchants (id, name, created_at_ms) VALUES ('m', 'm', 0); \
             INSERT INTO merchant_keys (id, merchant_id, realm, kind, hash, sealed, created_at_ms) VALUES \
             ('a', 'm', 'live', 'secret', '0000000000000000000000000000000000000000000000000000000000000000', 's', 0), \
             ('b', 'm', 'sandbox', 'secret', '1000000000000000000000000000000000000000000000000000000000000000', 's', 0)",
        );
        assert_eq!(made.await, "");

        let second = "INSERT INTO merchant_keys (id, merchant_id, realm, kind, hash, sealed, created_at_ms) VALUES \
             ('c', 'm', 'live', 'secret', '2000000000000000000000000000000000000000000000000000000000000000', 's', 0)";
        assert!(refused(second).await.to_lowercase().contains("unique"));
        assert!(
            refused("UPDATE merchant_keys SET revoked_at_ms = 1 WHERE id = 'a'").await.to_lowercase().contains("check")
        );
        assert_eq!(refused("UPDATE merchant_keys SET revoked_at_ms = 1, sealed = NULL WHERE id = 'a'").await, "");
        assert_eq!(refused(second).await, "");
        let public = "UPDATE merchant_keys SET kind = 'public' WHERE id = 'b'";
        assert_ne!(refused(public).await, "");
    }
}
