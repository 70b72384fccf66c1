//! From events to deliveries.
//!
//! A webhook remembers the number of the last of its team's events that it was looked at for. That number moves in the
//! transaction that makes the deliveries, so each event gives rise to one delivery to each webhook that selects it: whoever is
//! killed when, and however many processes do it. Writers of events have nothing to do with it. Events have no gaps and are committed
//! in the order of their numbers ([`super::super::events`]), so none is passed over; those that a webhook was not looked at for are
//! not removed, however old.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, Tx, to_ms};
use sandpiper_delivery::store::Endpoint as _;
use sandpiper_delivery::store::delivery::DeliveryId;
use sandpiper_delivery::store::line::line_up;
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;

use super::super::events::{self, EventRow};
use super::{WebhookKey, Webhooks, last_sequence, locked, read};

/// Events that one transaction looks at: few, for others wait meanwhile.
const AT_ONCE: i64 = 100;

/// What an event's delivery sends.
pub type Body = fn(EventRow) -> Vec<u8>;

impl Webhooks {
    /// Up to `limit` webhooks, of teams that are not disabled, that were not looked at for all of their teams' events: those first for which there are fewest, so that
    /// a team with many keeps nobody waiting.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn behind(&self, limit: u32) -> Result<Vec<WebhookKey>, StoreError> {
        let rows = sqlx::query(
            "SELECT w.team_id, w.webhook_id FROM team_webhooks w JOIN event_counters c ON c.team_id = w.team_id \
             WHERE w.url IS NOT NULL AND w.enqueued_sequence < c.last_sequence \
                 AND w.team_id NOT IN (SELECT id FROM teams WHERE disabled_at_ms IS NOT NULL) \
             ORDER BY c.last_sequence - w.enqueued_sequence, w.webhook_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(WebhookKey::read).collect()
    }

    /// Looks at the next events for a webhook, and makes the deliveries of those that it selects, whose bodies are `body`s; how many
    /// that were. Afterwards, the worker is to be woken.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn enqueue(&self, key: WebhookKey, body: Body, now: Timestamp) -> Result<usize, StoreError> {
        self.batch.write(move |tx| Box::pin(enqueue(tx, key, body, now))).await
    }
}

async fn enqueue(tx: &mut Tx, key: WebhookKey, body: Body, now: Timestamp) -> Result<usize, StoreError> {
    let Some(row) = locked(tx, &key).await? else { return Ok(0) };
    let (webhook, enqueued) = (read(&row)?, row.try_get::<i64, _>("enqueued_sequence")?);
    if !webhook.enabled {
        return Ok(0);
    }
    // Before the events: what is committed up to it is seen by the next statement.
    let last = last_sequence(tx, &key.team).await?;
    let rows = sqlx::query("SELECT * FROM events WHERE team_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3")
        .bind(key.team.as_str())
        .bind(enqueued)
        .bind(AT_ONCE)
        .fetch_all(&mut **tx)
        .await?;
    let read_to = match rows.last() {
        Some(last) => last.try_get("sequence")?,
        // Nothing is kept of what there was.
        None => last,
    };
    let events = rows.iter().map(events::read).collect::<Result<Vec<_>, _>>()?;
    let selected =
        events.into_iter().filter(|event| webhook.types.is_empty() || webhook.types.contains(&event.event_type));
    let made = insert(tx, &key, selected.collect(), body, now).await?;
    sqlx::query("UPDATE team_webhooks SET enqueued_sequence = $3 WHERE team_id = $1 AND webhook_id = $2")
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(read_to)
        .execute(&mut **tx)
        .await?;
    Ok(made)
}

async fn insert(
    tx: &mut Tx,
    key: &WebhookKey,
    events: Vec<EventRow>,
    body: Body,
    now: Timestamp,
) -> Result<usize, StoreError> {
    if events.is_empty() {
        return Ok(0);
    }
    line_up(tx, BTreeMap::from([(key.clone(), now)])).await?;
    let made = events.len();
    let mut statement = Statement::new(
        "INSERT INTO team_webhook_deliveries (id, team_id, webhook_id, state, trigger, event_sequence, event_type, \
             created_at_ms, next_at_ms, body) \
         SELECT column1, column2, column3, 'pending', 'event', column4, column5, column6, column6, column7 FROM (",
    );
    statement.push_rows(events.into_iter().map(|event| {
        let number = i64::try_from(event.sequence).unwrap_or(i64::MAX);
        let event_type = event.event_type;
        [
            DeliveryId::of_update(&key.id, "event", number).as_str().into(),
            key.team.as_str().into(),
            key.id.as_str().into(),
            number.into(),
            event_type.as_str().into(),
            to_ms(now).into(),
            body(event).as_slice().into(),
        ]
    }));
    statement.push(") AS given WHERE column1 IS NOT NULL");
    statement.build().execute(&mut **tx).await?;
    Ok(made)
}

/// Up to which of a team's events all its webhooks were looked at; `None` where no webhook waits for any.
pub(in crate::store) async fn enqueued_of_all(tx: &mut Tx, team: &TeamId) -> Result<Option<i64>, StoreError> {
    let row = sqlx::query(
        "SELECT MIN(enqueued_sequence) AS enqueued FROM team_webhooks WHERE team_id = $1 AND url IS NOT NULL",
    )
    .bind(team.as_str())
    .fetch_one(&mut **tx)
    .await?;
    Ok(row.try_get("enqueued")?)
}
