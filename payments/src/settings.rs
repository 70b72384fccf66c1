//! What an operator can set of payments.

use sandpiper_discovery::settings::PaymentSettings;
use sandpiper_http::limits::RateLimit;

use crate::delivery;

/// The settings of this side.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Longest body of a request, in bytes.
    pub request_body_limit: usize,
    /// Of each key of a merchant.
    pub rate_limit: RateLimit,
    /// Of each operator key.
    pub operator_rate_limit: RateLimit,
    pub payments: PaymentSettings,
    pub webhooks: delivery::settings::Settings,
}
