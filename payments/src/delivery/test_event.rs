//! What a test delivery says. It has the form of a payment order, and says in every way that it is none: no payment can have
//! its id, there is no amount that could be credited, and nothing has come to an end.

use jiff::Timestamp;
use serde_json::json;

/// Receivers know it by this. The ids of payments have no blanks.
pub const ID: &str = "test event";

/// The body of a test delivery that is made now.
pub fn body(now: Timestamp) -> Vec<u8> {
    // As all times of payments are.
    let at = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
    let event = json!({
        "id": ID,
        "status": "PENDING",
        "createdAt": at,
        "updatedAt": at,
        "metadata": {"test": "true"},
    });
    event.to_string().into_bytes()
}
