//! Users: their addresses and passwords, and the sessions that they have signed in to.
//!
//! | what | where |
//! |---|---|
//! | an e-mail address, which names one user | [`email`] |
//! | what a user may do in a team | [`role`] |
//! | passwords, hashed and compared | [`passwords`] |
//! | users in the database | [`users`] |
//! | their sessions in the database, and the tokens of these | [`sessions`] |
//!
//! Who is a member of which team is the business of who has teams.

pub mod email;
pub mod passwords;
pub mod role;
pub mod sessions;
pub mod users;

pub use email::Email;
pub use passwords::Passwords;
pub use role::Role;
pub use sessions::LoginSessions;
pub use users::{User, UserId, Users};
