//! Merchants' keys.
//!
//! A public key is kept as a hash. A secret key is also kept itself, sealed under the secrets key for as long as it is
//! active, because its base64 part is the key that signs the realm's webhooks. A realm has at most one active secret key,
//! which the database guarantees; to rotate it is to end it and to begin another in one transaction.

use std::collections::HashMap;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::secrets::{OpenError, Vault};
use sandpiper_db::{Database, Statement, StoreError, Tx, decode_enum, from_ms, to_ms};
use sandpiper_webhook::{SecretError, SigningKey};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::webhook_endpoints::{EndpointKey, read_key};
use crate::domain::ids::{MerchantId, MerchantKeyId};
use crate::domain::realm::Realm;

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = KeyKind)]
pub enum Kind {
    /// `pk_…`: discovery.
    Public,
    /// `sk_…`: everything; it is also the key that signs the realm's webhooks.
    Secret,
}

impl Kind {
    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Public => "public",
            Kind::Secret => "secret",
        }
    }
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Kind::Public, Kind::Secret].into_iter().find(|kind| kind.as_str() == text).ok_or(())
    }
}

/// A key that may be used, and what is known of whom it acts for.
#[derive(Debug, Clone)]
pub struct ActiveMerchantKey {
    pub id: MerchantKeyId,
    pub kind: Kind,
    pub realm: Realm,
    pub merchant_id: MerchantId,
    pub default_traffic_vertical: Option<String>,
    /// Of all that can be discovered, at this moment.
    pub discovery_revision: i64,
}

/// A key as the operator's list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MerchantKeyRecord {
    pub id: MerchantKeyId,
    pub realm: Realm,
    pub kind: Kind,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// A key to be stored.
#[derive(Debug)]
pub struct NewMerchantKey<'a> {
    pub id: &'a MerchantKeyId,
    pub merchant_id: &'a MerchantId,
    pub realm: Realm,
    pub kind: Kind,
    pub hash: &'a str,
    /// Of a secret key.
    pub sealed: Option<&'a str>,
}

/// Why a key was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateKeyError {
    #[error("There is no such merchant")]
    NoMerchant,
    #[error("The realm has an active secret key already")]
    SecretExists,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateKeyError {
    fn from(error: sqlx::Error) -> Self {
        CreateKeyError::Store(error.into())
    }
}

/// Why a realm's webhooks cannot be signed, though it has a key.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    #[error("The secret key {key_id} cannot be recovered; restore the key file, or rotate the key")]
    Sealed { key_id: String, source: OpenError },
    #[error("The secret key {key_id} is not one; rotate it")]
    Malformed { key_id: String, source: SecretError },
}

/// The keys.
#[derive(Debug, Clone)]
pub struct MerchantKeys {
    database: Database,
}

