//! Users of merchants: what each may do in a realm, and invitations to become one.
//!
//! A realm that has users keeps an owner: what would take the last one away is refused.

use std::collections::HashMap;

use jiff::Timestamp;
use sandpiper_accounts::membership::{AcceptError, Changed, INVITATION, INVITATION_LASTS, may_change};
use sandpiper_accounts::sessions::{self, Begun};
use sandpiper_accounts::{Email, Role, User, UserId, users};
use sandpiper_db::{Database, Statement, StoreError, Tx, decode_enum, from_ms, to_ms};
use sandpiper_protocol::id;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::webhook_endpoints::EndpointKey;
use crate::domain::realm::Realm;

/// What a user may do in one realm of a merchant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub merchant_id: String,
    pub merchant_name: String,
    pub realm: Realm,
    pub role: Role,
}

/// A user of a realm.
#[derive(Debug, Clone)]
pub struct MerchantUser {
    pub user_id: UserId,
    pub email: String,
    pub name: String,
    pub role: Role,
    pub since: Timestamp,
}

/// An invitation, without its token.
#[derive(Debug, Clone)]
pub struct MerchantInvitation {
    pub id: String,
    pub role: Role,
    /// `None`: both.
    pub realm: Option<Realm>,
    /// The only one who may accept it.
    pub email: Option<String>,
    pub expires_at: Timestamp,
}

/// An invitation to be made.
#[derive(Debug)]
pub struct NewMerchantInvitation<'a> {
    /// `None`: both.
    pub realm: Option<Realm>,
    pub role: Role,
    pub email: Option<&'a Email>,
    /// `None`: the operator.
    pub invited_by: Option<&'a UserId>,
    /// Of its token: 64 hexadecimal digits.
    pub hash: &'a str,
}

/// Someone who is not there yet, and accepts an invitation.
#[derive(Debug)]
pub struct NewUser<'a> {
    pub email: &'a Email,
    pub name: &'a str,
    /// The hash of the password.
    pub password: &'a str,
}

/// The users.
#[derive(Debug, Clone)]
pub struct MerchantUsers {
    database: Database,
}

