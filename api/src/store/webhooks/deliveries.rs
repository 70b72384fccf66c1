//! Deliveries of a team's events: looked at, tried, repeated.

use std::collections::BTreeMap;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::{Statement, StoreError, Tx, count, decode_enum, from_ms, to_ms};
use sandpiper_delivery::outcome::FailureClass;
use sandpiper_delivery::store::Endpoint;
use sandpiper_delivery::store::delivery::{DeliveryId, State};
use sandpiper_delivery::store::line::line_up;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{WebhookKey, Webhooks, locked};

/// What `type` a test's body has. No event has it.
pub const TEST_TYPE: &str = "webhook.test";

/// Deliveries that people may have sent to one webhook within [`BY_HAND_WINDOW`].
const BY_HAND: i64 = 60;
const BY_HAND_WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Why there is a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Something happened.
    Event,
    /// Somebody had a delivery repeated.
    Redelivery,
    /// Somebody tries whether webhooks arrive.
    Test,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Trigger; 3] = [Trigger::Event, Trigger::Redelivery, Trigger::Test];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Event => "event",
            Trigger::Redelivery => "redelivery",
            Trigger::Test => "test",
        }
    }
}

impl FromStr for Trigger {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Trigger::ALL.into_iter().find(|trigger| trigger.as_str() == text).ok_or(())
    }
}

/// A delivery as it is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    pub webhook: WebhookKey,
    pub state: State,
    pub trigger: Trigger,
    /// The event's; `None` for a test.
    pub event_sequence: Option<u64>,
    pub event_type: String,
    pub redelivery_of: Option<DeliveryId>,
    /// How many were begun.
    pub attempts: u32,
    pub created_at: Timestamp,
    /// When the next attempt is due, or the one under way was.
    pub next_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Of the last attempt, if it got a response.
    pub status: Option<u16>,
    /// Of the last attempt, if it got none.
    pub error_class: Option<FailureClass>,
}

/// Why something was not done with a delivery.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    #[error("There is no such webhook")]
    NoWebhook,
    #[error("There is no such delivery")]
    NotFound,
    #[error("The delivery is {}", .0.as_str())]
    NotOver(State),
    #[error("The webhook is disabled")]
    Disabled,
    #[error("{BY_HAND} tests and redeliveries were sent to the webhook within {} s", BY_HAND_WINDOW.as_secs())]
    TooMany { retry_after_seconds: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for DeliveryError {
    fn from(error: sqlx::Error) -> Self {
        DeliveryError::Store(error.into())
    }
}

impl Webhooks {
    /// Up to `limit` deliveries to a webhook, newest first: of this state, if one is named, and from the one after `after`, a
    /// creation time and an id.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn deliveries(
        &self,
        webhook: &WebhookKey,
        state: Option<State>,
        after: Option<(Timestamp, &str)>,
        limit: u32,
    ) -> Result<Vec<DeliveryRow>, StoreError> {
        let mut statement = Statement::new("SELECT * FROM team_webhook_deliveries WHERE team_id = ");
        statement.push_bind(webhook.team.as_str()).push(" AND webhook_id = ").push_bind(webhook.id.as_str());
        if let Some(state) = state {
            statement.push(" AND state = ").push_bind(state.as_str());
        }
        if let Some((created_at, id)) = after {
            let created_at = to_ms(created_at);
            statement.push(" AND (created_at_ms, id) < (").push_bind(created_at).push(", ").push_bind(id).push(")");
        }
        statement.push(" ORDER BY created_at_ms DESC, id DESC LIMIT ").push_bind(i64::from(limit));
        let rows = statement.build().fetch_all(self.database.read()).await?;
        rows.iter().map(read).collect()
    }

    /// One delivery to a webhook, and what it sends.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn delivery(&self, webhook: &WebhookKey, id: &str) -> Result<Option<(DeliveryRow, Vec<u8>)>, StoreError> {
        let row = find(webhook, id).fetch_optional(self.database.read()).await?;
        row.map(|row| Ok((read(&row)?, row.try_get("body")?))).transpose()
    }

    /// Makes a delivery that only tries whether webhooks arrive. Afterwards, the worker is to be woken.
    ///
    /// # Errors
    ///
    /// There is no such webhook, it is disabled, or people had too many sent to it.
    pub async fn test(&self, webhook: WebhookKey, body: Vec<u8>, now: Timestamp) -> Result<DeliveryRow, DeliveryError> {
        self.batch.write(move |tx| Box::pin(test(tx, webhook, body, now))).await
    }

    /// Repeats a delivery that is over: a new one, with an id and a hundred attempts of its own. Afterwards, the worker is to be
    /// woken.
    ///
    /// # Errors
    ///
    /// There is no such delivery, it is not over, or as for a test.
    pub async fn redeliver(
        &self,
        webhook: WebhookKey,
        id: String,
        now: Timestamp,
    ) -> Result<DeliveryRow, DeliveryError> {
        self.batch.write(move |tx| Box::pin(redeliver(tx, webhook, id, now))).await
    }
}

