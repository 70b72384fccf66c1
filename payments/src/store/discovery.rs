//! What merchants may discover: markets with their methods, banks, mobile money operators. How they are brought in is in
//! [`super::imports`].
//!
//! Every change advances the *revision* in its own transaction, so a response can be kept for as long as the revision it
//! was made under is the present one ([`crate::responses`]).

use sandpiper_db::{Database, StoreError, Tx};
use sandpiper_discovery::{Audience, Bank, Market, MarketKey, MobileOperator};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::domain::ids::MerchantId;
use crate::domain::realm::Realm;

/// Markets, banks and operators.
#[derive(Debug, Clone)]
pub struct Discovery {
    pub(super) database: Database,
}

impl Discovery {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// The markets that the merchant has in this realm, by country and currency.
    pub async fn markets_of(&self, merchant_id: &MerchantId, realm: Realm) -> Result<Vec<Market>, StoreError> {
        let rows = sqlx::query(
            "SELECT e.country_code, e.currency_code, m.direction, m.method FROM merchant_markets e \
             LEFT JOIN market_methods m ON m.country_code = e.country_code AND m.currency_code = e.currency_code \
             WHERE e.merchant_id = $1 AND e.realm = $2 \
             ORDER BY e.country_code, e.currency_code, m.method",
        )
        .bind(merchant_id.as_str())
        .bind(realm.as_str())
        .fetch_all(self.database.read())
        .await?;
        markets(&rows)
    }

    /// Whether one can pay in by this method in a market of this country that the merchant has in this realm.
    pub async fn offers_in(
        &self,
        merchant_id: &MerchantId,
        realm: Realm,
        country: &str,
        method: &str,
    ) -> Result<bool, StoreError> {
        let row = sqlx::query(
            "SELECT 1 FROM merchant_markets e \
             JOIN market_methods m ON m.country_code = e.country_code AND m.currency_code = e.currency_code \
             WHERE e.merchant_id = $1 AND e.realm = $2 AND e.country_code = $3 AND m.direction = 'in' AND m.method = $4 \
             LIMIT 1",
        )
        .bind(merchant_id.as_str())
        .bind(realm.as_str())
        .bind(country)
        .bind(method)
        .fetch_optional(self.database.read())
        .await?;
        Ok(row.is_some())
    }

    /// The banks of a country, by name.
    pub async fn banks_in(&self, country: &str) -> Result<Vec<Bank>, StoreError> {
        let rows = sqlx::query("SELECT * FROM banks WHERE country_code = $1 ORDER BY name, code")
            .bind(country)
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(bank).collect()
    }