impl MerchantKeys {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Adds a key.
    pub async fn create(&self, new: &NewMerchantKey<'_>, now: Timestamp) -> Result<(), CreateKeyError> {
        let mut tx = self.database.write().await?;
        insert(&mut tx, new, now).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Ends the key `old` and adds `new` in its place, at once; false when `old` is no active key of this merchant, realm
    /// and kind.
    pub async fn rotate(
        &self,
        old: &MerchantKeyId,
        new: &NewMerchantKey<'_>,
        now: Timestamp,
    ) -> Result<bool, CreateKeyError> {
        let mut tx = self.database.write().await?;
        let ended = sqlx::query(
            "UPDATE merchant_keys SET revoked_at_ms = $1, sealed = NULL \
             WHERE id = $2 AND merchant_id = $3 AND realm = $4 AND kind = $5 AND revoked_at_ms IS NULL",
        )
        .bind(to_ms(now))
        .bind(old.as_str())
        .bind(new.merchant_id.as_str())
        .bind(new.realm.as_str())
        .bind(new.kind.as_str())
        .execute(&mut *tx)
        .await?;
        if ended.rows_affected() == 0 {
            return Ok(false);
        }
        insert(&mut tx, new, now).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Ends a key; false when the merchant has no such active key.
    pub async fn revoke(
        &self,
        merchant_id: &MerchantId,
        key_id: &MerchantKeyId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut revocation = Statement::new("UPDATE merchant_keys SET sealed = NULL, revoked_at_ms = ");
        revocation
            .push_bind(to_ms(now))
            .push(" WHERE id = ")
            .push_bind(key_id.as_str())
            .push(" AND revoked_at_ms IS NULL");
        revocation.push(" AND merchant_id = ").push_bind(merchant_id.as_str());
        self.database.changes_row(revocation).await
    }

    /// The key with this hash, unless it was revoked.
    pub async fn active(&self, hash: &str) -> Result<Option<ActiveMerchantKey>, StoreError> {
        let row = sqlx::query(
            "SELECT k.id, k.kind, k.realm, k.merchant_id, m.default_traffic_vertical, r.revision \
             FROM merchant_keys k JOIN merchants m ON m.id = k.merchant_id CROSS JOIN discovery_revision r \
             WHERE k.hash = $1 AND k.revoked_at_ms IS NULL",
        )
        .bind(hash)
        .fetch_optional(self.database.read())
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(ActiveMerchantKey {
            id: row.try_get::<String, _>("id")?.into(),
            kind: decode_enum(row.try_get("kind")?)?,
            realm: decode_enum(row.try_get("realm")?)?,
            merchant_id: row.try_get::<String, _>("merchant_id")?.into(),
            default_traffic_vertical: row.try_get("default_traffic_vertical")?,
            discovery_revision: row.try_get("revision")?,
        }))
    }

    /// One key of a merchant, active or not.
    pub async fn get(
        &self,
        merchant_id: &MerchantId,
        key_id: &MerchantKeyId,
    ) -> Result<Option<MerchantKeyRecord>, StoreError> {
        let row = sqlx::query("SELECT * FROM merchant_keys WHERE id = $1 AND merchant_id = $2")
            .bind(key_id.as_str())
            .bind(merchant_id.as_str())
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(record).transpose()
    }

    /// The active secret key of a realm.
    pub async fn active_secret(
        &self,
        merchant_id: &MerchantId,
        realm: Realm,
    ) -> Result<Option<MerchantKeyRecord>, StoreError> {
        let row = sqlx::query(
            "SELECT * FROM merchant_keys WHERE merchant_id = $1 AND realm = $2 AND kind = 'secret' \
             AND revoked_at_ms IS NULL",
        )
        .bind(merchant_id.as_str())
        .bind(realm.as_str())
        .fetch_optional(self.database.read())
        .await?;
        row.as_ref().map(record).transpose()
    }

    /// Up to `limit` keys of a merchant, active or not, oldest first, from the one after `after`.
    pub async fn list(
        &self,
        merchant_id: &MerchantId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<MerchantKeyRecord>, StoreError> {
        let rows = sqlx::query("SELECT * FROM merchant_keys WHERE merchant_id = $1 AND id > $2 ORDER BY id LIMIT $3")
            .bind(merchant_id.as_str())
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(record).collect()
    }

    /// The keys that sign the webhooks of these realms now; none of a realm that has no active secret key. Not to be kept: a
    /// rotation is in force from its commit on.
    pub async fn signing_keys<'a>(
        &self,
        vault: &Vault,
        realms: impl IntoIterator<Item = &'a EndpointKey>,
    ) -> Result<HashMap<EndpointKey, Result<SigningKey, SigningKeyError>>, StoreError> {
        let mut statement = Statement::new("SELECT merchant_id, realm, id, sealed FROM merchant_keys JOIN (");
        statement.push_rows(realms.into_iter().map(|of| [of.merchant_id.as_str().into(), of.realm.as_str().into()]));
        statement.push(") AS given ON merchant_id = column1 AND realm = column2");
        statement.push(" WHERE kind = 'secret' AND revoked_at_ms IS NULL");
        let rows = statement.build().fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok((read_key(row)?, signing_key(vault, row)?))).collect()
    }
}

fn signing_key(vault: &Vault, row: &AnyRow) -> Result<Result<SigningKey, SigningKeyError>, StoreError> {
    let (key_id, sealed): (String, String) = (row.try_get("id")?, row.try_get("sealed")?);
    let secret = match vault.unseal(&key_id, &sealed) {
        Ok(secret) => secret,
        Err(source) => return Ok(Err(SigningKeyError::Sealed { key_id, source })),
    };
    // What is no text is no key either, and an empty one is refused as such.
    let secret = std::str::from_utf8(&secret).unwrap_or_default();
    Ok(SigningKey::from_api_key(secret).map_err(|source| SigningKeyError::Malformed { key_id, source }))
}

async fn insert(tx: &mut Tx, new: &NewMerchantKey<'_>, now: Timestamp) -> Result<(), CreateKeyError> {
    let merchant = sqlx::query("SELECT id FROM merchants WHERE id = $1")
        .bind(new.merchant_id.as_str())
        .fetch_optional(&mut **tx)
        .await?;
    if merchant.is_none() {
        return Err(CreateKeyError::NoMerchant);
    }
    let inserted = sqlx::query(
        "INSERT INTO merchant_keys (id, merchant_id, realm, kind, hash, sealed, created_at_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(new.id.as_str())
    .bind(new.merchant_id.as_str())
    .bind(new.realm.as_str())
    .bind(new.kind.as_str())
    .bind(new.hash)
    .bind(new.sealed)
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await;
    match inserted {
        // Ids and keys are random: what can be there already is the realm's secret key.
        Err(sqlx::Error::Database(refused)) if refused.is_unique_violation() => Err(CreateKeyError::SecretExists),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

fn record(row: &AnyRow) -> Result<MerchantKeyRecord, StoreError> {
    Ok(MerchantKeyRecord {
        id: row.try_get::<String, _>("id")?.into(),
        realm: decode_enum(row.try_get("realm")?)?,
        kind: decode_enum(row.try_get("kind")?)?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        revoked_at: row.try_get::<Option<i64>, _>("revoked_at_ms")?.map(from_ms).transpose()?,
    })
}
