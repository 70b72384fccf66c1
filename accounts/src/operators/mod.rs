//! Who operates the host: the holder of an operator key.
//!
//! Made with `sandpiper-api operator-key create`. There is one kind, which may do everything under `/operator` and nothing elsewhere.
//! Checks come in this order: the key (401), its rate limit (429); then the handler's. The limit is one of its own, far
//! above that of other keys, for what an operator brings is the service's own work.
//!
//! [`keys`] in the database · [`audited`] what every change of an operator passes through

use std::sync::Arc;

use axum::http::request::Parts;
use sandpiper_db::{AuditLog, StoreError};
use sandpiper_http::clock::Clock;
use sandpiper_http::error::ApiError;
use sandpiper_http::keys::presented_key;
use sandpiper_http::limits::{RateLimit, RateLimits};
use sandpiper_http::query::check_characters;

pub mod audited;
pub mod keys;

pub use keys::OperatorKeys;

/// What is needed to know an operator, and to write down what one did; cheap to clone.
#[derive(Debug, Clone)]
pub struct Operators {
    keys: OperatorKeys,
    rate_limits: Arc<RateLimits>,
    audit: AuditLog,
    clock: Clock,
}

impl Operators {
    /// `limit` is that of each key.
    pub fn new(keys: OperatorKeys, audit: AuditLog, limit: RateLimit, clock: Clock) -> Self {
        Self { keys, rate_limits: Arc::new(RateLimits::new(limit)), audit, clock }
    }

    /// Forgets the rate limits of keys that have not asked for a while.
    pub fn prune(&self) {
        self.rate_limits.prune();
    }
}

/// Proof of an operator key.
#[derive(Debug, Clone)]
pub struct Operator {
    pub key_id: String,
}

impl Operator {
    /// Who asks; established once per request, for a change is authenticated before its body is read.
    ///
    /// # Errors
    ///
    /// 401 without an operator key, 429 beyond its rate limit, and those of the database.
    pub async fn establish<E>(parts: &mut Parts, operators: &Operators) -> Result<Self, E>
    where
        E: From<ApiError> + From<StoreError>,
    {
        if let Some(operator) = parts.extensions.get::<Operator>() {
            return Ok(operator.clone());
        }
        let hash = keys::hash(presented_key(&parts.headers)?).ok_or_else(not_a_key)?;
        let key_id = operators.keys.active(&hash).await?.ok_or_else(not_a_key)?;
        operators.rate_limits.check(&key_id)?;
        check_characters(&parts.uri)?;
        let operator = Operator { key_id };
        parts.extensions.insert(operator.clone());
        Ok(operator)
    }
}

fn not_a_key() -> ApiError {
    ApiError::unauthorized("The key is not an operator key (opk_…): it is misspelt, or was revoked")
}
