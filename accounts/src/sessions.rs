//! Sessions that users have signed in to. Each has a token: `sps_` and 40 hexadecimal digits.

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::{Database, Statement, StoreError, Tx, from_ms, to_ms};
use sandpiper_http::keys;
use sqlx::Row;
use sqlx::any::AnyRow;
use zeroize::Zeroizing;

use crate::users::UserId;

/// What tokens begin with.
pub const PREFIX: &str = "sps_";

/// How long a session lasts, however much it is used.
const LASTS: SignedDuration = SignedDuration::from_hours(30 * 24);
/// For how long it is known of a session that it has ended: for longer than what it has given access to may last, a month.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(32 * 24);
/// Sessions of one user at a time: the oldest ends when there is one more.
const MOST: i64 = 100;

sandpiper_protocol::typed_id!(
    /// The id of a session: `ses…`.
    LoginSessionId,
    "ses"
);

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginSession {
    pub id: LoginSessionId,
    pub user_id: UserId,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub last_used_at: Option<Timestamp>,
}

/// A session that has just begun.
#[derive(Debug)]
pub struct Begun {
    pub session: LoginSession,
    /// Shown once.
    pub token: Zeroizing<String>,
}

/// The sessions.
#[derive(Debug, Clone)]
pub struct LoginSessions {
    database: Database,
}

/// The hash under which a token is stored; `None` for text that is no token.
pub fn hash(token: &str) -> Option<String> {
    keys::hash(PREFIX, token)
}

impl LoginSessions {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Begins one, for whoever had the password that is stored as `hash`; `None` when that has changed meanwhile.
    pub async fn begin(&self, user: &UserId, hash: &str, now: Timestamp) -> Result<Option<Begun>, StoreError> {
        // Apart from changes of passwords, which end sessions.
        let mut tx = self.database.write().await?;
        let still = sqlx::query("SELECT 1 FROM users WHERE id = $1 AND password = $2")
            .bind(user.to_string())
            .bind(hash.to_owned())
            .fetch_optional(&mut *tx)
            .await?;
        if still.is_none() {
            return Ok(None);
        }
        let begun = begin(&mut tx, user, now).await?;
        tx.commit().await?;
        Ok(Some(begun))
    }

    /// The session whose token has this hash, unless it is over.
    pub async fn active(&self, hash: &str, now: Timestamp) -> Result<Option<LoginSession>, StoreError> {
        self.active_where("SELECT * FROM login_sessions WHERE hash = $1", hash, now).await
    }

    /// The session of this id, unless it is over.
    pub async fn active_by_id(&self, id: &str, now: Timestamp) -> Result<Option<LoginSession>, StoreError> {
        self.active_where("SELECT * FROM login_sessions WHERE id = $1", id, now).await
    }

    async fn active_where(
        &self,
        query: &'static str,
        value: &str,
        now: Timestamp,
    ) -> Result<Option<LoginSession>, StoreError> {
        let row = sqlx::query(query).bind(value.to_owned()).fetch_optional(self.database.read()).await?;
        let Some(row) = row else { return Ok(None) };
        let session = session(&row)?;
        let has_ended = row.try_get::<Option<i64>, _>("ended_at_ms")?.is_some();
        Ok((!has_ended && session.expires_at > now).then_some(session))
    }

