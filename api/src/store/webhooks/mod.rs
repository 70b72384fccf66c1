//! Webhooks of teams: where a team's events go. How deliveries are attempted is `sandpiper-delivery`'s, in whose shape the tables
//! are.
//!
//! A webhook that is disabled has no URL to attempt, as far as deliveries are concerned; one that is deleted neither, and no
//! secret. Its row stays until its last delivery is gone.
//!
//! Of a team that is disabled nothing is sent: deliveries wait, and events for theirs, until it is enabled.
//!
//! All writes are carried out one after the other, also beside other processes, because they touch webhooks and deliveries in
//! either order.

use jiff::Timestamp;
use sandpiper_db::statement::Names;
use sandpiper_db::{Batch, Database, Statement, StoreError, Tx, from_ms, to_ms};
use sandpiper_delivery::capacity::SMALLEST_CAP;
use sandpiper_delivery::store::line::{Change, cancel_pending, refresh};
use sandpiper_delivery::store::{DeliveryStore, Endpoint, names};
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::typed_id;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::events::EventType;
use super::usage::{Usage, usage};
use crate::plan::Quota;

pub mod deliveries;
pub mod enqueue;
#[cfg(test)]
mod tests;

typed_id!(
    /// The id of a webhook: `whk…`.
    WebhookId,
    "whk"
);

/// Which webhook, and whose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WebhookKey {
    pub team: TeamId,
    pub id: WebhookId,
}

impl Endpoint for WebhookKey {
    const NAMES: &'static Names = &names(
        "team_webhooks",
        "team_webhook_deliveries",
        "team_webhook_attempts",
        ["team_id", "webhook_id"],
        "team_id IN (SELECT id FROM teams WHERE disabled_at_ms IS NOT NULL)",
    );
    const LABELS: [&'static str; 2] = ["team", "webhook"];

    fn key(&self) -> [&str; 2] {
        [&self.team, &self.id]
    }

    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let (team, id): (String, String) = (row.try_get("team_id")?, row.try_get("webhook_id")?);
        Ok(Self { team: team.into(), id: id.into() })
    }

    fn span(&self) -> tracing::Span {
        tracing::info_span!("endpoint", team = %self.team, webhook = %self.id)
    }
}

/// A webhook, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRow {
    pub key: WebhookKey,
    pub name: String,
    pub url: String,
    /// Empty: all.
    pub types: Vec<EventType>,
    pub enabled: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A webhook to be made.
#[derive(Debug)]
pub struct NewWebhook {
    pub key: WebhookKey,
    pub name: String,
    /// One that may be configured.
    pub url: String,
    /// Empty: all.
    pub types: Vec<EventType>,
    /// For the webhook's id.
    pub sealed: String,
}

/// What is to be another of a webhook.
#[derive(Debug, Default)]
pub struct WebhookChange {
    pub name: Option<String>,
    /// One that may be configured.
    pub url: Option<String>,
    pub types: Option<Vec<EventType>>,
    pub enabled: Option<bool>,
}

/// Why a webhook was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateWebhookError {
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateWebhookError {
    fn from(error: sqlx::Error) -> Self {
        CreateWebhookError::Store(error.into())
    }
}

/// The webhooks.
#[derive(Debug, Clone)]
pub struct Webhooks {
    database: Database,
    batch: Batch,
    /// How their deliveries are attempted.
    pub sent: DeliveryStore<WebhookKey>,
}

impl Webhooks {
    /// Starts a task that writes in batches.
    pub(crate) fn new(database: Database) -> Self {
        let batch = Batch::start(database.clone());
        Self { sent: DeliveryStore::new(database.clone(), batch.clone()), database, batch }
    }

