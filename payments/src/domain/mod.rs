//! What a payment is, when its state may change, and when a delivery is attempted again: values and rules, without any I/O.

pub mod amount;
pub mod capacity;
pub mod ids;
pub mod order;
pub mod outcome;
pub mod realm;
pub mod schedule;
pub mod transition;
