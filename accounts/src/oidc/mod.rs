//! Signing in at a provider of OpenID Connect: the authorization code flow with PKCE (OpenID Connect Core 1.0, 3.1; RFC 7636).
//!
//! ```text
//!   browser                this host                              provider
//!      │   begin ────────────▶│ discovery, once an hour ─────────────▶│
//!      │◀── transaction, ─────┤                                       │
//!      │    address           │                                       │
//!      ├── at that address: who are you? ────────────────────────────▶│
//!      │◀── code, state ──────────────────────────────────────────────┤
//!      ├── transaction, ─────▶│ code, verifier ──────────────────────▶│
//!      │   code, state        │◀─────────────── ID token, signed ─────┤
//!      │◀── login session ────┤                                       │
//! ```
//!
//! Nothing is stored between the two halves: the [`transaction`] is sealed and kept by the browser, so that any process of the API
//! can finish what another one began, and nobody fills a table by beginning. A code is good once, which is the provider's to keep
//! (RFC 6749, 4.1.2).
//!
//! | what | where |
//! |---|---|
//! | `[oidc]`, as an operator sets it | [`settings`] |
//! | requests to the provider, with their limits | [`http`] |
//! | what the provider says of itself, and its keys | [`discovery`] |
//! | the two halves, and what is believed of an ID token | [`provider`] |
//! | what the browser keeps between them | [`transaction`] |
//! | who is who: identities in the database | [`identities`] |
//! | which of them may enter, as which user | [`admission`] |

pub mod admission;
pub mod discovery;
pub mod http;
pub mod identities;
pub mod provider;
pub mod settings;
pub mod transaction;

pub use admission::{Admission, EntryError, Refusal};
pub use identities::{Identities, Identity, IdentityId, Unlinked};
pub use provider::{Address, Callback, OpenError, Person, Problem, Provider};
pub use settings::Settings;
pub use transaction::Transaction;
