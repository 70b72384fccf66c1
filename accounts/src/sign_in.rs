//! Signing in with an address and a password.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::http::StatusCode;
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::limits::RateLimits;
use zeroize::Zeroizing;

use crate::email::Email;
use crate::passwords::{Busy, Passwords};
use crate::sessions::{Begun, LoginSessions};
use crate::users::{User, UserId, Users};

/// Tries to sign in with one address, and to accept invitations.
const TRIES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Users, and what lets them in; cheap to clone.
#[derive(Debug, Clone)]
pub struct Accounts {
    pub users: Users,
    pub sessions: LoginSessions,
    pub passwords: Passwords,
    /// How often one address may try to sign in, and one token be accepted.
    pub limits: Arc<RateLimits>,
}

/// What came of it.
#[derive(Debug)]
pub struct Attempt {
    /// Whose address it is, if anybody's.
    pub user: Option<User>,
    /// `None`: the password is wrong.
    pub begun: Option<Begun>,
}

impl Accounts {
    /// Of these users.
    pub fn new(users: Users, sessions: LoginSessions) -> Self {
        Self {
            users,
            sessions,
            passwords: Passwords::default(),
            limits: Arc::new(RateLimits::per_minute(TRIES_PER_MINUTE)),
        }
    }

    /// Begins a session for whoever has this address and this password. It takes as long for an address that nobody has, or somebody
    /// without a password.
    ///
    /// # Errors
    ///
    /// 429 for an address that was tried too often, 503 while too many sign in, and those of the database.
    pub async fn sign_in(
        &self,
        email: &Email,
        password: Zeroizing<String>,
        now: Timestamp,
    ) -> Result<Attempt, ApiError> {
        self.limits.check(&email.to_string())?;
        let (user, hash) = self.users.by_email(email).await?.unzip();
        let hash = hash.flatten();
        let is_right = self.passwords.is_right(password, hash.clone()).await.map_err(busy)?;
        let begun = match user.as_ref().zip(hash) {
            Some((user, hash)) if is_right => self.sessions.begin(&user.id, &hash, now).await?,
            _ => None,
        };
        Ok(Attempt { user, begun })
    }

    /// Gives a user another password, or who has none a first one, and ends all sessions but `kept`.
    ///
    /// # Errors
    ///
    /// 400 where the current password, if there is one, is not this or the new one is none, 404 without such a user, and as [`Accounts::sign_in`].
    pub async fn change_password(
        &self,
        user: &UserId,
        current: Zeroizing<String>,
        password: Zeroizing<String>,
        kept: &str,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        check_password(&password)?;
        let found = self.users.by_id(user).await?;
        let (user, hash) = found.ok_or_else(|| ApiError::not_found("There is no such user any more"))?;
        self.limits.check(&user.email)?;
        if hash.is_some() && !self.passwords.is_right(current, hash).await.map_err(busy)? {
            return Err(ApiError::invalid_field("current_password", "is not the password"));
        }
        let hash = self.passwords.hash(password).await.map_err(busy)?;
        Ok(self.users.set_password(&user.id, &hash, kept, now).await?)
    }
}

/// 401, the same for an address that nobody has.
pub fn wrong() -> ApiError {
    ApiError::unauthorized("The address or the password is wrong")
}

/// 503 where too many sign in at a time.
pub fn busy(error: Busy) -> ApiError {
    let message = "Too many users sign in at this moment; try again in a few seconds";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "capacity_unavailable", message)
        .retry_after(5)
        .because(error.to_string())
}

/// Refuses what is no password.
///
/// # Errors
///
/// 400.
pub fn check_password(password: &str) -> Result<(), ApiError> {
    Passwords::objection(password).map_or(Ok(()), |reason| Err(ApiError::invalid_field("password", reason)))
}

/// Longest name of a user, in bytes.
const MAX_NAME: usize = 200;

/// Refuses what is no name for a user.
///
/// # Errors
///
/// 400.
pub fn check_name(name: &str) -> Result<(), ApiError> {
    let is_name = name.len() <= MAX_NAME && !name.contains(char::is_control);
    let reason = "must have at most 200 bytes, and no control characters";
    if is_name { Ok(()) } else { Err(ApiError::invalid_field("name", reason)) }
}
