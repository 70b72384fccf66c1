//! Who acts: users, with their addresses, passwords, identities and the sessions that they have signed in to, and operators.
//!
//! | what | where |
//! |---|---|
//! | an e-mail address, which names one user | [`email`] |
//! | what a user may do in a team | [`role`] |
//! | passwords, hashed and compared | [`passwords`] |
//! | users in the database | [`users`] |
//! | their sessions in the database, and the tokens of these | [`sessions`] |
//! | signing in with a password | [`sign_in`] |
//! | signing in at a provider of OpenID Connect | [`oidc`] |
//! | what holds of members and invitations | [`membership`] |
//! | operator keys, and what every change of an operator passes through | [`operators`] |
//!
//! Who is a member of which team is the business of who has teams.

pub mod email;
pub mod membership;
pub mod oidc;
pub mod operators;
pub mod passwords;
pub mod role;
pub mod sessions;
pub mod sign_in;
pub mod users;

pub use email::Email;
pub use operators::{Operator, Operators};
pub use passwords::Passwords;
pub use role::Role;
pub use sessions::LoginSessions;
pub use sign_in::Accounts;
pub use users::{User, UserId, Users};
