//! Attempts: a delivery is *claimed*, attempted, and the attempt *finished*. Two short transactions with the HTTP request
//! between them, which holds nothing of the database.
//!
//! A claim is a random number and a lease. The number makes sure that only who made the claim ends it. The lease makes sure
//! that somebody does: when a process dies with claims, they are [reclaimed](DeliveryStore::reclaim) after the lease, and the
//! attempts made again, under the same `Idempotency-Key`. Nobody knows whether the receiver got the first of the two, so it
//! counts, and there is never a 101st attempt.
//!
//! The next endpoint is the one that has waited longest, not the one with the most to send: see
//! [`super::line`]. Of one endpoint's deliveries those come first that are due first.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use sandpiper_db::statement::round_up;
use sandpiper_db::{Statement, StoreError, Tx, count, from_ms, to_ms};
use sqlx::Row;

use super::delivery::{DeliveryId, State};
use super::line::{Change, Standing, cancel_pending, refresh, standings};
use super::{DeliveryStore, Endpoint, query, statement};
use crate::capacity::{SMALLEST_CAP, cap_after};
use crate::outcome::FailureClass;
use crate::schedule;
use crate::schedule::MAX_ATTEMPTS;

/// Longer than an attempt and the writing of its result take.
pub const LEASE: SignedDuration = SignedDuration::from_secs(45);
/// Endpoints that one claim looks at; the next looks at the others.
const ENDPOINTS_AT_ONCE: usize = 32;

/// A delivery of which an attempt is to be made now.
#[derive(Debug, Clone)]
pub struct Claimed<E> {
    pub id: DeliveryId,
    pub endpoint: E,
    /// Why there is a delivery, in a word of the store.
    pub trigger: String,
    /// As it is configured now.
    pub url: String,
    pub body: Bytes,
    /// From 1.
    pub attempt: u32,
    pub created_at: Timestamp,
    pub due_at: Timestamp,
    pub started_at: Timestamp,
    claim: String,
}

/// What a round of claiming found.
#[derive(Debug)]
pub struct Claims<E> {
    pub deliveries: Vec<Claimed<E>>,
    /// How many were over before they could be claimed: nobody attempted them for seven days.
    pub expired: usize,
}

/// What becomes of a delivery after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It arrived, was refused, or was the last attempt.
    End(State),
    /// Again, at this time.
    Retry(Timestamp),
    /// Nothing was sent and nothing counts; to be looked at again at this time.
    Hold(Timestamp),
}

/// An attempt that is over.
#[derive(Debug, Clone)]
pub struct Finished<E> {
    pub claimed: Claimed<E>,
    pub ended_at: Timestamp,
    pub duration: Duration,
    /// `t` of the signature.
    pub signed_at: Option<i64>,
    pub result: Result<u16, FailureClass>,
    /// For people.
    pub detail: String,
    pub decision: Decision,
}

impl<E: Endpoint> DeliveryStore<E> {
    /// Claims up to `limit` deliveries that are due, fairly among the endpoints, and writes down that their attempts begin.
    pub async fn claim(&self, limit: usize, now: Timestamp) -> Result<Claims<E>, StoreError> {
        self.batch.write(move |tx| Box::pin(claim(tx, limit, now))).await
    }

    /// Writes down how attempts ended, all at once, and lets endpoints' caps grow to `largest_cap` where they were prompt.
    /// What was cancelled or claimed anew meanwhile stays as it is.
    pub async fn finish(&self, finished: Vec<Finished<E>>, largest_cap: u32) -> Result<(), StoreError> {
        self.batch.write(move |tx| Box::pin(finish(tx, finished, largest_cap))).await
    }

    /// Takes back what was claimed by processes that are gone; how many deliveries that were.
    pub async fn reclaim(&self, now: Timestamp) -> Result<usize, StoreError> {
        let row = query::<E>("SELECT 1 FROM {deliveries} WHERE state = 'in_flight' AND lease_until_ms <= $1 LIMIT 1")
            .bind(to_ms(now))
            .fetch_optional(self.database.read())
            .await?;
        if row.is_none() {
            return Ok(0);
        }
        self.batch.write(move |tx| Box::pin(reclaim::<E>(tx, now))).await
    }
}

