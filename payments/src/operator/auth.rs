//! Who operates the service: the holder of an operator key, `opk_` and 40 hexadecimal digits.
//!
//! Made with `sandpiper-api operator-key create`. There is one kind, which may do everything here and nothing elsewhere.
//! Checks come in this order: the key (401), its rate limit (429); then the handler's. The limit is one of its own, far
//! above that of other keys, for what an operator brings is the service's own work.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use sandpiper_http::keys::{self, presented_key};
use sandpiper_http::query::check_characters;
use zeroize::Zeroizing;

use crate::error::RpcError;
use crate::state::App;

const PREFIX: &str = "opk_";

/// A new key, shown once.
pub fn generate() -> Zeroizing<String> {
    keys::generate(PREFIX)
}

/// The hash under which a key is stored; `None` for text that is no operator key.
pub fn hash(key: &str) -> Option<String> {
    keys::hash(PREFIX, key)
}

/// Proof of an operator key.
#[derive(Debug, Clone)]
pub struct Operator {
    pub key_id: String,
}

impl FromRequestParts<App> for Operator {
    type Rejection = RpcError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RpcError> {
        // Established once per request: a change is authenticated before its body is read.
        if let Some(operator) = parts.extensions.get::<Operator>() {
            return Ok(operator.clone());
        }
        let hash = hash(presented_key(&parts.headers)?).ok_or_else(not_a_key)?;
        let key_id = app.store.operator_keys.active(&hash).await?.ok_or_else(not_a_key)?;
        app.operator_rate_limits.check(&key_id)?;
        check_characters(&parts.uri)?;
        let operator = Operator { key_id };
        parts.extensions.insert(operator.clone());
        Ok(operator)
    }
}

fn not_a_key() -> RpcError {
    RpcError::unauthenticated("The key is not an operator key (opk_…): it is misspelt, or was revoked")
}