impl MerchantUsers {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Where this user may do what: by the merchants' names, live first.
    pub async fn memberships(&self, user: &UserId) -> Result<Vec<Membership>, StoreError> {
        let rows = sqlx::query(
            "SELECT u.merchant_id, u.realm, u.role, m.name FROM merchant_members u \
             JOIN merchants m ON m.id = u.merchant_id WHERE u.user_id = $1 ORDER BY m.name, u.realm",
        )
        .bind(user.to_string())
        .fetch_all(self.database.read())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Membership {
                    merchant_id: row.try_get("merchant_id")?,
                    merchant_name: row.try_get("name")?,
                    realm: decode_enum(row.try_get("realm")?)?,
                    role: decode_enum(row.try_get("role")?)?,
                })
            })
            .collect()
    }

    /// The users of a realm, those who are there for longest first.
    pub async fn of(&self, place: &EndpointKey) -> Result<Vec<MerchantUser>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.user_id, m.role, m.created_at_ms, u.email, u.name FROM merchant_members m \
             JOIN users u ON u.id = m.user_id WHERE m.merchant_id = $1 AND m.realm = $2 ORDER BY m.created_at_ms, m.user_id",
        )
        .bind(&place.merchant_id)
        .bind(place.realm.as_str())
        .fetch_all(self.database.read())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(MerchantUser {
                    user_id: row.try_get::<String, _>("user_id")?.into(),
                    email: row.try_get("email")?,
                    name: row.try_get("name")?,
                    role: decode_enum(row.try_get("role")?)?,
                    since: from_ms(row.try_get("created_at_ms")?)?,
                })
            })
            .collect()
    }

    /// Has `actor` give a user another role in a realm, or take that one away; everybody may leave.
    ///
    /// What a user who may do less from then on has begun ends with it: the sessions, and the invitations, with which one could
    /// come back.
    pub async fn change(
        &self,
        place: &EndpointKey,
        actor: &UserId,
        user: &UserId,
        role: Option<Role>,
        now: Timestamp,
    ) -> Result<Changed, StoreError> {
        // By one at a time: what was read stays so.
        let mut tx = self.database.write().await?;
        let rows = sqlx::query("SELECT user_id, role FROM merchant_members WHERE merchant_id = $1 AND realm = $2")
            .bind(&place.merchant_id)
            .bind(place.realm.as_str())
            .fetch_all(&mut *tx)
            .await?;
        let mut roles: HashMap<String, Role> = HashMap::new();
        for row in &rows {
            roles.insert(row.try_get("user_id")?, decode_enum(row.try_get("role")?)?);
        }
        let (may, may_less) = may_change(&roles, actor, user, role);
        if may != Changed::Done {
            return Ok(may);
        }
        let mut change = match role {
            Some(role) => {
                let mut change = Statement::new("UPDATE merchant_members SET role = ");
                change.push_bind(role.as_str());
                change
            }
            None => Statement::new("DELETE FROM merchant_members"),
        };
        change.push(" WHERE merchant_id = ").push_bind(&place.merchant_id);
        change.push(" AND realm = ").push_bind(place.realm.as_str()).push(" AND user_id = ").push_bind(user.as_str());
        change.build().execute(&mut *tx).await?;
        if may_less {
            sessions::end_all(&mut tx, user, now).await?;
            sqlx::query("DELETE FROM merchant_invitations WHERE merchant_id = $1 AND invited_by = $2")
                .bind(&place.merchant_id)
                .bind(user.to_string())
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(Changed::Done)
    }

    /// Makes an invitation to a merchant, and forgets those that nobody can accept any more; `None` where there is no such merchant.
    pub async fn invite(
        &self,
        merchant_id: &str,
        invitation: &NewMerchantInvitation<'_>,
        now: Timestamp,
    ) -> Result<Option<MerchantInvitation>, StoreError> {
        let expires_at = now.saturating_add(INVITATION_LASTS).unwrap_or(Timestamp::MAX);
        let mut tx = self.database.write_shared().await?;
        sqlx::query("DELETE FROM merchant_invitations WHERE expires_at_ms <= $1")
            .bind(to_ms(now))
            .execute(&mut *tx)
            .await?;
        let row = sqlx::query(
            "INSERT INTO merchant_invitations (id, merchant_id, realm, role, email, hash, invited_by, created_at_ms, \
                 expires_at_ms) \
             SELECT $1, id, $3, $4, $5, $6, $7, $8, $9 FROM merchants WHERE id = $2 RETURNING *",
        )
        .bind(id::generate(INVITATION))
        .bind(merchant_id.to_owned())
        .bind(invitation.realm.map(Realm::as_str))
        .bind(invitation.role.as_str())
        .bind(invitation.email.map(Email::to_string))
        .bind(invitation.hash.to_owned())
        .bind(invitation.invited_by.map(UserId::to_string))
        .bind(to_ms(now))
        .bind(to_ms(expires_at))
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        row.as_ref().map(invitation_of).transpose()
    }

    /// Invitations that can be accepted and are for a realm, or for both, newest first: at most `limit`.
    pub async fn invitations(
        &self,
        place: &EndpointKey,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<MerchantInvitation>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM merchant_invitations WHERE expires_at_ms > $1 AND merchant_id = $2 \
             AND (realm IS NULL OR realm = $3) ORDER BY id DESC LIMIT $4",
        )
        .bind(to_ms(now))
        .bind(&place.merchant_id)
        .bind(place.realm.as_str())
        .bind(i64::from(limit))
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(invitation_of).collect()
    }

    /// Withdraws an invitation to this realm alone; false where there is none of this id.
    pub async fn withdraw(&self, place: &EndpointKey, id: &str) -> Result<bool, StoreError> {
        let mut withdrawal = Statement::new("DELETE FROM merchant_invitations WHERE id = ");
        withdrawal.push_bind(id).push(" AND merchant_id = ").push_bind(&place.merchant_id);
        withdrawal.push(" AND realm = ").push_bind(place.realm.as_str());
        self.database.changes_row(withdrawal).await
    }

    /// Whether this is the token of an invitation that can be accepted.
    pub async fn is_open(&self, hash: &str, now: Timestamp) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT 1 FROM merchant_invitations WHERE hash = $1 AND expires_at_ms > $2")
            .bind(hash.to_owned())
            .bind(to_ms(now))
            .fetch_optional(self.database.read())
            .await?;
        Ok(row.is_some())
    }

    /// Makes somebody new a user of a merchant, as the invitation says, and signed in: all of it or nothing. With the merchant's id.
    pub async fn accept_new(
        &self,
        hash: &str,
        new: &NewUser<'_>,
        now: Timestamp,
    ) -> Result<(User, String, Begun), AcceptError> {
        let mut tx = self.database.write().await?;
        let invitation = take(&mut tx, hash, new.email.as_str(), now).await?;
        let user = users::add(&mut tx, new.email, new.name, Some(new.password), now).await?;
        let user = user.ok_or(AcceptError::UserExists)?;
        enter(&mut tx, &invitation, &user.id, now).await?;
        let begun = sessions::begin(&mut tx, &user.id, now).await?;
        tx.commit().await.map_err(StoreError::from)?;
        Ok((user, invitation.merchant_id, begun))
    }

    /// Makes a user one of a merchant, as the invitation says; the merchant's id.
    pub async fn accept(&self, hash: &str, user: &User, now: Timestamp) -> Result<String, AcceptError> {
        let mut tx = self.database.write().await?;
        let invitation = take(&mut tx, hash, &user.email, now).await?;
        if !enter(&mut tx, &invitation, &user.id, now).await? {
            return Err(AcceptError::IsMember);
        }
        tx.commit().await.map_err(StoreError::from)?;
        Ok(invitation.merchant_id)
    }
}

