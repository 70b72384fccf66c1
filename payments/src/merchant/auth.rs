//! Which merchant asks, in which realm, and what its key may do.
//!
//! A handler names what it needs as a parameter, [`PublicAccess`] or [`SecretAccess`], and gets merchant and realm from
//! there: nothing in a request can name another. Checks come in this order: the key (401), its rate limit (429), its kind
//! (403); then the handler's.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use sandpiper_http::keys::presented_key;
use sandpiper_http::query::check_characters;

use super::keys;
use crate::error::RpcError;
use crate::state::App;
use crate::store::merchant_keys::{ActiveMerchantKey, Kind};

/// Proof of any of a merchant's keys.
#[derive(Debug, Clone)]
pub struct PublicAccess(pub ActiveMerchantKey);

impl FromRequestParts<App> for PublicAccess {
    type Rejection = RpcError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RpcError> {
        let hash = keys::hash(presented_key(&parts.headers)?).ok_or_else(not_a_key)?;
        let key = app.store.merchant_keys.active(&hash).await?.ok_or_else(not_a_key)?;
        app.rate_limits.check(&key.id.to_string())?;
        check_characters(&parts.uri)?;
        Ok(PublicAccess(key))
    }
}

/// Proof of a secret key. A public one may be in anybody's hands, so it changes nothing.
#[derive(Debug, Clone)]
pub struct SecretAccess(pub ActiveMerchantKey);

impl FromRequestParts<App> for SecretAccess {
    type Rejection = RpcError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RpcError> {
        let PublicAccess(key) = PublicAccess::from_request_parts(parts, app).await?;
        match key.kind {
            Kind::Secret => Ok(SecretAccess(key)),
            Kind::Public => Err(RpcError::permission_denied(
                "SECRET_KEY_REQUIRED",
                "A public key (pk_…) only reads; use the realm's secret key (sk_…)",
            )),
        }
    }
}

fn not_a_key() -> RpcError {
    RpcError::unauthenticated("The key is not a merchant's (pk_… or sk_…): it is misspelt, or was revoked or rotated")
}
