//! Users in the database.

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, Tx, from_ms, to_ms};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::email::Email;
use crate::sessions;

sandpiper_protocol::typed_id!(
    /// The id of a user: `usr…`.
    UserId,
    "usr"
);

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub id: UserId,
    /// In lower case.
    pub email: String,
    pub name: String,
    pub created_at: Timestamp,
}

/// The users.
#[derive(Debug, Clone)]
pub struct Users {
    database: Database,
}

impl Users {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// The user with this address, and the hash of the password, if there is one.
    pub async fn by_email(&self, email: &Email) -> Result<Option<(User, Option<String>)>, StoreError> {
        self.one("SELECT * FROM users WHERE email = $1", email.as_str()).await
    }

    /// The user with this id, and the hash of the password, if there is one.
    pub async fn by_id(&self, id: &UserId) -> Result<Option<(User, Option<String>)>, StoreError> {
        self.one("SELECT * FROM users WHERE id = $1", id).await
    }

    async fn one(&self, query: &'static str, value: &str) -> Result<Option<(User, Option<String>)>, StoreError> {
        let row = sqlx::query(query).bind(value.to_owned()).fetch_optional(self.database.read()).await?;
        row.map(|row| Ok((user(&row)?, row.try_get("password")?))).transpose()
    }

    /// Gives a user another name.
    pub async fn rename(&self, id: &UserId, name: &str) -> Result<(), StoreError> {
        let mut change = Statement::new("UPDATE users SET name = ");
        change.push_bind(name).push(" WHERE id = ").push_bind(id.as_str());
        self.database.changes_row(change).await.map(drop)
    }

    /// Gives a user another password, by its hash, and ends all sessions but `kept`.
    pub async fn set_password(&self, id: &UserId, hash: &str, kept: &str, now: Timestamp) -> Result<(), StoreError> {
        // Apart from sessions that begin: none does with the old password after this.
        let mut tx = self.database.write().await?;
        sqlx::query("UPDATE users SET password = $1 WHERE id = $2")
            .bind(hash.to_owned())
            .bind(id.to_string())
            .execute(&mut *tx)
            .await?;
        sessions::end_others(&mut tx, id, kept, now).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// The user with this address, in the transaction of what comes with it.
pub(crate) async fn find(tx: &mut Tx, email: &Email) -> Result<Option<User>, StoreError> {
    let row =
        sqlx::query("SELECT * FROM users WHERE email = $1").bind(email.to_string()).fetch_optional(&mut **tx).await?;
    row.as_ref().map(user).transpose()
}

/// Takes a user's password and ends all sessions, in the transaction of what opens the account from now on.
pub(crate) async fn lock_out(tx: &mut Tx, id: &UserId, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("UPDATE users SET password = NULL WHERE id = $1").bind(id.to_string()).execute(&mut **tx).await?;
    sessions::end_all(tx, id, now).await
}

/// Adds a user in the transaction of what comes with one, with the hash of a password or without. With this address there may be
/// another already: then nothing is added, and that is `None`.
pub async fn add(
    tx: &mut Tx,
    email: &Email,
    name: &str,
    password: Option<&str>,
    now: Timestamp,
) -> Result<Option<User>, StoreError> {
    let row = sqlx::query(
        "INSERT INTO users (id, email, name, password, created_at_ms) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (email) DO NOTHING RETURNING *",
    )
    .bind(UserId::generate().to_string())
    .bind(email.to_string())
    .bind(name.to_owned())
    .bind(password.map(str::to_owned))
    .bind(to_ms(now))
    .fetch_optional(&mut **tx)
    .await?;
    row.as_ref().map(user).transpose()
}

pub(crate) fn user(row: &AnyRow) -> Result<User, StoreError> {
    Ok(User {
        id: row.try_get::<String, _>("id")?.into(),
        email: row.try_get("email")?,
        name: row.try_get("name")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}
