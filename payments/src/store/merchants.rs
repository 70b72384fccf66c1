//! Merchants, and which markets each has in each realm.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_db::{Database, StoreError, Tx, decode_enum, from_ms, to_ms};
use sandpiper_discovery::MarketKey;
use sandpiper_protocol::id;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::discovery;
use crate::domain::realm::Realm;

/// The markets that are enabled, by realm.
pub type EnabledMarkets = BTreeMap<Realm, Vec<MarketKey>>;

/// One merchant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merchant {
    /// `mer…`
    pub id: String,
    pub name: String,
    pub default_traffic_vertical: Option<String>,
    /// With both realms, in the order of the keys.
    pub markets: EnabledMarkets,
    pub created_at: Timestamp,
}

/// What a change of a merchant touches.
#[derive(Debug, Clone, Default)]
pub struct MerchantChange {
    /// `Some(None)` takes the default away.
    pub default_traffic_vertical: Option<Option<String>>,
    /// The realms that are given are replaced.
    pub markets: EnabledMarkets,
}

/// Why a merchant was not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum MerchantError {
    #[error("Another merchant has this name")]
    NameTaken,
    #[error("There is no market {country} {currency}", country = .0.country_code, currency = .0.currency_code)]
    NoMarket(MarketKey),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for MerchantError {
    fn from(error: sqlx::Error) -> Self {
        MerchantError::Store(error.into())
    }
}

/// The merchants.
#[derive(Debug, Clone)]
pub struct Merchants {
    database: Database,
}

impl Merchants {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Makes a merchant; its id.
    pub async fn create(&self, name: &str, change: &MerchantChange, now: Timestamp) -> Result<String, MerchantError> {
        let merchant_id = id::generate("mer");
        let mut tx = self.database.write().await?;
        let made = sqlx::query(
            "INSERT INTO merchants (id, name, default_traffic_vertical, created_at_ms) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(&merchant_id)
        .bind(name)
        .bind(change.default_traffic_vertical.clone().flatten())
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        if made.rows_affected() == 0 {
            return Err(MerchantError::NameTaken);
        }
        enable(&mut tx, &merchant_id, &change.markets).await?;
        tx.commit().await?;
        Ok(merchant_id)
    }

    /// Changes a merchant; false when there is none.
    pub async fn change(&self, merchant_id: &str, change: &MerchantChange) -> Result<bool, MerchantError> {
        let mut tx = self.database.write().await?;
        let (change_vertical, vertical) = match &change.default_traffic_vertical {
            Some(vertical) => (1_i64, vertical.clone()),
            None => (0, None),
        };
        let changed = sqlx::query(
            "UPDATE merchants SET default_traffic_vertical = CASE WHEN $2 = 1 THEN $3 ELSE default_traffic_vertical END \
             WHERE id = $1",
        )
        .bind(merchant_id)
        .bind(change_vertical)
        .bind(vertical)
        .execute(&mut *tx)
        .await?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        enable(&mut tx, merchant_id, &change.markets).await?;
        discovery::advance(&mut tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The merchant with this id.
    pub async fn get(&self, merchant_id: &str) -> Result<Option<Merchant>, StoreError> {
        let rows = sqlx::query("SELECT * FROM merchants WHERE id = $1")
            .bind(merchant_id)
            .fetch_all(self.database.read())
            .await?;
        Ok(self.with_markets(&rows).await?.pop())
    }

    /// The merchant with this id or this name.
    pub async fn named(&self, named: &str) -> Result<Option<Merchant>, StoreError> {
        let rows = sqlx::query("SELECT * FROM merchants WHERE id = $1 OR name = $1 ORDER BY id LIMIT 1")
            .bind(named)
            .fetch_all(self.database.read())
            .await?;
        Ok(self.with_markets(&rows).await?.pop())
    }

    /// Up to `limit` merchants by id, which is by age, from the one after `after`.
    pub async fn list(&self, after: &str, limit: u32) -> Result<Vec<Merchant>, StoreError> {
        let rows = sqlx::query("SELECT * FROM merchants WHERE id > $1 ORDER BY id LIMIT $2")
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(self.database.read())
            .await?;
        self.with_markets(&rows).await
    }

    /// The merchants of these rows, which are all that there are between the first and the last.
    async fn with_markets(&self, rows: &[AnyRow]) -> Result<Vec<Merchant>, StoreError> {
        let mut merchants = rows.iter().map(merchant).collect::<Result<Vec<_>, _>>()?;
        let (Some(first), Some(last)) = (merchants.first(), merchants.last()) else { return Ok(merchants) };
        let enabled = sqlx::query(
            "SELECT merchant_id, realm, country_code, currency_code FROM merchant_markets \
             WHERE merchant_id BETWEEN $1 AND $2 ORDER BY merchant_id, realm, country_code, currency_code",
        )
        .bind(&first.id)
        .bind(&last.id)
        .fetch_all(self.database.read())
        .await?;
        for row in &enabled {
            let merchant_id: &str = row.try_get("merchant_id")?;
            let realm: Realm = decode_enum(row.try_get("realm")?)?;
            // One that was made since the rows were read is left for the next page.
            if let Some(merchant) = merchants.iter_mut().find(|merchant| merchant.id == merchant_id) {
                merchant.markets.entry(realm).or_default().push(discovery::market_key(row)?);
            }
        }
        Ok(merchants)
    }
}

/// Without its markets.
fn merchant(row: &AnyRow) -> Result<Merchant, StoreError> {
    Ok(Merchant {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        default_traffic_vertical: row.try_get("default_traffic_vertical")?,
        markets: Realm::ALL.into_iter().map(|realm| (realm, Vec::new())).collect(),
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}

/// Replaces the markets of the realms that are given.
async fn enable(tx: &mut Tx, merchant_id: &str, markets: &EnabledMarkets) -> Result<(), MerchantError> {
    for (realm, keys) in markets {
        sqlx::query("DELETE FROM merchant_markets WHERE merchant_id = $1 AND realm = $2")
            .bind(merchant_id)
            .bind(realm.as_str())
            .execute(&mut **tx)
            .await?;
        for key in keys {
            let known = sqlx::query(
                "INSERT INTO merchant_markets (merchant_id, realm, country_code, currency_code) \
                 SELECT $1, $2, country_code, currency_code FROM markets \
                 WHERE country_code = $3 AND currency_code = $4",
            )
            .bind(merchant_id)
            .bind(realm.as_str())
            .bind(&key.country_code)
            .bind(&key.currency_code)
            .execute(&mut **tx)
            .await?;
            if known.rows_affected() == 0 {
                return Err(MerchantError::NoMarket(key.clone()));
            }
        }
    }
    Ok(())
}