/// An invitation that was taken.
struct Taken {
    merchant_id: String,
    realms: Vec<Realm>,
    role: Role,
}

/// Takes an invitation away, for one who has this address.
async fn take(tx: &mut Tx, hash: &str, email: &str, now: Timestamp) -> Result<Taken, AcceptError> {
    let row = sqlx::query("DELETE FROM merchant_invitations WHERE hash = $1 AND expires_at_ms > $2 RETURNING *")
        .bind(hash.to_owned())
        .bind(to_ms(now))
        .fetch_optional(&mut **tx)
        .await?
        .ok_or(AcceptError::Gone)?;
    let invitation = invitation_of(&row)?;
    if invitation.email.is_some_and(|only| only != email) {
        return Err(AcceptError::ForAnother);
    }
    let realms = invitation.realm.map_or(Realm::ALL.to_vec(), |realm| vec![realm]);
    Ok(Taken { merchant_id: row.try_get("merchant_id")?, realms, role: invitation.role })
}

/// Makes someone a user of the realms in which they are none; false when there is no such realm.
async fn enter(tx: &mut Tx, invitation: &Taken, user: &UserId, now: Timestamp) -> Result<bool, StoreError> {
    let mut entered = 0;
    for realm in &invitation.realms {
        let done = sqlx::query(
            "INSERT INTO merchant_members (merchant_id, realm, user_id, role, created_at_ms) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT DO NOTHING",
        )
        .bind(&invitation.merchant_id)
        .bind(realm.as_str())
        .bind(user.to_string())
        .bind(invitation.role.as_str())
        .bind(to_ms(now))
        .execute(&mut **tx)
        .await?;
        entered += done.rows_affected();
    }
    Ok(entered > 0)
}

fn invitation_of(row: &AnyRow) -> Result<MerchantInvitation, StoreError> {
    Ok(MerchantInvitation {
        id: row.try_get("id")?,
        role: decode_enum(row.try_get("role")?)?,
        realm: row.try_get::<Option<&str>, _>("realm")?.map(decode_enum).transpose()?,
        email: row.try_get("email")?,
        expires_at: from_ms(row.try_get("expires_at_ms")?)?,
    })
}