/// The columns of a delivery that is made by hand, but for those that differ.
const INSERT: &str = "INSERT INTO team_webhook_deliveries (id, team_id, webhook_id, state, trigger, event_sequence, \
                      event_type, replay_of, created_at_ms, next_at_ms, body) ";

async fn test(tx: &mut Tx, webhook: WebhookKey, body: Vec<u8>, now: Timestamp) -> Result<DeliveryRow, DeliveryError> {
    check(tx, &webhook, now).await?;
    let mut statement = Statement::new(INSERT);
    statement.push("VALUES (").push_bind(DeliveryId::random().as_str());
    statement.push(", ").push_bind(webhook.team.as_str()).push(", ").push_bind(webhook.id.as_str());
    statement.push(", 'pending', 'test', NULL, ").push_bind(TEST_TYPE).push(", NULL, ").push_bind(to_ms(now));
    statement.push(", ").push_bind(to_ms(now)).push(", ").push_bind(body.as_slice()).push(") RETURNING *");
    Ok(read(&statement.build().fetch_one(&mut **tx).await?)?)
}

async fn redeliver(tx: &mut Tx, webhook: WebhookKey, id: String, now: Timestamp) -> Result<DeliveryRow, DeliveryError> {
    check(tx, &webhook, now).await?;
    let original = find(&webhook, &id).fetch_optional(&mut **tx).await?.ok_or(DeliveryError::NotFound)?;
    let original = read(&original)?;
    if !original.state.is_over() {
        return Err(DeliveryError::NotOver(original.state));
    }
    let mut statement = Statement::new(INSERT);
    statement.push("SELECT ").push_bind(DeliveryId::random().as_str());
    statement.push(", team_id, webhook_id, 'pending', 'redelivery', event_sequence, event_type, id, ");
    statement
        .push_bind(to_ms(now))
        .push(", ")
        .push_bind(to_ms(now))
        .push(", body FROM team_webhook_deliveries WHERE id = ");
    statement.push_bind(id).push(" RETURNING *");
    Ok(read(&statement.build().fetch_one(&mut **tx).await?)?)
}

/// Puts the webhook into the line, if another may be sent to it by hand.
async fn check(tx: &mut Tx, webhook: &WebhookKey, now: Timestamp) -> Result<(), DeliveryError> {
    locked(tx, webhook).await?.ok_or(DeliveryError::NoWebhook)?;
    if line_up(tx, BTreeMap::from([(webhook.clone(), now)])).await?.is_empty() {
        return Err(DeliveryError::Disabled);
    }
    let row = sqlx::query(
        "SELECT created_at_ms FROM team_webhook_deliveries \
         WHERE team_id = $1 AND webhook_id = $2 AND trigger <> 'event' ORDER BY created_at_ms DESC LIMIT 1 OFFSET $3",
    )
    .bind(webhook.team.as_str())
    .bind(webhook.id.as_str())
    .bind(BY_HAND - 1)
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let wait = BY_HAND_WINDOW - now.duration_since(from_ms(row.try_get("created_at_ms")?)?);
    if wait.is_positive() {
        let retry_after_seconds = u64::try_from(wait.as_secs()).unwrap_or_default() + 1;
        return Err(DeliveryError::TooMany { retry_after_seconds });
    }
    Ok(())
}

fn find<'a>(webhook: &'a WebhookKey, id: &'a str) -> sqlx::query::Query<'a, sqlx::Any, sqlx::any::AnyArguments> {
    sqlx::query("SELECT * FROM team_webhook_deliveries WHERE team_id = $1 AND webhook_id = $2 AND id = $3")
        .bind(webhook.team.as_str())
        .bind(webhook.id.as_str())
        .bind(id)
}

fn read(row: &AnyRow) -> Result<DeliveryRow, StoreError> {
    let time = |column: &str| row.try_get::<Option<i64>, _>(column)?.map(from_ms).transpose();
    Ok(DeliveryRow {
        id: DeliveryId::stored(row.try_get("id")?),
        webhook: WebhookKey::read(row)?,
        state: decode_enum(row.try_get("state")?)?,
        trigger: decode_enum(row.try_get("trigger")?)?,
        event_sequence: row.try_get::<Option<i64>, _>("event_sequence")?.map(count).transpose()?,
        event_type: row.try_get("event_type")?,
        redelivery_of: row.try_get::<Option<String>, _>("replay_of")?.map(DeliveryId::stored),
        attempts: count(row.try_get("attempts")?)?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        next_at: time("next_at_ms")?,
        ended_at: time("ended_at_ms")?,
        status: row.try_get::<Option<i64>, _>("status")?.map(count).transpose()?,
        error_class: row.try_get::<Option<String>, _>("error_class")?.map(|text| decode_enum(&text)).transpose()?,
    })
}
