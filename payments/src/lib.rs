//! The payments side of the API: `/merchant` and `/operator`, the webhooks that tell merchants of their payments, and the
//! store behind them. It knows nothing of sandboxes, and those nothing of it.
//!
//! # Dramatis personae
//!
//! * A **merchant** has two **realms**, live and sandbox, and in each a public key, one secret key, markets, payments and a
//!   URL for webhooks ([`merchant`]).
//! * An **operator** runs the service, with an operator key: brings in merchants, markets and payments ([`operator`]). It is
//!   not to be mistaken for a *mobile money operator*, which is among what merchants discover.
//! * A **market** is a country with one of its currencies; the **catalog** of a merchant lists those it has.
//! * A **payment** is in the state that was last reported. Each report that is accepted gives rise to a **delivery**.
//!
//! # Rooms
//!
//! [`domain`] what a payment is, without any I/O · [`store`] the tables ·
//! [`merchant`], [`operator`] one file per resource · [`delivery`] webhooks, which `sandpiper-delivery` sends ·
//! [`portal`] pages for merchants · [`error`] the envelope · [`parameters`] and [`page`] what a query says ·
//! [`state`] what handlers work with · [`router`] all routes · [`document`] what describes them ·
//! `sandpiper-discovery` what merchants may discover, and the files it is imported from

pub mod delivery;
pub mod document;
pub mod domain;
pub mod error;
pub mod merchant;
pub mod operator;
pub mod page;
pub mod parameters;
pub mod portal;
pub mod responses;
pub mod router;
pub mod settings;
pub mod state;
pub mod store;
