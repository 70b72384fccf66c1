//! Webhooks of teams: a team's events, sent to where it wants them.
//!
//! ```text
//! cause ─▶ event ········▶ enqueuer ─▶ delivery ─▶ worker ─▶ receiver
//! └─ one transaction ┘     └─ one transaction ┘    `sandpiper-delivery`
//! ```
//!
//! [`source`] says which webhooks there are, and what signs; [`enqueuer`] makes deliveries of events; [`secret`] makes secrets. What a
//! webhook is, and what deliveries become of events, is in [`crate::store::webhooks`].

pub mod enqueuer;
pub mod secret;
pub mod source;