    /// Makes a webhook, to which the team's events go from now on, if `quota` has room for it.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub async fn create(
        &self,
        new: NewWebhook,
        quota: Quota,
        now: Timestamp,
    ) -> Result<WebhookRow, CreateWebhookError> {
        self.batch.write(move |tx| Box::pin(create(tx, new, quota, now))).await
    }

    /// The team's webhook of this id.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn get(&self, key: &WebhookKey) -> Result<Option<WebhookRow>, StoreError> {
        let row =
            sqlx::query("SELECT * FROM team_webhooks WHERE team_id = $1 AND webhook_id = $2 AND deleted_at_ms IS NULL")
                .bind(key.team.as_str())
                .bind(key.id.as_str())
                .fetch_optional(self.database.read())
                .await?;
        row.as_ref().map(read).transpose()
    }

    /// All webhooks of the team, oldest first.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn of(&self, team: &TeamId) -> Result<Vec<WebhookRow>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM team_webhooks WHERE team_id = $1 AND deleted_at_ms IS NULL ORDER BY webhook_id")
                .bind(team.as_str())
                .fetch_all(self.database.read())
                .await?;
        rows.iter().map(read).collect()
    }

    /// Changes a webhook from the next attempt on. What is pending is cancelled where it becomes disabled; where it becomes
    /// enabled, the team's events go to it from now on. `None` where there is none.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn change(
        &self,
        key: WebhookKey,
        change: WebhookChange,
        now: Timestamp,
    ) -> Result<Option<WebhookRow>, StoreError> {
        self.batch.write(move |tx| Box::pin(apply(tx, key, change, now))).await
    }

    /// Gives a webhook another secret, from the next attempt on; false where there is none.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn rotate(&self, key: WebhookKey, sealed: String, now: Timestamp) -> Result<bool, StoreError> {
        self.batch.write(move |tx| Box::pin(rotate(tx, key, sealed, now))).await
    }

    /// Ends a webhook, and cancels what is pending; false where there is none.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn delete(&self, key: WebhookKey, now: Timestamp) -> Result<bool, StoreError> {
        self.batch.write(move |tx| Box::pin(delete(tx, key, now))).await
    }

    /// The sealed secrets of these webhooks, as far as they have one.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn sealed_secrets<'a>(
        &self,
        webhooks: impl IntoIterator<Item = &'a WebhookKey>,
    ) -> Result<Vec<(WebhookKey, String)>, StoreError> {
        let mut statement = Statement::new("SELECT team_id, webhook_id, sealed FROM team_webhooks JOIN (");
        statement.push_rows(webhooks.into_iter().map(|key| key.key().map(Into::into)));
        statement.push(") AS given ON team_id = column1 AND webhook_id = column2 WHERE sealed IS NOT NULL");
        let rows = statement.build().fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok((WebhookKey::read(row)?, row.try_get("sealed")?))).collect()
    }
}

async fn create(tx: &mut Tx, new: NewWebhook, quota: Quota, now: Timestamp) -> Result<WebhookRow, CreateWebhookError> {
    let team = new.key.team.as_str();
    let usage = usage(tx, &new.key.team, now).await?;
    if usage.webhooks >= quota.webhooks {
        return Err(CreateWebhookError::OverQuota(usage));
    }
    // Those that are deleted, and whose last delivery is gone.
    sqlx::query(
        "DELETE FROM team_webhooks WHERE team_id = $1 AND deleted_at_ms IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM team_webhook_deliveries d \
                             WHERE d.team_id = $1 AND d.webhook_id = team_webhooks.webhook_id)",
    )
    .bind(team)
    .execute(&mut **tx)
    .await?;
    let row = sqlx::query(
        "INSERT INTO team_webhooks (team_id, webhook_id, name, configured_url, url, types, sealed, enqueued_sequence, \
             cap, created_at_ms, updated_at_ms) \
         VALUES ($1, $2, $3, $4, $4, $5, $6, $7, $8, $9, $9) RETURNING *",
    )
    .bind(team)
    .bind(new.key.id.as_str())
    .bind(&new.name)
    .bind(&new.url)
    .bind(types_text(&new.types))
    .bind(&new.sealed)
    .bind(last_sequence(tx, &new.key.team).await?)
    .bind(i64::from(SMALLEST_CAP))
    .bind(to_ms(now))
    .fetch_one(&mut **tx)
    .await?;
    Ok(read(&row)?)
}

