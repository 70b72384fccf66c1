//! The end of deliveries that have been over for long: they and their attempts are deleted, a few at a time.
//!
//! A replay names its original, so the original stays until the replay is deleted. That an update is not delivered anew once
//! its delivery is gone follows from the payment, which knows the update.

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, Tx, to_ms};
use sqlx::Row;

use super::deliveries::Deliveries;

/// Deliveries of one transaction: few, for others wait meanwhile.
pub const AT_ONCE: usize = 200;

impl Deliveries {
    /// Deletes up to [`AT_ONCE`] deliveries that ended at `end` or before, the first of them first; how many that
    /// were.
    pub async fn delete_ended(&self, end: Timestamp) -> Result<usize, StoreError> {
        self.batch.write(move |tx| Box::pin(delete_ended(tx, end))).await
    }
}

async fn delete_ended(tx: &mut Tx, end: Timestamp) -> Result<usize, StoreError> {
    let rows = sqlx::query(
        "SELECT id FROM webhook_deliveries d WHERE ended_at_ms <= $1 \
             AND NOT EXISTS (SELECT 1 FROM webhook_deliveries r WHERE r.replay_of = d.id) \
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
        Statement::new("DELETE FROM webhook_attempts WHERE delivery_id IN "),
        Statement::new("DELETE FROM webhook_deliveries WHERE id IN "),
    );
    attempts.push_list(&ids);
    deliveries.push_list(&ids);
    attempts.build().execute(&mut **tx).await?;
    deliveries.build().execute(&mut **tx).await?;
    Ok(ids.len())
}
