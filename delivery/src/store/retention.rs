//! The end of deliveries that have been over for long: they and their attempts are deleted, a few at a time.
//!
//! A replay names its original, so the original stays until the replay is deleted. That nothing is delivered anew
//! once its delivery is gone is for whoever makes deliveries.

use jiff::Timestamp;
use sandpiper_db::{StoreError, Tx, to_ms};
use sqlx::Row;

use super::{DeliveryStore, Endpoint, query, statement};

/// Deliveries of one transaction: few, for others wait meanwhile.
pub const AT_ONCE: usize = 200;

impl<E: Endpoint> DeliveryStore<E> {
    /// Deletes up to [`AT_ONCE`] deliveries that ended at `end` or before, the first of them first; how many that
    /// were.
    pub async fn delete_ended(&self, end: Timestamp) -> Result<usize, StoreError> {
        self.batch.write(move |tx| Box::pin(delete_ended::<E>(tx, end))).await
    }
}

async fn delete_ended<E: Endpoint>(tx: &mut Tx, end: Timestamp) -> Result<usize, StoreError> {
    let rows = query::<E>(
        "SELECT id FROM {deliveries} d WHERE ended_at_ms <= $1 \
             AND NOT EXISTS (SELECT 1 FROM {deliveries} r WHERE r.replay_of = d.id) \
         ORDER BY ended_at_ms LIMIT $2",
    )
    .bind(to_ms(end))
    .bind(i64::try_from(AT_ONCE).unwrap_or(i64::MAX))
    .fetch_all(&mut **tx)
    .await?;
    let ids = rows.iter().map(|row| row.try_get("id")).collect::<Result<Vec<String>, _>>()?;
    if ids.is_empty() {
        return Ok(0);
    }
    let (mut attempts, mut deliveries) = (
        statement::<E>("DELETE FROM {attempts} WHERE delivery_id IN "),
        statement::<E>("DELETE FROM {deliveries} WHERE id IN "),
    );
    attempts.push_list(&ids);
    deliveries.push_list(&ids);
    attempts.build().execute(&mut **tx).await?;
    deliveries.build().execute(&mut **tx).await?;
    Ok(ids.len())
}
