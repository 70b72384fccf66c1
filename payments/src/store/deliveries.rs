//! Deliveries: made in the transaction of what they report, looked at, replayed, cancelled. How they are attempted is in
//! [`super::delivery_claims`].

use std::collections::BTreeMap;
use std::ops::Deref;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::batch::Batch;
use sandpiper_db::{Database, Statement, StoreError, Tx, count, decode_enum, from_ms, to_ms};
use sandpiper_delivery::outcome::FailureClass;
use sandpiper_delivery::store::DeliveryStore;
use sandpiper_delivery::store::line::{self, Change, refresh};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::webhook_endpoints::{EndpointKey, read_key};

pub use sandpiper_delivery::store::delivery::{AttemptRow, DeliveryId, State};

/// Why there is a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A payment was updated.
    Update,
    /// Somebody had a delivery repeated.
    Replay,
    /// Somebody tries whether webhooks arrive.
    Test,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Trigger; 3] = [Trigger::Update, Trigger::Replay, Trigger::Test];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Update => "update",
            Trigger::Replay => "replay",
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

/// An update of a payment that the merchant is to be told.
#[derive(Debug)]
pub(super) struct NewDelivery<'a> {
    pub(super) endpoint: EndpointKey,
    pub(super) payment_id: &'a str,
    pub(super) updated_at_ms: i64,
    /// The PaymentOrder as it is now: these bytes are sent, in every attempt.
    pub(super) body: &'a [u8],
    pub(super) made_at: Timestamp,
}

/// Makes the deliveries of updates, in the transaction of the updates themselves: with them, or not at all. Each one's id,
/// `None` where the realm has no URL; the same id again for the same update. Afterwards, the worker is to be woken.
pub(super) async fn enqueue(tx: &mut Tx, new: &[NewDelivery<'_>]) -> Result<Vec<Option<DeliveryId>>, StoreError> {
    let mut due: BTreeMap<EndpointKey, Timestamp> = BTreeMap::new();
    for one in new {
        let first = due.entry(one.endpoint.clone()).or_insert(one.made_at);
        *first = one.made_at.min(*first);
    }
    let lined_up = line::line_up(tx, due).await?;
    let id = |one: &NewDelivery| DeliveryId::of_update(one.endpoint.realm, one.payment_id, one.updated_at_ms);
    let ids: Vec<_> = new.iter().map(|one| lined_up.contains(&one.endpoint).then(|| id(one))).collect();
    if lined_up.is_empty() {
        return Ok(ids);
    }
    let rows = new.iter().zip(&ids).filter_map(|(one, id)| {
        let (endpoint, id) = (&one.endpoint, id.as_ref()?);
        Some([
            id.as_str().into(),
            endpoint.merchant_id.as_str().into(),
            endpoint.realm.as_str().into(),
            one.payment_id.into(),
            one.updated_at_ms.into(),
            to_ms(one.made_at).into(),
            one.body.into(),
        ])
    });
    let mut statement = Statement::new(
        "INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, payment_id, payment_at_ms, created_at_ms, \
             next_at_ms, body) \
         SELECT column1, column2, column3, 'pending', 'update', column4, column5, column6, column6, column7 FROM (",
    );
    statement.push_rows(rows).push(") AS given WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING");
    statement.build().execute(&mut **tx).await?;
    Ok(ids)
}

/// The delivery that an update gave rise to when it was accepted; `None` where the realm had no URL then, or once the
/// delivery was removed after its time.
pub(super) async fn of_update(tx: &mut Tx, update: &NewDelivery<'_>) -> Result<Option<DeliveryId>, StoreError> {
    let id = DeliveryId::of_update(update.endpoint.realm, update.payment_id, update.updated_at_ms);
    let row = sqlx::query("SELECT id FROM webhook_deliveries WHERE id = $1").bind(id.as_str());
    Ok(row.fetch_optional(&mut **tx).await?.map(|_| id))
}

/// Puts the endpoint into the line, now at the latest; false when it has no URL.
async fn line_up(tx: &mut Tx, endpoint: &EndpointKey, now: Timestamp) -> Result<bool, StoreError> {
    let lined_up = line::line_up(tx, BTreeMap::from([(endpoint.clone(), now)])).await?;
    Ok(!lined_up.is_empty())
}

/// A delivery as it is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    pub endpoint: EndpointKey,
    pub state: State,
    pub trigger: Trigger,
    pub payment_id: Option<String>,
    /// The payment's `updatedAt`.
    pub payment_at: Option<Timestamp>,
    pub replay_of: Option<DeliveryId>,
    pub attempts: u32,
    pub created_at: Timestamp,
    pub next_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Of the last attempt that got a response.
    pub status: Option<u16>,
    /// Of the last attempt that was not.
    pub error_class: Option<FailureClass>,
}