/// An endpoint at which attempts may begin.
struct Ready<E> {
    endpoint: E,
    url: String,
    /// So many more may be under way.
    room: usize,
    /// So many are due, as far as they matter to this claim.
    due: usize,
}

async fn claim<E: Endpoint>(tx: &mut Tx, limit: usize, now: Timestamp) -> Result<Claims<E>, StoreError> {
    let ready = ready::<E>(tx, limit, now).await?;
    let claimed = claim_shares(tx, &ready, limit, now).await?;
    let (live, expired): (Vec<_>, Vec<_>) =
        claimed.into_iter().partition(|claimed| !schedule::is_over(claimed.created_at, now));
    expire(tx, &expired, now).await?;
    let served = || Change { served_at: Some(now), cap: None };
    let mut changes: Vec<_> = ready.into_iter().map(|one| (one.endpoint, served())).collect();
    changes.sort_by(|(one, _), (other, _)| one.cmp(other));
    refresh(tx, &changes).await?;
    Ok(Claims { deliveries: live, expired: expired.len() })
}

async fn ready<E: Endpoint>(tx: &mut Tx, limit: usize, now: Timestamp) -> Result<Vec<Ready<E>>, StoreError> {
    let rows = query::<E>(
        "SELECT {owner}, {part}, url, cap - in_flight AS room, \
             (SELECT COUNT(*) FROM (SELECT 1 FROM {deliveries} d \
                                    WHERE d.{owner} = e.{owner} AND d.{part} = e.{part} \
                                        AND d.state = 'pending' AND d.next_at_ms <= $1 LIMIT $3) AS counted) AS due \
         FROM {endpoints} e \
         WHERE next_at_ms <= $1 AND in_flight < cap AND url IS NOT NULL AND NOT ({held}) \
         ORDER BY next_at_ms LIMIT $2",
    )
    .bind(to_ms(now))
    .bind(i64::try_from(limit.min(ENDPOINTS_AT_ONCE)).unwrap_or(i64::MAX))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut **tx)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Ready {
                endpoint: E::read(row)?,
                url: row.try_get("url")?,
                room: count(row.try_get("room")?)?,
                due: count(row.try_get("due")?)?,
            })
        })
        .collect()
}

/// How many deliveries each endpoint may have of `limit`.
fn shares<E: Endpoint>(ready: &[Ready<E>], limit: usize) -> Vec<usize> {
    let mut left = limit;
    let share = |(index, one): (usize, &Ready<E>)| {
        // As much as the others leave it: where there is little room, one for each comes before two for any.
        let share = left.div_ceil(ready.len() - index).min(one.room).min(one.due);
        left -= share;
        share
    };
    ready.iter().enumerate().map(share).collect()
}

