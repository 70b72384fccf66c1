//! A key of a merchant that was just made up.

use jiff::Timestamp;
use zeroize::Zeroizing;

use super::keys;
use crate::domain::ids::{MerchantId, MerchantKeyId};
use crate::domain::realm::Realm;
use crate::error::RpcError;
use crate::state::App;
use crate::store::merchant_keys::{Kind, NewMerchantKey};

/// The key, and what is stored of it.
pub struct NewKey {
    pub id: MerchantKeyId,
    pub realm: Realm,
    pub kind: Kind,
    /// Shown once.
    pub key: Zeroizing<String>,
    hash: String,
    sealed: Option<String>,
    pub created_at: Timestamp,
}

impl NewKey {
    /// Makes one up; a secret key is sealed.
    ///
    /// # Errors
    ///
    /// 500 where it cannot be sealed.
    pub fn new(app: &App, realm: Realm, kind: Kind) -> Result<Self, RpcError> {
        let id = MerchantKeyId::generate();
        let key = keys::generate(realm, kind);
        let Some(hash) = keys::hash(&key) else { return Err(RpcError::internal("a new key is none")) };
        let sealed = match kind {
            Kind::Public => None,
            Kind::Secret => {
                Some(app.vault.seal(&id, key.as_bytes()).map_err(|error| RpcError::internal(error.to_string()))?)
            }
        };
        Ok(Self { id, realm, kind, key, hash, sealed, created_at: app.clock.now() })
    }

    /// As the store takes it.
    pub fn row<'a>(&'a self, merchant_id: &'a MerchantId) -> NewMerchantKey<'a> {
        NewMerchantKey {
            id: &self.id,
            merchant_id,
            realm: self.realm,
            kind: self.kind,
            hash: &self.hash,
            sealed: self.sealed.as_deref(),
        }
    }
}