impl DeliveryRow {
    /// What [`DeliveryRow::read`] needs.
    pub(super) const COLUMNS: &str = "id, merchant_id, realm, state, trigger, payment_id, payment_at_ms, replay_of, \
                                      attempts, created_at_ms, next_at_ms, ended_at_ms, status, error_class";

    pub(super) fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let time = |column: &str| row.try_get::<Option<i64>, _>(column).map_err(StoreError::from);
        Ok(Self {
            id: DeliveryId::stored(row.try_get("id")?),
            endpoint: read_key(row)?,
            state: decode_enum(row.try_get("state")?)?,
            trigger: decode_enum(row.try_get("trigger")?)?,
            payment_id: row.try_get("payment_id")?,
            payment_at: time("payment_at_ms")?.map(from_ms).transpose()?,
            replay_of: row.try_get::<Option<String>, _>("replay_of")?.map(DeliveryId::stored),
            attempts: count(row.try_get("attempts")?)?,
            created_at: from_ms(row.try_get("created_at_ms")?)?,
            next_at: time("next_at_ms")?.map(from_ms).transpose()?,
            ended_at: time("ended_at_ms")?.map(from_ms).transpose()?,
            status: row.try_get::<Option<i64>, _>("status")?.map(count).transpose()?,
            error_class: row.try_get::<Option<String>, _>("error_class")?.map(|text| decode_enum(&text)).transpose()?,
        })
    }
}

/// Test deliveries that an endpoint gets within [`TEST_WINDOW`]: enough for a person, too few for a load.
const TESTS: i64 = 10;
const TEST_WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Why something was not done with a delivery.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    #[error("There is no such delivery")]
    NotFound,
    #[error("There is no such payment")]
    NoPayment,
    #[error("The payment's present state has the delivery {0}")]
    Exists(DeliveryId),
    #[error("The delivery is {}", .0.as_str())]
    WrongState(State),
    #[error("The realm has no URL")]
    NoUrl,
    #[error("The endpoint was tested {TESTS} times within {} seconds", TEST_WINDOW.as_secs())]
    TooManyTests { retry_after_seconds: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for DeliveryError {
    fn from(error: sqlx::Error) -> Self {
        DeliveryError::Store(error.into())
    }
}

/// The deliveries.
#[derive(Debug, Clone)]
pub struct Deliveries {
    pub(super) database: Database,
    pub(super) batch: Batch,
    sent: DeliveryStore<EndpointKey>,
}

/// What has become of them.
impl Deref for Deliveries {
    type Target = DeliveryStore<EndpointKey>;

    fn deref(&self) -> &DeliveryStore<EndpointKey> {
        &self.sent
    }
}

impl Deliveries {
    pub(crate) fn new(database: Database, batch: Batch) -> Self {
        let sent = DeliveryStore::new(database.clone(), batch.clone());
        Self { database, batch, sent }
    }

    /// One delivery.
    pub async fn get(&self, id: &str) -> Result<Option<DeliveryRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM webhook_deliveries WHERE id = $1")
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(DeliveryRow::read).transpose()
    }

    /// What a delivery sends.
    pub async fn body(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let row = sqlx::query("SELECT body FROM webhook_deliveries WHERE id = $1")
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        Ok(row.map(|row| row.try_get("body")).transpose()?)
    }

    /// Makes the delivery of a payment's last update if there is none, as where the realm had no URL then.
    pub async fn deliver(&self, payment_id: String, now: Timestamp) -> Result<DeliveryId, DeliveryError> {
        self.batch.write(move |tx| Box::pin(deliver(tx, payment_id, now))).await
    }

    /// Makes a delivery that only tries whether webhooks arrive.
    pub async fn test(
        &self,
        endpoint: EndpointKey,
        body: Vec<u8>,
        now: Timestamp,
    ) -> Result<DeliveryId, DeliveryError> {
        self.batch.write(move |tx| Box::pin(test(tx, endpoint, body, now))).await
    }

    /// Repeats a delivery that is over: a new one, with a key and a hundred attempts of its own.
    pub async fn replay(&self, id: String, now: Timestamp) -> Result<DeliveryId, DeliveryError> {
        self.batch.write(move |tx| Box::pin(replay(tx, id, now))).await
    }

    /// Ends a delivery that is not over. An attempt that is under way is not called back.
    pub async fn cancel(&self, id: String, now: Timestamp) -> Result<(), DeliveryError> {
        self.batch.write(move |tx| Box::pin(cancel(tx, id, now))).await
    }
}