    /// The operators of a country for a method, by name.
    pub async fn mobile_operators_in(&self, country: &str, method: &str) -> Result<Vec<MobileOperator>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM mobile_operators WHERE country_code = $1 AND method = $2 ORDER BY name, code")
                .bind(country)
                .bind(method)
                .fetch_all(self.database.read())
                .await?;
        rows.iter().map(operator).collect()
    }

    /// Every market, by country and currency.
    pub async fn markets(&self) -> Result<Vec<Market>, StoreError> {
        let rows = sqlx::query(
            "SELECT k.country_code, k.currency_code, m.direction, m.method FROM markets k \
             LEFT JOIN market_methods m ON m.country_code = k.country_code AND m.currency_code = k.currency_code \
             ORDER BY k.country_code, k.currency_code, m.method",
        )
        .fetch_all(self.database.read())
        .await?;
        markets(&rows)
    }

    /// Up to `limit` banks by country and code, from the one after `after`; of all countries, if none is given.
    pub async fn banks(&self, country: Option<&str>, after: (&str, &str), limit: u32) -> Result<Vec<Bank>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM banks WHERE ($1 = '' OR country_code = $1) AND (country_code, code) > ($2, $3) \
             ORDER BY country_code, code LIMIT $4",
        )
        .bind(country.unwrap_or_default())
        .bind(after.0)
        .bind(after.1)
        .bind(i64::from(limit))
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(bank).collect()
    }

    /// Up to `limit` operators by country, method and code, from the one after `after`; of all countries, if none is given.
    pub async fn mobile_operators(
        &self,
        country: Option<&str>,
        after: (&str, &str, &str),
        limit: u32,
    ) -> Result<Vec<MobileOperator>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM mobile_operators \
             WHERE ($1 = '' OR country_code = $1) AND (country_code, method, code) > ($2, $3, $4) \
             ORDER BY country_code, method, code LIMIT $5",
        )
        .bind(country.unwrap_or_default())
        .bind(after.0)
        .bind(after.1)
        .bind(after.2)
        .bind(i64::from(limit))
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(operator).collect()
    }

    /// Withdraws a market, from all merchants too; false when there is none.
    pub async fn remove_market(&self, key: &MarketKey) -> Result<bool, StoreError> {
        let mut tx = self.database.write().await?;
        let removed = sqlx::query("DELETE FROM markets WHERE country_code = $1 AND currency_code = $2")
            .bind(&key.country_code)
            .bind(&key.currency_code)
            .execute(&mut *tx)
            .await?;
        finish_removal(tx, removed.rows_affected()).await
    }

    /// Removes a bank; false when there is none.
    pub async fn remove_bank(&self, country: &str, code: &str) -> Result<bool, StoreError> {
        let mut tx = self.database.write().await?;
        let removed = sqlx::query("DELETE FROM banks WHERE country_code = $1 AND code = $2")
            .bind(country)
            .bind(code)
            .execute(&mut *tx)
            .await?;
        finish_removal(tx, removed.rows_affected()).await
    }

    /// Removes an operator; false when there is none.
    pub async fn remove_mobile_operator(&self, country: &str, method: &str, code: &str) -> Result<bool, StoreError> {
        let mut tx = self.database.write().await?;
        let removed = sqlx::query("DELETE FROM mobile_operators WHERE country_code = $1 AND method = $2 AND code = $3")
            .bind(country)
            .bind(method)
            .bind(code)
            .execute(&mut *tx)
            .await?;
        finish_removal(tx, removed.rows_affected()).await
    }
}

async fn finish_removal(mut tx: Tx, removed: u64) -> Result<bool, StoreError> {
    if removed == 0 {
        return Ok(false);
    }
    advance(&mut tx).await?;
    tx.commit().await?;
    Ok(true)
}

/// Says that what can be discovered has changed.
pub(super) async fn advance(tx: &mut Tx) -> Result<(), StoreError> {
    sqlx::query("UPDATE discovery_revision SET revision = revision + 1").execute(&mut **tx).await?;
    Ok(())
}

pub(super) fn market_key(row: &AnyRow) -> Result<MarketKey, StoreError> {
    Ok(MarketKey { country_code: row.try_get("country_code")?, currency_code: row.try_get("currency_code")? })
}

/// Markets from rows of one method each, or of none, in the order of the markets.
fn markets(rows: &[AnyRow]) -> Result<Vec<Market>, StoreError> {
    let mut markets: Vec<Market> = Vec::new();
    for row in rows {
        let key = market_key(row)?;
        if markets.last().is_none_or(|last| last.key != key) {
            markets.push(Market { key, methods_in: Vec::new(), methods_out: Vec::new() });
        }
        let direction: Option<String> = row.try_get("direction")?;
        let (Some(market), Some(method)) = (markets.last_mut(), row.try_get::<Option<String>, _>("method")?) else {
            continue;
        };
        match direction.as_deref() {
            Some("in") => market.methods_in.push(method),
            _ => market.methods_out.push(method),
        }
    }
    Ok(markets)
}

fn bank(row: &AnyRow) -> Result<Bank, StoreError> {
    Ok(Bank {
        country_code: row.try_get("country_code")?,
        code: row.try_get("code")?,
        name: row.try_get("name")?,
        audience: audience(row)?,
    })
}

fn operator(row: &AnyRow) -> Result<MobileOperator, StoreError> {
    Ok(MobileOperator {
        country_code: row.try_get("country_code")?,
        method: row.try_get("method")?,
        code: row.try_get("code")?,
        name: row.try_get("name")?,
        audience: audience(row)?,
    })
}

fn audience(row: &AnyRow) -> Result<Audience, StoreError> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    Ok(Audience {
        traffic_verticals: words(row.try_get("traffic_verticals")?),
        customer_segments: words(row.try_get("customer_segments")?),
    })
}
