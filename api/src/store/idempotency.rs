//! Idempotency keys: a repeated request gets the response of the first one, not done again.
//!
//! ```text
//!   (none) ──claim──▶ in flight ──finish──▶ finished ──a day──▶ (none)
//!                      │     │
//!                      │     └── released, or lease over, and names a resource: claimed again,
//!                      │         and the resource is the response if it is still there
//!                      └── released, or lease over, and names none: (none)
//! ```
//!
//! A claim holds while its process lives ([`super::processes`]), and never longer than [`LEASE`], for no request runs as
//! long. Who has lost it can make no resource under it any more.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::{Database, StoreError, Tx, count, decode_bool, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;

use super::processes::OwnId;

/// How long a key is remembered.
pub const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// How long a claim holds without being finished.
pub const LEASE: Duration = Duration::from_secs(300);

/// A key that this request may work under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub team_id: TeamId,
    pub key: String,
    /// Random: tells this claim from a later one of the same key.
    pub token: String,
}

/// The response that a key is remembered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptResponse {
    pub status: u16,
    pub body: Option<String>,
    /// The sandboxes whose sessions the body held, before they were taken out; in the body's order, separated by commas.
    pub session_of: Option<String>,
}

/// What a key turned out to be.
#[derive(Debug)]
pub enum Lookup {
    /// New: do the work, then [`IdempotencyKeys::finish`] or [`IdempotencyKeys::release`].
    Claimed(Claim),
    /// Another request with it is at work.
    InFlight,
    /// It was used for another request.
    Reused,
    /// This request got its response before.
    Finished(KeptResponse),
    /// This request failed, or its process died, after it had made this resource, or these, separated by commas. The key was
    /// claimed again, for the response to be kept.
    Abandoned { claim: Claim, resource_id: String },
}

/// The keys.
#[derive(Debug, Clone)]
pub struct IdempotencyKeys {
    database: Database,
    own: OwnId,
}

impl IdempotencyKeys {
    pub(crate) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Looks `key` up and claims it where it is free. `fingerprint`: 64 hexadecimal digits.
    pub async fn claim(
        &self,
        team_id: &TeamId,
        key: &str,
        fingerprint: &str,
        now: Timestamp,
    ) -> Result<Lookup, StoreError> {
        let now_ms = to_ms(now);
        let claim =
            Claim { team_id: team_id.clone(), key: key.to_owned(), token: sandpiper_protocol::id::generate("clm") };
        let mut tx = self.database.write().await?;
        sqlx::query("DELETE FROM idempotency_keys WHERE expires_at_ms <= $1").bind(now_ms).execute(&mut *tx).await?;

        let row = sqlx::query(
            "SELECT *, CASE WHEN lease_until_ms > $4 AND (process = $3 OR EXISTS \
                 (SELECT 1 FROM processes p WHERE p.id = idempotency_keys.process AND p.alive_until_ms > $4)) \
                 THEN 1 ELSE 0 END AS held \
             FROM idempotency_keys WHERE team_id = $1 AND key = $2",
        )
        .bind(team_id.as_str())
        .bind(key)
        .bind(self.own.as_str())
        .bind(now_ms)
        .fetch_optional(&mut *tx)
        .await?;
        let mut abandoned_resource = None;
        if let Some(row) = row {
            if row.try_get::<String, _>("fingerprint")? != fingerprint {
                return Ok(Lookup::Reused);
            }
            if row.try_get::<String, _>("state")? == "finished" {
                return Ok(Lookup::Finished(KeptResponse {
                    status: count(row.try_get::<Option<i64>, _>("status")?.unwrap_or(0))?,
                    body: row.try_get("body")?,
                    session_of: row.try_get("session_of")?,
                }));
            }
            if decode_bool(row.try_get("held")?)? {
                return Ok(Lookup::InFlight);
            }
            abandoned_resource = row.try_get::<Option<String>, _>("resource_id")?;
        }
        sqlx::query(
            "INSERT INTO idempotency_keys \
                 (team_id, key, fingerprint, claim, state, lease_until_ms, created_at_ms, expires_at_ms, process) \
             VALUES ($1, $2, $3, $4, 'in_flight', $5, $6, $7, $8) \
             ON CONFLICT (team_id, key) DO UPDATE SET claim = excluded.claim, \
                 lease_until_ms = excluded.lease_until_ms, process = excluded.process",
        )
        .bind(team_id.as_str())
        .bind(key)
        .bind(fingerprint)
        .bind(&claim.token)
        .bind(later(now_ms, LEASE))
        .bind(now_ms)
        .bind(later(now_ms, RETENTION))
        .bind(self.own.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(match abandoned_resource {
            Some(resource_id) => Lookup::Abandoned { claim, resource_id },
            None => Lookup::Claimed(claim),
        })
    }

    /// Keeps the response to the claim's request.
    pub async fn finish(&self, claim: &Claim, response: &KeptResponse) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        sqlx::query(
            "UPDATE idempotency_keys SET state = 'finished', status = $4, body = $5, session_of = $6 \
             WHERE team_id = $1 AND key = $2 AND claim = $3",
        )
        .bind(claim.team_id.as_str())
        .bind(&claim.key)
        .bind(&claim.token)
        .bind(i64::from(response.status))
        .bind(&response.body)
        .bind(&response.session_of)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Gives the key free: its request may be tried again. What was made under it is remembered, for the request failed
    /// without its sender learning of that.
    pub async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        for statement in [
            "DELETE FROM idempotency_keys WHERE team_id = $1 AND key = $2 AND claim = $3 AND resource_id IS NULL",
            "UPDATE idempotency_keys SET lease_until_ms = 0 WHERE team_id = $1 AND key = $2 AND claim = $3",
        ] {
            sqlx::query(statement)
                .bind(claim.team_id.as_str())
                .bind(&claim.key)
                .bind(&claim.token)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

/// Notes, in the transaction that makes it, which resource the claim's request made; false where another process has taken
/// the claim over, because this one was not heard of for long: that one makes the resource.
pub(super) async fn name_resource(tx: &mut Tx, claim: &Claim, resource_id: &str) -> Result<bool, StoreError> {
    let named =
        sqlx::query("UPDATE idempotency_keys SET resource_id = $4 WHERE team_id = $1 AND key = $2 AND claim = $3")
            .bind(claim.team_id.as_str())
            .bind(&claim.key)
            .bind(&claim.token)
            .bind(resource_id)
            .execute(&mut **tx)
            .await?;
    Ok(named.rows_affected() == 1)
}

fn later(ms: i64, by: Duration) -> i64 {
    ms.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::super::testing::test_store;
    use super::*;
    use crate::plan::Plan;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_two_processes_on_one_database_one_gets_the_key() {
        let store = test_store().await;
        let other = Store::new(Database::open(&store.location()).await.unwrap());
        let team = store.teams.ensure("acme", Plan::Pro, Timestamp::UNIX_EPOCH).await.unwrap();

        other.processes.join(None, Timestamp::UNIX_EPOCH).await.unwrap();
        store.processes.join(None, Timestamp::UNIX_EPOCH).await.unwrap();
        let claims = [&*store, &other].into_iter().cycle().take(16).map(|store| {
            let (keys, team_id) = (store.idempotency.clone(), team.id.clone());
            tokio::spawn(async move { keys.claim(&team_id, "k", &"0".repeat(64), Timestamp::UNIX_EPOCH).await })
        });
        let mut claimed = 0;
        for claim in claims.collect::<Vec<_>>() {
            claimed += u32::from(matches!(claim.await.unwrap().unwrap(), Lookup::Claimed(_)));
        }

        assert_eq!(claimed, 1);
    }
}
