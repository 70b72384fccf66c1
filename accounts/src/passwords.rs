//! Passwords, hashed with Argon2id (RFC 9106).
//!
//! A hash takes 19 MiB and tens of milliseconds of a processor, on purpose. So few are made at a time, on threads of their own, and
//! who waits for too long is told so.

use std::sync::Arc;
use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Bytes that a password has at least.
pub const MIN_LENGTH: usize = 10;
/// Bytes that a password has at most: all of them are hashed.
pub const MAX_LENGTH: usize = 256;

/// Hashes that are made at a time.
const AT_A_TIME: usize = 2;
/// Longest wait for a turn.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Too many passwords wait to be looked at.
#[derive(Debug, thiserror::Error)]
#[error("Too many sign in at this moment")]
pub struct Busy;

/// The hash of a password that nobody has, made as all others are.
const NOBODYS: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$kG0GqETVvHlDLpwc18ZFZQ$Vt3CQJWuyIMQcgbJ9QYN80GNHCPYrhBK8q9IFwMMl9c";

/// Hashes and compares.
#[derive(Debug, Clone)]
pub struct Passwords {
    turns: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_A_TIME)) }
    }
}

impl Passwords {
    /// Why this cannot be somebody's password, if it cannot.
    pub fn objection(password: &str) -> Option<String> {
        let fits = (MIN_LENGTH..=MAX_LENGTH).contains(&password.len());
        (!fits).then(|| format!("must have {MIN_LENGTH} to {MAX_LENGTH} bytes"))
    }

    /// The hash of a password, to be stored.
    ///
    /// # Errors
    /// [`Busy`].
    pub async fn hash(&self, password: Zeroizing<String>) -> Result<String, Busy> {
        let turn = self.turn().await?;
        let hashed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            hash(password.as_bytes())
        });
        hashed.await.ok().flatten().ok_or(Busy)
    }

    /// Whether this is the password that was stored as `hash`. It takes as long where there is none, because there is no such
    /// user.
    ///
    /// # Errors
    /// [`Busy`].
    pub async fn is_right(&self, password: Zeroizing<String>, hash: Option<String>) -> Result<bool, Busy> {
        let turn = self.turn().await?;
        let is_somebody = hash.is_some();
        let hash = hash.unwrap_or_else(|| NOBODYS.to_owned());
        let compared = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Argon2::default().verify_password(password.as_bytes(), hash.as_str()).is_ok()
        });
        Ok(compared.await.unwrap_or(false) && is_somebody)
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Busy> {
        let turn = timeout(MAX_WAIT, Arc::clone(&self.turns).acquire_owned()).await;
        turn.map_err(|_| Busy)?.map_err(|_| Busy)
    }
}

fn hash(password: &[u8]) -> Option<String> {
    Argon2::default().hash_password(password).ok().map(|hash| hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.to_owned())
    }

    #[tokio::test]
    async fn only_the_password_itself_is_right() {
        let passwords = Passwords::default();
        let hash = passwords.hash(secret("correct horse")).await.unwrap();

        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(passwords.is_right(secret("correct horse"), Some(hash.clone())).await.unwrap());
        assert!(!passwords.is_right(secret("correct horsf"), Some(hash)).await.unwrap());
    }

    #[tokio::test]
    async fn nobody_has_a_password() {
        assert!(Argon2::default().verify_password(b"the password of nobody", NOBODYS).is_ok(), "it is a hash");
        let passwords = Passwords::default();
        assert!(!passwords.is_right(secret("the password of nobody"), None).await.unwrap());
        assert!(!passwords.is_right(secret("correct horse"), Some("not a hash".to_owned())).await.unwrap());
    }

    #[tokio::test]
    async fn the_same_password_is_hashed_differently() {
        let passwords = Passwords::default();
        let hashes = [passwords.hash(secret("correct horse")).await, passwords.hash(secret("correct horse")).await];
        assert_ne!(hashes[0].as_ref().unwrap(), hashes[1].as_ref().unwrap());
    }
}