async fn apply(
    tx: &mut Tx,
    key: WebhookKey,
    change: WebhookChange,
    now: Timestamp,
) -> Result<Option<WebhookRow>, StoreError> {
    let Some(row) = locked(tx, &key).await? else { return Ok(None) };
    let (old, mut enqueued) = (read(&row)?, row.try_get::<i64, _>("enqueued_sequence")?);
    let enabled = change.enabled.unwrap_or(old.enabled);
    if enabled && !old.enabled {
        enqueued = last_sequence(tx, &key.team).await?;
    }
    let url = change.url.unwrap_or_else(|| old.url.clone());
    let cap = if url == old.url { row.try_get("cap")? } else { i64::from(SMALLEST_CAP) };
    let row = sqlx::query(
        "UPDATE team_webhooks SET name = $3, configured_url = $4, url = $5, types = $6, enqueued_sequence = $7, cap = $8, \
             updated_at_ms = $9 \
         WHERE team_id = $1 AND webhook_id = $2 RETURNING *",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .bind(change.name.unwrap_or(old.name))
    .bind(&url)
    .bind(enabled.then_some(&url))
    .bind(types_text(&change.types.unwrap_or(old.types)))
    .bind(enqueued)
    .bind(cap)
    .bind(to_ms(now))
    .fetch_one(&mut **tx)
    .await?;
    let changed = read(&row)?;
    if !enabled {
        cancel(tx, &key, now).await?;
    }
    Ok(Some(changed))
}

async fn rotate(tx: &mut Tx, key: WebhookKey, sealed: String, now: Timestamp) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "UPDATE team_webhooks SET sealed = $3, updated_at_ms = $4 \
         WHERE team_id = $1 AND webhook_id = $2 AND deleted_at_ms IS NULL",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .bind(sealed)
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

async fn delete(tx: &mut Tx, key: WebhookKey, now: Timestamp) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "UPDATE team_webhooks SET url = NULL, sealed = NULL, deleted_at_ms = $3 \
         WHERE team_id = $1 AND webhook_id = $2 AND deleted_at_ms IS NULL",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    cancel(tx, &key, now).await?;
    Ok(true)
}

/// Ends what is pending. An attempt that is under way is not called back.
async fn cancel(tx: &mut Tx, key: &WebhookKey, now: Timestamp) -> Result<(), StoreError> {
    cancel_pending(tx, key, now).await?;
    refresh(tx, &[(key.clone(), Change::default())]).await
}

/// The row of a webhook that there is, which nobody else changes before the end of the transaction.
async fn locked(tx: &mut Tx, key: &WebhookKey) -> Result<Option<AnyRow>, StoreError> {
    let row = sqlx::query(
        "UPDATE team_webhooks SET updated_at_ms = updated_at_ms \
         WHERE team_id = $1 AND webhook_id = $2 AND deleted_at_ms IS NULL RETURNING *",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row)
}

/// The number of the team's last event; 0 before its first.
async fn last_sequence(tx: &mut Tx, team: &TeamId) -> Result<i64, StoreError> {
    let last = sqlx::query_scalar("SELECT last_sequence FROM event_counters WHERE team_id = $1").bind(team.as_str());
    Ok(last.fetch_optional(&mut **tx).await?.unwrap_or_default())
}

fn types_text(types: &[EventType]) -> String {
    serde_json::Value::from_iter(types.iter().map(|one| one.as_str())).to_string()
}

fn read_types(row: &AnyRow) -> Result<Vec<EventType>, StoreError> {
    let text: String = row.try_get("types")?;
    let corrupt = || StoreError::Corrupt { what: format!("types of a webhook: {text}") };
    let names: Vec<String> = serde_json::from_str(&text).map_err(|_| corrupt())?;
    names.iter().map(|name| name.parse().map_err(|()| corrupt())).collect()
}

fn read(row: &AnyRow) -> Result<WebhookRow, StoreError> {
    Ok(WebhookRow {
        key: WebhookKey::read(row)?,
        name: row.try_get("name")?,
        url: row.try_get("configured_url")?,
        types: read_types(row)?,
        enabled: row.try_get::<Option<String>, _>("url")?.is_some(),
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        updated_at: from_ms(row.try_get("updated_at_ms")?)?,
    })
}
