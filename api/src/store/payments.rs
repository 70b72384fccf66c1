//! Payments, each in its newest state, and the one way in for updates: the update, the webhook that tells of it, and the
//! audit's entry are one transaction.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::audit;
use super::batch::Batch;
use super::deliveries::{self, DeliveryId, NewDelivery};
use super::{Database, Statement, StoreError, Tx, from_ms, to_ms, word};
use crate::merchant::order::{PaymentOrder, Status};
use crate::merchant::realm::Realm;
use crate::merchant::transition::{Refusal, Verdict, judge};

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
    /// The update was accepted before; nothing was done.
    Repeated,
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
    batch: Batch,
}

impl Payments {
    pub(crate) fn new(database: Database, batch: Batch) -> Self {
        Self { database, batch }
    }

    /// Takes over an update, enqueues its webhook, and writes the audit's entry, together with whatever else there is to
    /// write. What is refused leaves nothing.
    pub async fn put(
        &self,
        update: PaymentUpdate,
        entry: audit::Entry,
        now: Timestamp,
    ) -> Result<Accepted, PutPaymentError> {
        self.batch
            .write(move |tx| {
                Box::pin(async move {
                    let accepted = put(tx, &update, now).await?;
                    let status = if matches!(accepted, Accepted::Created(_)) { 201 } else { 200 };
                    audit::insert(tx, &audit::Entry { status, ..entry }).await?;
                    Ok(accepted)
                })
            })
            .await
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
        merchant_id: &str,
        realm: Realm,
        payment_id: &str,
    ) -> Result<Option<String>, StoreError> {
        let row = sqlx::query("SELECT document FROM payments WHERE id = $1 AND merchant_id = $2 AND realm = $3")
            .bind(payment_id)
            .bind(merchant_id)
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

async fn put(tx: &mut Tx, update: &PaymentUpdate, now: Timestamp) -> Result<Accepted, PutPaymentError> {
    let document = update.order.document().map_err(|error| StoreError::Corrupt { what: error.to_string() })?;
    if insert(tx, update, &document).await? {
        return Ok(Accepted::Created(enqueue(tx, update, &document, now).await?));
    }
    // Held from here on: of two updates at once, the second is judged by what the first has left.
    let row = sqlx::query("UPDATE payments SET updated_at_ms = updated_at_ms WHERE id = $1 RETURNING *")
        .bind(&update.order.id)
        .fetch_optional(&mut **tx)
        .await?;
    let Some(row) = row else { return Err(PutPaymentError::NoMerchant(update.merchant_id.clone())) };
    let stored = payment(&row)?;
    if (stored.merchant_id.as_str(), stored.realm) != (&update.merchant_id, update.realm) {
        return Err(PutPaymentError::OfOther);
    }
    match judge(&stored.order()?, &update.order)? {
        Verdict::Repetition => Ok(Accepted::Repeated),
        Verdict::Accept => {
            sqlx::query(
                "UPDATE payments SET status = $2, actual_amount = $3, updated_at_ms = $4, document = $5 WHERE id = $1",
            )
            .bind(&update.order.id)
            .bind(update.order.status.as_str())
            .bind(update.order.actual_amount.as_ref().map(|amount| amount.as_str()))
            .bind(to_ms(update.order.updated_at))
            .bind(&document)
            .execute(&mut **tx)
            .await?;
            Ok(Accepted::Updated(enqueue(tx, update, &document, now).await?))
        }
    }
}

/// Adds a payment; false when there is one of this id, or no such merchant.
async fn insert(tx: &mut Tx, update: &PaymentUpdate, document: &str) -> Result<bool, StoreError> {
    let order = &update.order;
    let inserted = sqlx::query(
        "INSERT INTO payments (id, merchant_id, realm, status, actual_amount, created_at_ms, updated_at_ms, document) \
         SELECT $1, m.id, $3, $4, $5, $6, $7, $8 FROM merchants m WHERE m.id = $2 ON CONFLICT (id) DO NOTHING",
    )
    .bind(&order.id)
    .bind(&update.merchant_id)
    .bind(update.realm.as_str())
    .bind(order.status.as_str())
    .bind(order.actual_amount.as_ref().map(|amount| amount.as_str()))
    .bind(to_ms(order.created_at))
    .bind(to_ms(order.updated_at))
    .bind(document)
    .execute(&mut **tx)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

async fn enqueue(
    tx: &mut Tx,
    update: &PaymentUpdate,
    document: &str,
    now: Timestamp,
) -> Result<Option<DeliveryId>, StoreError> {
    let delivery = NewDelivery {
        merchant_id: &update.merchant_id,
        realm: update.realm,
        payment_id: &update.order.id,
        updated_at_ms: to_ms(update.order.updated_at),
        body: document.as_bytes(),
    };
    deliveries::enqueue(tx, delivery, now).await
}

impl PaymentRow {
    /// What the document says.
    pub fn order(&self) -> Result<PaymentOrder, StoreError> {
        serde_json::from_str(&self.document).map_err(|error| StoreError::Corrupt { what: format!("payment: {error}") })
    }
}

fn payment(row: &AnyRow) -> Result<PaymentRow, StoreError> {
    Ok(PaymentRow {
        id: row.try_get("id")?,
        merchant_id: row.try_get("merchant_id")?,
        realm: word(row.try_get("realm")?)?,
        document: row.try_get("document")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refusal, test_store};

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