async fn claim_shares<E: Endpoint>(
    tx: &mut Tx,
    ready: &[Ready<E>],
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Claimed<E>>, StoreError> {
    let shares: Vec<_> = ready.iter().zip(shares(ready, limit)).filter(|(_, share)| *share > 0).collect();
    if shares.is_empty() {
        return Ok(Vec::new());
    }
    let chosen = choose(&shares, now).build().fetch_all(&mut **tx).await?;
    let chosen = chosen.iter().map(|row| row.try_get("id")).collect::<Result<Vec<String>, _>>()?;
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let claim = sandpiper_db::hex::encode(&rand::random::<[u8; 16]>());
    let urls: HashMap<&E, &str> = shares.iter().map(|(one, _)| (&one.endpoint, one.url.as_str())).collect();
    let mut claimed = mark::<E>(&claim, &chosen, now)
        .build()
        .fetch_all(&mut **tx)
        .await?
        .iter()
        .map(|row| {
            let endpoint = E::read(row)?;
            Ok(Claimed {
                id: DeliveryId::stored(row.try_get("id")?),
                url: urls.get(&endpoint).copied().unwrap_or_default().to_owned(),
                endpoint,
                trigger: row.try_get("trigger")?,
                body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
                attempt: count(row.try_get("attempts")?)?,
                created_at: from_ms(row.try_get("created_at_ms")?)?,
                due_at: from_ms(row.try_get("next_at_ms")?)?,
                started_at: now,
                claim: claim.clone(),
            })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    // RETURNING has no order.
    claimed.sort_by_key(|claimed| claimed.due_at);
    begin_attempts(tx, &claimed).await?;
    Ok(claimed)
}

/// The statement that finds each endpoint's share: what has been due longest.
fn choose<E: Endpoint>(shares: &[(&Ready<E>, usize)], now: Timestamp) -> Statement {
    let mut statement = statement::<E>("");
    let share = |(one, share): &(&Ready<E>, usize)| {
        let [owner, part] = one.endpoint.key();
        (owner.to_owned(), part.to_owned(), i64::try_from(*share).unwrap_or(i64::MAX))
    };
    // Shares of nobody make it a round number.
    let nobody = std::iter::repeat_with(|| (String::new(), String::new(), 0));
    let all = shares.iter().map(share).chain(nobody).take(round_up(shares.len()));
    for (index, (owner, part, share)) in all.enumerate() {
        statement.push(if index == 0 { "" } else { " UNION ALL " });
        // Each in brackets of its own, because it is ordered and limited by itself.
        statement.push("SELECT id FROM (SELECT id FROM {deliveries} WHERE state = 'pending' AND {owner} = ");
        statement.push_bind(owner).push(" AND {part} = ").push_bind(part);
        statement.push(" AND next_at_ms <= ").push_bind(to_ms(now));
        statement.push(" ORDER BY next_at_ms LIMIT ").push_bind(share).push(") AS share");
    }
    statement
}

/// The statement that claims the deliveries that nobody has claimed meanwhile.
///
/// It is apart from the one that finds them, and does not say that they are pending but what follows from it: PostgreSQL,
/// whose statistics are older than the line, would look at the whole line of an endpoint that hangs instead of these few.
fn mark<E: Endpoint>(claim: &str, chosen: &[String], now: Timestamp) -> Statement {
    let lease_until_ms = to_ms(now).saturating_add(i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX));
    let mut statement = statement::<E>("UPDATE {deliveries} SET state = 'in_flight', claim = ");
    statement.push_bind(claim).push(", lease_until_ms = ").push_bind(lease_until_ms);
    statement.push(", attempts = attempts + 1 WHERE claim IS NULL AND ended_at_ms IS NULL AND id IN ");
    let ids = chosen.iter().map(|id| Some(id.as_str())).chain(std::iter::repeat(None));
    statement.push_list(ids.take(round_up(chosen.len())));
    statement.push(" RETURNING id, {owner}, {part}, trigger, body, attempts, created_at_ms, next_at_ms");
    statement
}

async fn begin_attempts<E: Endpoint>(tx: &mut Tx, claimed: &[Claimed<E>]) -> Result<(), StoreError> {
    if claimed.is_empty() {
        return Ok(());
    }
    let mut statement =
        statement::<E>("INSERT INTO {attempts} (delivery_id, number, due_at_ms, started_at_ms) SELECT * FROM (");
    statement.push_rows(claimed.iter().map(|one| {
        [one.id.as_str().into(), i64::from(one.attempt).into(), to_ms(one.due_at).into(), to_ms(one.started_at).into()]
    }));
    statement.push(") AS begun WHERE column1 IS NOT NULL");
    statement.build().execute(&mut **tx).await?;
    Ok(())
}

/// Ends deliveries whose seven days are over, without the attempt for which they were claimed.
async fn expire<E: Endpoint>(tx: &mut Tx, expired: &[Claimed<E>], now: Timestamp) -> Result<(), StoreError> {
    for claimed in expired {
        forget_attempt(tx, claimed).await?;
        query::<E>(
            "UPDATE {deliveries} SET state = 'exhausted', attempts = attempts - 1, next_at_ms = NULL, \
                 ended_at_ms = $3, claim = NULL, lease_until_ms = NULL \
             WHERE id = $1 AND claim = $2",
        )
        .bind(claimed.id.as_str())
        .bind(&claimed.claim)
        .bind(to_ms(now))
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// Of which nothing was sent.
async fn forget_attempt<E: Endpoint>(tx: &mut Tx, claimed: &Claimed<E>) -> Result<(), StoreError> {
    query::<E>("DELETE FROM {attempts} WHERE delivery_id = $1 AND number = $2 AND duration_ms IS NULL")
        .bind(claimed.id.as_str())
        .bind(i64::from(claimed.attempt))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn finish<E: Endpoint>(tx: &mut Tx, finished: Vec<Finished<E>>, largest_cap: u32) -> Result<(), StoreError> {
    // In the order of their keys, as everywhere where several endpoints are touched.
    let mut by_endpoint: BTreeMap<E, Vec<Finished<E>>> = BTreeMap::new();
    for one in finished {
        by_endpoint.entry(one.claimed.endpoint.clone()).or_default().push(one);
    }
    let standings = standings(tx, by_endpoint.keys()).await?;
    let (mut ends, mut changes) = (Vec::new(), Vec::with_capacity(by_endpoint.len()));
    for (endpoint, finished) in &by_endpoint {
        let nowhere = || StoreError::Corrupt { what: format!("deliveries to {endpoint:?}, which there is not") };
        let standing = standings.get(endpoint).ok_or_else(nowhere)?;
        let mut cap = standing.cap;
        for one in finished {
            match End::of(one, standing) {
                Ok(end) => {
                    // What an earlier URL answered says nothing of this one.
                    if standing.url.as_ref() == Some(&one.claimed.url) {
                        cap = cap_after(cap, largest_cap, one.duration);
                    }
                    ends.push(end);
                }
                Err(until) => hold(tx, one, until).await?,
            }
        }
        changes.push((endpoint.clone(), Change { cap: Some(cap), served_at: None }));
    }
    log(tx, &ends).await?;
    settle(tx, &ends).await?;
    for (endpoint, finished) in &by_endpoint {
        if let (Some(Standing { url: None, .. }), Some(last)) = (standings.get(endpoint), finished.last()) {
            cancel_pending(tx, endpoint, last.ended_at).await?;
        }
    }
    refresh(tx, &changes).await
}

/// An attempt that counts, and what its delivery is afterwards.
struct End<'a, E> {
    attempt: &'a Finished<E>,
    state: State,
    /// While it is pending.
    next_at: Option<Timestamp>,
}

impl<'a, E> End<'a, E> {
    /// Until when the delivery is to be held instead, if nothing was sent.
    fn of(attempt: &'a Finished<E>, standing: &Standing) -> Result<Self, Timestamp> {
        let (state, next_at) = match attempt.decision {
            Decision::Hold(until) => return Err(until),
            Decision::End(state) => (state, None),
            Decision::Retry(at) if standing.url.is_some() => (State::Pending, Some(at)),
            // The URL was taken away meanwhile, and with it all that was pending.
            Decision::Retry(_) => (State::Cancelled, None),
        };
        Ok(Self { attempt, state, next_at })
    }

    fn status(&self) -> Option<i64> {
        self.attempt.result.ok().map(i64::from)
    }

    fn error_class(&self) -> Option<&'static str> {
        self.attempt.result.err().map(FailureClass::as_str)
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.state.is_over().then_some(self.attempt.ended_at)
    }
}

/// Ends the deliveries, or lines them up again.
async fn settle<E: Endpoint>(tx: &mut Tx, ends: &[End<'_, E>]) -> Result<(), StoreError> {
    if ends.is_empty() {
        return Ok(());
    }
    let mut statement = statement::<E>(
        "UPDATE {deliveries} SET state = column3, next_at_ms = column4, ended_at_ms = column5, status = column6, \
             error_class = column7, claim = NULL, lease_until_ms = NULL \
         FROM (",
    );
    statement.push_rows(ends.iter().map(|end| {
        [
            end.attempt.claimed.id.as_str().into(),
            end.attempt.claimed.claim.as_str().into(),
            end.state.as_str().into(),
            end.next_at.map(to_ms).into(),
            end.ended_at().map(to_ms).into(),
            end.status().into(),
            end.error_class().into(),
        ]
    }));
    statement.push(") AS ends WHERE id = column1 AND claim = column2");
    statement.build().execute(&mut **tx).await?;
    Ok(())
}

/// Completes the attempts' rows, which is right whatever has become of the deliveries.
async fn log<E: Endpoint>(tx: &mut Tx, ends: &[End<'_, E>]) -> Result<(), StoreError> {
    if ends.is_empty() {
        return Ok(());
    }
    let mut statement = statement::<E>(
        "UPDATE {attempts} SET duration_ms = column3, signed_at = column4, status = column5, error_class = column6, \
             detail = column7, next_at_ms = column8 \
         FROM (",
    );
    statement.push_rows(ends.iter().map(|end| {
        let attempt = end.attempt;
        [
            attempt.claimed.id.as_str().into(),
            i64::from(attempt.claimed.attempt).into(),
            i64::try_from(attempt.duration.as_millis()).unwrap_or(i64::MAX).into(),
            attempt.signed_at.into(),
            end.status().into(),
            end.error_class().into(),
            attempt.detail.as_str().into(),
            end.next_at.map(to_ms).into(),
        ]
    }));
    statement
        .push(") AS ends WHERE delivery_id = column1 AND number = column2 AND (duration_ms IS NULL OR error_class = ");
    // It was slow, was taken for dead, and comes after all.
    statement.push_bind(FailureClass::Interrupted.as_str()).push(")");
    statement.build().execute(&mut **tx).await?;
    Ok(())
}

/// The status of an earlier attempt, if there was one, is no longer what matters.
async fn hold<E: Endpoint>(tx: &mut Tx, one: &Finished<E>, until: Timestamp) -> Result<(), StoreError> {
    forget_attempt(tx, &one.claimed).await?;
    query::<E>(
        "UPDATE {deliveries} SET state = 'pending', attempts = attempts - 1, next_at_ms = $3, claim = NULL, \
             lease_until_ms = NULL, status = NULL, error_class = $4 \
         WHERE id = $1 AND claim = $2",
    )
    .bind(one.claimed.id.as_str())
    .bind(&one.claimed.claim)
    .bind(to_ms(until))
    .bind(one.result.err().map(FailureClass::as_str))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn reclaim<E: Endpoint>(tx: &mut Tx, now: Timestamp) -> Result<usize, StoreError> {
    // Due times stay what they were, so that these are the first in their line.
    let rows = query::<E>(
        "UPDATE {deliveries} SET claim = NULL, lease_until_ms = NULL, status = NULL, error_class = $2, \
             state = CASE WHEN attempts < $3 THEN 'pending' ELSE 'exhausted' END, \
             next_at_ms = CASE WHEN attempts < $3 THEN next_at_ms END, \
             ended_at_ms = CASE WHEN attempts < $3 THEN NULL ELSE $1 END \
         WHERE state = 'in_flight' AND lease_until_ms <= $1 \
         RETURNING id, {owner}, {part}, attempts",
    )
    .bind(to_ms(now))
    .bind(FailureClass::Interrupted.as_str())
    .bind(i64::from(MAX_ATTEMPTS))
    .fetch_all(&mut **tx)
    .await?;
    let mut endpoints = Vec::with_capacity(rows.len());
    for row in &rows {
        query::<E>(
            "UPDATE {attempts} SET error_class = $4, \
                 duration_ms = CASE WHEN started_at_ms < $3 THEN $3 - started_at_ms ELSE 0 END, \
                 detail = 'The process that made this attempt ended in it' \
             WHERE delivery_id = $1 AND number = $2 AND duration_ms IS NULL",
        )
        .bind(row.try_get::<String, _>("id")?)
        .bind(row.try_get::<i64, _>("attempts")?)
        .bind(to_ms(now))
        .bind(FailureClass::Interrupted.as_str())
        .execute(&mut **tx)
        .await?;
        endpoints.push(E::read(row)?);
    }
    endpoints.sort();
    endpoints.dedup();
    for (endpoint, standing) in standings(tx, &endpoints).await? {
        if standing.url.is_none() {
            cancel_pending(tx, &endpoint, now).await?;
        }
    }
    // The cap may have made up for the attempts that were taken back.
    let small = || Change { cap: Some(SMALLEST_CAP), served_at: None };
    let changes: Vec<_> = endpoints.into_iter().map(|endpoint| (endpoint, small())).collect();
    refresh(tx, &changes).await?;
    Ok(rows.len())
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Execute};

    use super::*;
    use crate::store::testing::{TestEndpoint, test_database};

    /// Statistics from a time at which hardly anything was pending.
    const STATISTICS_OF_A_SHORT_LINE: &str = "INSERT INTO merchants (id, name, created_at_ms) VALUES ('m', 'm', 0); \
        INSERT INTO webhook_endpoints (merchant_id, realm, url, cap, updated_at_ms) VALUES ('m', 'live', 'u', 4, 0); \
        INSERT INTO webhook_deliveries (id, merchant_id, realm, state, trigger, created_at_ms, ended_at_ms, attempts, \
                status, body) \
            SELECT 'dlv_' || lpad(number::text, 26, '0'), 'm', 'live', 'delivered', 'test', 0, 1, 1, 200, '' \
            FROM generate_series(1, 20000) AS number; \
        ANALYZE webhook_deliveries";

    #[tokio::test]
    async fn on_postgresql_a_claim_does_not_look_at_everything_that_is_pending() {
        if std::env::var_os("SANDPIPER_TEST_POSTGRES").is_none() {
            return sandpiper_skip::skipped("the plan of a claim", "it is PostgreSQL's; the run on PostgreSQL has it");
        }
        let database = test_database().await;
        let mut tx = database.write().await.unwrap();
        sqlx::raw_sql(STATISTICS_OF_A_SHORT_LINE).execute(&mut *tx).await.unwrap();
        let endpoint = TestEndpoint(["m".to_owned(), "live".to_owned()]);
        let ready = Ready { endpoint, url: "u".to_owned(), room: 4, due: 4 };
        let chosen = plan(choose(&[(&ready, 4)], from_ms(1).unwrap()), &mut tx).await;
        let marked = plan(mark::<TestEndpoint>("c", &["dlv".to_owned()], from_ms(1).unwrap()), &mut tx).await;

        let condition = chosen.iter().find(|step| step.contains("Index Cond")).unwrap();
        assert!(condition.contains("merchant_id = ") && condition.contains("next_at_ms <= "), "{chosen:#?}");
        assert!(marked.iter().any(|step| step.contains("webhook_deliveries_pkey")), "{marked:#?}");
    }

    /// How PostgreSQL carries a statement out.
    async fn plan(statement: Statement, tx: &mut Tx) -> Vec<String> {
        let mut query = statement.build();
        let values = query.take_arguments().unwrap().unwrap();
        let explain = AssertSqlSafe(format!("EXPLAIN (COSTS OFF) {}", query.sql().as_str()));
        let steps = sqlx::query_with(explain, values).fetch_all(&mut **tx).await.unwrap();
        steps.iter().map(|step| step.get(0)).collect()
    }
}
