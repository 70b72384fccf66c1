//! Identities in the database: whom a provider means, and which user that is.

use jiff::Timestamp;
use sandpiper_db::{Database, StoreError, Tx, from_ms, to_ms};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::sessions;
use crate::users::{User, UserId, user};

sandpiper_protocol::typed_id!(
    /// The id of an identity: `idn…`.
    IdentityId,
    "idn"
);

/// That somebody of a provider is a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub id: IdentityId,
    pub issuer: String,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
}

/// What became of a wish to unlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlinked {
    Done,
    /// There is no such identity of this user.
    None,
    /// The user could not sign in any more.
    LastWay,
}

/// The identities.
#[derive(Debug, Clone)]
pub struct Identities {
    pub(super) database: Database,
}

impl Identities {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Those of one user, oldest first.
    pub async fn of(&self, user: &UserId) -> Result<Vec<Identity>, StoreError> {
        let rows = sqlx::query("SELECT * FROM identities WHERE user_id = $1 ORDER BY id")
            .bind(user.to_string())
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(identity).collect()
    }

    /// Takes one away from its user, and ends the user's sessions but `kept`. Another way to sign in must be left: a password, or an
    /// identity at `issuer`, the provider of this host.
    pub async fn unlink(
        &self,
        user: &UserId,
        id: &str,
        issuer: Option<&str>,
        kept: &str,
        now: Timestamp,
    ) -> Result<Unlinked, StoreError> {
        // By one at a time: what is left stays so.
        let mut tx = self.database.write().await?;
        let removed = sqlx::query("DELETE FROM identities WHERE id = $1 AND user_id = $2")
            .bind(id.to_owned())
            .bind(user.to_string())
            .execute(&mut *tx)
            .await?;
        if removed.rows_affected() == 0 {
            return Ok(Unlinked::None);
        }
        let left = sqlx::query(
            "SELECT 1 FROM users WHERE id = $1 AND (password IS NOT NULL \
             OR EXISTS (SELECT 1 FROM identities WHERE user_id = $1 AND issuer = $2))",
        )
        .bind(user.to_string())
        .bind(issuer.unwrap_or_default().to_owned())
        .fetch_optional(&mut *tx)
        .await?;
        if left.is_none() {
            return Ok(Unlinked::LastWay);
        }
        sessions::end_others(&mut tx, user, kept, now).await?;
        tx.commit().await?;
        Ok(Unlinked::Done)
    }
}

/// Who this identity is, if anybody.
pub(super) async fn find(tx: &mut Tx, issuer: &str, subject: &str) -> Result<Option<(IdentityId, User)>, StoreError> {
    let row = sqlx::query(
        "SELECT i.id AS identity_id, u.* FROM identities i JOIN users u ON u.id = i.user_id \
         WHERE i.issuer = $1 AND i.subject = $2",
    )
    .bind(issuer.to_owned())
    .bind(subject.to_owned())
    .fetch_optional(&mut **tx)
    .await?;
    row.map(|row| Ok((row.try_get::<String, _>("identity_id")?.into(), user(&row)?))).transpose()
}

/// Writes down that it was used.
pub(super) async fn touch(tx: &mut Tx, id: &IdentityId, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("UPDATE identities SET last_used_at_ms = $1 WHERE id = $2")
        .bind(to_ms(now))
        .bind(id.to_string())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Links an identity to a user; `None` where the user has another one at this provider.
pub(super) async fn link(
    tx: &mut Tx,
    user: &UserId,
    issuer: &str,
    subject: &str,
    now: Timestamp,
) -> Result<Option<IdentityId>, StoreError> {
    let id = IdentityId::generate();
    let linked = sqlx::query(
        "INSERT INTO identities (id, user_id, issuer, subject, created_at_ms, last_used_at_ms) \
         VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (user_id, issuer) DO NOTHING",
    )
    .bind(id.to_string())
    .bind(user.to_string())
    .bind(issuer.to_owned())
    .bind(subject.to_owned())
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    Ok((linked.rows_affected() > 0).then_some(id))
}

fn identity(row: &AnyRow) -> Result<Identity, StoreError> {
    Ok(Identity {
        id: row.try_get::<String, _>("id")?.into(),
        issuer: row.try_get("issuer")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        last_used_at: from_ms(row.try_get("last_used_at_ms")?)?,
    })
}
