//! Lists of deliveries, newest first, and replays of many at once.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, Tx, to_ms};
use sandpiper_delivery::outcome::FailureClass;

use super::deliveries::{Deliveries, DeliveryId, DeliveryRow, State, Trigger, replay_all};
use super::webhook_endpoints::EndpointKey;
use crate::domain::realm::Realm;

/// Which deliveries a list shows: those to which everything that is given applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub merchant_id: Option<String>,
    pub realm: Option<Realm>,
    pub payment_id: Option<String>,
    pub state: Option<State>,
    pub trigger: Option<Trigger>,
    /// Of the last attempt.
    pub status: Option<u16>,
    /// Likewise.
    pub error_class: Option<FailureClass>,
    /// Made at this time or later.
    pub since: Option<Timestamp>,
    /// Made before this time.
    pub until: Option<Timestamp>,
}

impl Deliveries {
    /// Up to `limit` deliveries that match, newest first, from the one after `after`: a creation time and an id.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<(Timestamp, &str)>,
        limit: u32,
    ) -> Result<Vec<DeliveryRow>, StoreError> {
        let rows = select(filter, after, limit).build().fetch_all(self.database.read()).await?;
        rows.iter().map(DeliveryRow::read).collect()
    }

    /// Repeats those of these deliveries that are over and whose realm has a URL, in one transaction: each original with
    /// its repetition.
    pub async fn replay_all(
        &self,
        deliveries: Vec<DeliveryRow>,
        now: Timestamp,
    ) -> Result<Vec<(DeliveryId, DeliveryId)>, StoreError> {
        self.batch.write(move |tx| Box::pin(replay_by_endpoint(tx, deliveries, now))).await
    }
}

async fn replay_by_endpoint(
    tx: &mut Tx,
    deliveries: Vec<DeliveryRow>,
    now: Timestamp,
) -> Result<Vec<(DeliveryId, DeliveryId)>, StoreError> {
    // What is over stays over, so that nothing has to be looked at again.
    let over = deliveries.into_iter().filter(|delivery| delivery.state.is_over());
    let mut by_endpoint: BTreeMap<EndpointKey, Vec<DeliveryId>> = BTreeMap::new();
    for delivery in over {
        by_endpoint.entry(delivery.endpoint).or_default().push(delivery.id);
    }
    let mut replayed = Vec::new();
    for (endpoint, originals) in by_endpoint {
        let replays = replay_all(tx, &endpoint, &originals, now).await?;
        replayed.extend(originals.into_iter().zip(replays));
    }
    Ok(replayed)
}

fn select(filter: &Filter, after: Option<(Timestamp, &str)>, limit: u32) -> Statement {
    let mut statement = Statement::new("SELECT ");
    statement.push(DeliveryRow::COLUMNS).push(" FROM webhook_deliveries WHERE 1 = 1");
    if let Some(merchant_id) = &filter.merchant_id {
        statement.push(" AND merchant_id = ").push_bind(merchant_id);
    }
    if let Some(realm) = filter.realm {
        statement.push(" AND realm = ").push_bind(realm.as_str());
    }
    if let Some(payment_id) = &filter.payment_id {
        statement.push(" AND payment_id = ").push_bind(payment_id);
    }
    if let Some(state) = filter.state {
        // As text, so that the indexes of single states are used.
        statement.push(" AND state = '").push(state.as_str()).push("'");
    }
    if let Some(trigger) = filter.trigger {
        statement.push(" AND trigger = ").push_bind(trigger.as_str());
    }
    if let Some(status) = filter.status {
        statement.push(" AND status = ").push_bind(i64::from(status));
    }
    if let Some(class) = filter.error_class {
        statement.push(" AND error_class = ").push_bind(class.as_str());
    }
    if let Some(since) = filter.since {
        statement.push(" AND created_at_ms >= ").push_bind(to_ms(since));
    }
    if let Some(until) = filter.until {
        statement.push(" AND created_at_ms < ").push_bind(to_ms(until));
    }
    if let Some((created_at, id)) = after {
        statement.push(" AND (created_at_ms, id) < (").push_bind(to_ms(created_at)).push(", ").push_bind(id).push(")");
    }
    statement.push(" ORDER BY created_at_ms DESC, id DESC LIMIT ").push_bind(i64::from(limit));
    statement
}