async fn test(tx: &mut Tx, endpoint: EndpointKey, body: Vec<u8>, now: Timestamp) -> Result<DeliveryId, DeliveryError> {
    if !line_up(tx, &endpoint, now).await? {
        return Err(DeliveryError::NoUrl);
    }
    let last = "SELECT created_at_ms FROM webhook_deliveries WHERE merchant_id = $1 AND realm = $2 AND trigger = 'test' \
                ORDER BY created_at_ms DESC LIMIT 1 OFFSET $3";
    let row = sqlx::query(last)
        .bind(&endpoint.merchant_id)
        .bind(endpoint.realm.as_str())
        .bind(TESTS - 1)
        .fetch_optional(&mut **tx)
        .await?;
    if let Some(row) = row {
        let wait = TEST_WINDOW - now.duration_since(from_ms(row.try_get("created_at_ms")?)?);
        if wait.is_positive() {
            let retry_after_seconds = u64::try_from(wait.as_secs()).unwrap_or_default() + 1;
            return Err(DeliveryError::TooManyTests { retry_after_seconds });
        }
    }
    let id = DeliveryId::random();
    sqlx::query(
        "INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, created_at_ms, next_at_ms, body) \
         VALUES ($1, $2, $3, 'pending', 'test', $4, $4, $5)",
    )
    .bind(id.as_str())
    .bind(&endpoint.merchant_id)
    .bind(endpoint.realm.as_str())
    .bind(to_ms(now))
    .bind(body)
    .execute(&mut **tx)
    .await?;
    Ok(id)
}

async fn deliver(tx: &mut Tx, payment_id: String, now: Timestamp) -> Result<DeliveryId, DeliveryError> {
    let payment = sqlx::query("SELECT merchant_id, realm, updated_at_ms, document FROM payments WHERE id = $1")
        .bind(&payment_id)
        .fetch_optional(&mut **tx)
        .await?
        .ok_or(DeliveryError::NoPayment)?;
    let (endpoint, updated_at_ms) = (read_key(&payment)?, payment.try_get("updated_at_ms")?);
    let id = DeliveryId::of_update(endpoint.realm, &payment_id, updated_at_ms);
    match find(tx, id.as_str()).await {
        Ok(_) => return Err(DeliveryError::Exists(id)),
        Err(DeliveryError::NotFound) => {}
        Err(error) => return Err(error),
    }
    let document: String = payment.try_get("document")?;
    let new = NewDelivery { endpoint, payment_id: &payment_id, updated_at_ms, body: document.as_bytes(), made_at: now };
    enqueue(tx, &[new]).await?.pop().flatten().ok_or(DeliveryError::NoUrl)
}

/// The delivery as it is in this transaction.
async fn find(tx: &mut Tx, id: &str) -> Result<DeliveryRow, DeliveryError> {
    let row = sqlx::query("SELECT * FROM webhook_deliveries WHERE id = $1").bind(id).fetch_optional(&mut **tx).await?;
    Ok(DeliveryRow::read(&row.ok_or(DeliveryError::NotFound)?)?)
}

async fn replay(tx: &mut Tx, id: String, now: Timestamp) -> Result<DeliveryId, DeliveryError> {
    let original = find(tx, &id).await?;
    if !original.state.is_over() {
        return Err(DeliveryError::WrongState(original.state));
    }
    let replayed = replay_all(tx, &original.endpoint, &[original.id], now).await?;
    replayed.into_iter().next().ok_or(DeliveryError::NoUrl)
}

/// Repeats deliveries of one endpoint, all in one statement; none where it has no URL.
pub(super) async fn replay_all(
    tx: &mut Tx,
    endpoint: &EndpointKey,
    originals: &[DeliveryId],
    now: Timestamp,
) -> Result<Vec<DeliveryId>, StoreError> {
    if originals.is_empty() || !line_up(tx, endpoint, now).await? {
        return Ok(Vec::new());
    }
    let replays: Vec<_> = originals.iter().map(|original| (original, DeliveryId::random())).collect();
    let mut statement = Statement::new("WITH replays (original, id) AS (");
    for (index, (original, id)) in replays.iter().enumerate() {
        statement.push(if index == 0 { "VALUES " } else { ", " }).push_list([original.as_str(), id.as_str()]);
    }
    statement.push(
        ") INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, payment_id, payment_at_ms, replay_of, \
             created_at_ms, next_at_ms, body) \
         SELECT r.id, d.merchant_id, d.realm, 'pending', 'replay', d.payment_id, d.payment_at_ms, d.id, ",
    );
    statement.push_bind(to_ms(now)).push(", ").push_bind(to_ms(now));
    statement.push(", d.body FROM replays r JOIN webhook_deliveries d ON d.id = r.original");
    statement.build().execute(&mut **tx).await?;
    Ok(replays.into_iter().map(|(_, id)| id).collect())
}

async fn cancel(tx: &mut Tx, id: String, now: Timestamp) -> Result<(), DeliveryError> {
    let delivery = find(tx, &id).await?;
    if delivery.state.is_over() {
        return Err(DeliveryError::WrongState(delivery.state));
    }
    sqlx::query(
        "UPDATE webhook_deliveries SET state = 'cancelled', next_at_ms = NULL, claim = NULL, lease_until_ms = NULL, \
             ended_at_ms = $2 \
         WHERE id = $1 AND ended_at_ms IS NULL",
    )
    .bind(&id)
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    refresh(tx, &[(delivery.endpoint, Change::default())]).await?;
    Ok(())
}
