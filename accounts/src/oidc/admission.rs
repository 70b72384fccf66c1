//! Whether somebody whom the provider knows may enter, and as which user.
//!
//! 1. Whose identity is linked is that user, whatever address the provider knows by now.
//! 2. Whose verified address a user has is linked to that user, who has no other identity at this provider. An address that the
//!    provider has given to somebody else does not open the account of who had it before. What opened the account so far ends, password
//!    and sessions: whoever chose them said that the address was theirs, and nobody has verified that.
//! 3. Whoever is left becomes a new user, without a password, where that is allowed: by the settings, or by an invitation.

use jiff::Timestamp;
use sandpiper_db::{StoreError, Tx};

use super::identities::{self, Identities, IdentityId};
use super::provider::{Address, Person};
use crate::email::Email;
use crate::membership::AcceptError;
use crate::sessions::{self, Begun};
use crate::users::{self, User, UserId};

/// Who may become linked, and become a user.
#[derive(Debug, Clone, Copy)]
pub struct Admission<'a> {
    /// Whether a stranger becomes a user.
    pub sign_up: bool,
    /// Domains of addresses; empty: all.
    pub allowed_domains: &'a [String],
}

/// Why somebody may not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("The provider tells no e-mail address")]
    NoAddress,
    #[error("The provider has not verified the e-mail address")]
    Unverified,
    #[error("The e-mail address is of a domain that is not allowed")]
    Domain,
    #[error("Nobody here has the e-mail address")]
    Unknown,
    #[error("The account with the e-mail address is linked to another identity at the provider")]
    LinkedToAnother,
}

/// Why somebody did not enter.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// With the user whose account it would have been.
    #[error("{why}")]
    Refused { why: Refusal, user: Option<UserId> },
    #[error(transparent)]
    Invitation(#[from] AcceptError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Somebody who may enter.
#[derive(Debug)]
pub struct Admitted {
    pub user: User,
    pub identity: IdentityId,
    pub is_new: bool,
}

impl Identities {
    /// Signs somebody in, who may become linked or a user by that: all of it or nothing.
    ///
    /// # Errors
    ///
    /// They may not enter, and those of the database.
    pub async fn enter(
        &self,
        person: &Person,
        admission: Admission<'_>,
        now: Timestamp,
    ) -> Result<(Admitted, Begun), EntryError> {
        // By one at a time: two browsers of one person do not make two users.
        let mut tx = self.database.write().await?;
        let admitted = admit(&mut tx, person, admission, now).await?;
        let begun = sessions::begin(&mut tx, &admitted.user.id, now).await?;
        tx.commit().await.map_err(StoreError::from)?;
        Ok((admitted, begun))
    }
}

/// Who somebody is, in the transaction of what comes with it; it must be one that writes alone.
///
/// # Errors
///
/// They may not enter, and those of the database.
pub async fn admit(
    tx: &mut Tx,
    person: &Person,
    admission: Admission<'_>,
    now: Timestamp,
) -> Result<Admitted, EntryError> {
    let Person { issuer, subject, address, name } = person;
    if let Some((identity, user)) = identities::find(tx, issuer, subject).await? {
        identities::touch(tx, &identity, now).await?;
        return Ok(Admitted { user, identity, is_new: false });
    }
    let known = match address {
        Address::Verified(email) | Address::Unverified(email) => users::find(tx, email).await?,
        Address::None => None,
    };
    let of = known.as_ref().map(|user| user.id.clone());
    let refused = |why| EntryError::Refused { why, user: of.clone() };
    let email = match address {
        Address::Verified(email) => email,
        Address::Unverified(_) => return Err(refused(Refusal::Unverified)),
        Address::None => return Err(refused(Refusal::NoAddress)),
    };
    if !is_allowed(email, admission.allowed_domains) {
        return Err(refused(Refusal::Domain));
    }
    let is_new = known.is_none();
    let user = match known {
        Some(user) => {
            users::lock_out(tx, &user.id, now).await?;
            Some(user)
        }
        None if admission.sign_up => users::add(tx, email, name, None, now).await?,
        None => None,
    };
    let user = user.ok_or_else(|| refused(Refusal::Unknown))?;
    let identity = identities::link(tx, &user.id, issuer, subject, now).await?;
    let identity = identity.ok_or_else(|| refused(Refusal::LinkedToAnother))?;
    Ok(Admitted { user, identity, is_new })
}

fn is_allowed(email: &Email, domains: &[String]) -> bool {
    let domain = email.as_str().rsplit_once('@').map_or("", |(_, domain)| domain);
    domains.is_empty() || domains.iter().any(|allowed| allowed.eq_ignore_ascii_case(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_the_whole_of_what_follows_the_at() {
        let allowed = ["Example.com".to_owned()];
        let is_allowed = |email: &str| is_allowed(&email.parse().unwrap(), &allowed);
        assert!(is_allowed("ada@example.com") && is_allowed("ADA@EXAMPLE.COM"));
        for email in ["ada@evil-example.com", "ada@a.example.com", "ada@example.com.evil.test", "example.com@evil.test"]
        {
            assert!(!is_allowed(email), "{email}");
        }
    }
}