    /// Those of one user that are not over, newest first: at most `limit`, those before `before`.
    pub async fn of(
        &self,
        user: &UserId,
        before: Option<&str>,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<LoginSession>, StoreError> {
        let mut query = Statement::new("SELECT * FROM login_sessions WHERE ended_at_ms IS NULL AND expires_at_ms > ");
        query.push_bind(to_ms(now)).push(" AND user_id = ").push_bind(user.as_str());
        if let Some(before) = before {
            query.push(" AND id < ").push_bind(before);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        query.build().fetch_all(self.database.read()).await?.iter().map(session).collect()
    }

    /// Ends one of this user's; false where there is none of this id.
    pub async fn end(&self, user: &UserId, id: &str, now: Timestamp) -> Result<bool, StoreError> {
        let mut ending = Statement::new("UPDATE login_sessions SET ended_at_ms = ");
        ending
            .push_bind(to_ms(now))
            .push(" WHERE id = ")
            .push_bind(id)
            .push(" AND user_id = ")
            .push_bind(user.as_str());
        ending.push(" AND ended_at_ms IS NULL");
        self.database.changes_row(ending).await
    }

    /// The ids of those that ended after `since`, or ran out, in order.
    pub async fn ended_since(&self, since: Timestamp, now: Timestamp) -> Result<Vec<String>, StoreError> {
        let ids = sqlx::query_scalar(
            "SELECT id FROM login_sessions WHERE ended_at_ms > $1 OR (expires_at_ms > $1 AND expires_at_ms <= $2) \
             ORDER BY id",
        )
        .bind(to_ms(since))
        .bind(to_ms(now))
        .fetch_all(self.database.read())
        .await?;
        Ok(ids)
    }
}

/// Begins one in the transaction of what comes with it, and forgets the user's old ones.
pub async fn begin(tx: &mut Tx, user: &UserId, now: Timestamp) -> Result<Begun, StoreError> {
    let long_ago = now.saturating_sub(REMEMBERED).unwrap_or(Timestamp::MIN);
    sqlx::query("DELETE FROM login_sessions WHERE user_id = $1 AND (ended_at_ms < $2 OR expires_at_ms < $2)")
        .bind(user.to_string())
        .bind(to_ms(long_ago))
        .execute(&mut **tx)
        .await?;
    sqlx::query(
        "UPDATE login_sessions SET ended_at_ms = $1 WHERE user_id = $2 AND ended_at_ms IS NULL AND id NOT IN \
         (SELECT id FROM login_sessions WHERE user_id = $2 AND ended_at_ms IS NULL ORDER BY id DESC LIMIT $3)",
    )
    .bind(to_ms(now))
    .bind(user.to_string())
    .bind(MOST - 1)
    .execute(&mut **tx)
    .await?;
    let token = keys::generate(PREFIX);
    let hash = hash(&token).ok_or_else(|| StoreError::Corrupt { what: "a new token".to_owned() })?;
    let expires_at = now.saturating_add(LASTS).unwrap_or(Timestamp::MAX);
    let row = sqlx::query(
        "INSERT INTO login_sessions (id, user_id, hash, created_at_ms, expires_at_ms) VALUES ($1, $2, $3, $4, $5) \
         RETURNING *",
    )
    .bind(LoginSessionId::generate().to_string())
    .bind(user.to_string())
    .bind(hash)
    .bind(to_ms(now))
    .bind(to_ms(expires_at))
    .fetch_one(&mut **tx)
    .await?;
    Ok(Begun { session: session(&row)?, token })
}

/// Ends all of a user's but `kept`, in the transaction of why.
pub(crate) async fn end_others(tx: &mut Tx, user: &UserId, kept: &str, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("UPDATE login_sessions SET ended_at_ms = $1 WHERE user_id = $2 AND id <> $3 AND ended_at_ms IS NULL")
        .bind(to_ms(now))
        .bind(user.to_string())
        .bind(kept.to_owned())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Ends all of a user's in the transaction of why.
pub async fn end_all(tx: &mut Tx, user: &UserId, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("UPDATE login_sessions SET ended_at_ms = $1 WHERE user_id = $2 AND ended_at_ms IS NULL")
        .bind(to_ms(now))
        .bind(user.to_string())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

fn session(row: &AnyRow) -> Result<LoginSession, StoreError> {
    Ok(LoginSession {
        id: row.try_get::<String, _>("id")?.into(),
        user_id: row.try_get::<String, _>("user_id")?.into(),
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        expires_at: from_ms(row.try_get("expires_at_ms")?)?,
        last_used_at: row.try_get::<Option<i64>, _>("last_used_at_ms")?.map(from_ms).transpose()?,
    })
}
