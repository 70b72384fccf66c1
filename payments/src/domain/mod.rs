//! What a payment is, and when its state may change: values and rules, without any I/O.

pub mod amount;
pub mod ids;
pub mod order;
pub mod realm;
pub mod transition;
