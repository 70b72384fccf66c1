//! HTTP as both sides of the API speak it: what a request passes through before a handler, and what its response passes through.
//!
//! [`listener`] sockets and connections · [`layers`] around all routes: [`cors`], [`request`], time-out, panics ·
//! [`json`] and [`query`] what a request says · [`keys`] and [`limits`] who asks, how often · [`idempotency`] whether again ·
//! [`error`] the envelope of `/v1`, and what is refused for both · [`audited`] what was changed · [`metrics`] ·
//! [`document`] the OpenAPI pages · [`clock`]

pub mod audited;
pub mod clock;
pub mod cors;
pub mod document;
pub mod error;
pub mod idempotency;
pub mod json;
pub mod keys;
pub mod layers;
pub mod limits;
pub mod listener;
pub mod metrics;
pub mod query;
pub mod request;
mod unread;
