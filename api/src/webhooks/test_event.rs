//! What a test delivery says: a payment order like any other, of a payment that does not exist.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::merchant::amount::Amount;
use crate::merchant::order::{PaymentOrder, Status};

/// Tells it from every payment, whose ids have no blanks.
const ID: &str = "test event";

/// The body of a test delivery that is made now.
pub fn body(now: Timestamp) -> Result<Vec<u8>, serde_json::Error> {
    let amount: Amount = serde_json::from_str(r#""1500.00""#)?;
    let order = PaymentOrder {
        id: ID.to_owned(),
        status: Status::Completed,
        actual_amount: Some(amount.clone()),
        amount,
        currency_code: "XXX".to_owned(),
        country_code: "ZZ".to_owned(),
        payment_method: "PAYMENT_METHOD_BANK_ACCOUNT".to_owned(),
        operator: None,
        bank_code: None,
        mobile_money_transfer_details: None,
        created_at: now,
        updated_at: now,
        metadata: BTreeMap::from([("test".to_owned(), "true".to_owned())]),
    };
    order.document().map(String::into_bytes)
}
