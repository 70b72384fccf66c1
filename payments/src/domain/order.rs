//! The payment order, as merchants read it and as webhooks carry it.
//!
//! It is written once, by [`PaymentOrder::document`], when an update is accepted. The text is stored, sent and answered
//! byte for byte, so a receiver that reads the payment again sees what was signed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::amount::Amount;

/// Where a payment is.
///
/// ```text
///            ┌──────┐ new details             ┌──────┐ corrected amount
///            ▼      │                         ▼      │
///   ──▶ PENDING ────┴──────────────────▶ COMPLETED ──┘
///            │                                ▲
///            └──────────▶ FAILED ─────────────┘ confirmed later
/// ```
///
/// A payment may be reported for the first time in any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schema(as = PaymentStatus)]
pub enum Status {
    Pending,
    Completed,
    Failed,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 3] = [Status::Pending, Status::Completed, Status::Failed];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "PENDING",
            Status::Completed => "COMPLETED",
            Status::Failed => "FAILED",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Status {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Status::ALL.into_iter().find(|status| status.as_str() == text).ok_or(())
    }
}

/// A payment order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentOrder {
    #[schema(example = "pay_123")]
    pub id: String,
    pub status: Status,
    /// What was asked for.
    pub amount: Amount,
    /// What was recognized; null while nothing was. It may be corrected after completion.
    #[schema(required)]
    pub actual_amount: Option<Amount>,
    #[schema(example = "KES")]
    pub currency_code: String,
    #[schema(example = "KE")]
    pub country_code: String,
    #[schema(example = "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER")]
    pub payment_method: String,
    /// Of mobile money, as discovered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Of a bank account, as discovered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bank_code: Option<String>,
    /// Of a mobile money transfer: what the payer needs, such as `transferCode`. It may come with a later update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mobile_money_transfer_details: Option<BTreeMap<String, String>>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Later with every update of the payment.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    pub metadata: BTreeMap<String, String>,
}

impl PaymentOrder {
    /// The JSON, in the order of the fields above and without blanks.
    pub fn document(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}
