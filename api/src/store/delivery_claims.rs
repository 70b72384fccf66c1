//! Attempts: a delivery is *claimed*, attempted, and the attempt *finished*. Two short transactions with the HTTP request
//! between them, which holds nothing of the database.
//!
//! A claim is a chance number and a lease. The number makes sure that only who made the claim ends it. The lease makes sure
//! that somebody does: when a process dies with claims, they are [reclaimed](DeliveryClaims::reclaim) after the lease, and the
//! attempts made again, under the same `Idempotency-Key`. Nobody knows whether the receiver got the first of the two, so it
//! counts, and there is never a 101st attempt.
//!
//! The next endpoint is the one that has waited longest, not the one with the most to send: see
//! [`super::webhook_endpoints`]. Of one endpoint's deliveries those come first that are due first.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use sqlx::Row;

use super::batch::Batch;
use super::deliveries::{DeliveryId, State, Trigger};
use super::webhook_endpoints::{Change, EndpointKey, cancel_pending, read_key, refresh, standing};
use super::{Database, StoreError, Tx, count, from_ms, to_ms, word};
use crate::webhooks::capacity::cap_after;
use crate::webhooks::outcome::FailureClass;
use crate::webhooks::schedule::{self, MAX_ATTEMPTS};

/// Longer than an attempt and the writing of its result take.
pub const LEASE: SignedDuration = SignedDuration::from_secs(45);
/// Endpoints that one claim looks at; the next looks at the others.
const ENDPOINTS_AT_ONCE: usize = 32;

/// A delivery of which an attempt is to be made now.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub id: DeliveryId,
    pub endpoint: EndpointKey,
    pub trigger: Trigger,
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
#[derive(Debug, Default)]
pub struct Claims {
    pub deliveries: Vec<Claimed>,
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
pub struct Finished {
    pub claimed: Claimed,
    pub ended_at: Timestamp,
    pub duration: Duration,
    /// `t` of the signature.
    pub signed_at: Option<i64>,
    pub result: Result<u16, FailureClass>,
    /// For people.
    pub detail: String,
    pub decision: Decision,
}

/// Claims and their ends.
#[derive(Debug, Clone)]
pub struct DeliveryClaims {
    database: Database,
    batch: Batch,
}

impl DeliveryClaims {
    pub(crate) fn new(database: Database, batch: Batch) -> Self {
        Self { database, batch }
    }

    /// Claims up to `limit` deliveries that are due, fairly among the endpoints, and writes down that their attempts begin.
    pub async fn claim(&self, limit: usize, now: Timestamp) -> Result<Claims, StoreError> {
        self.batch.write(move |tx| Box::pin(claim(tx, limit, now))).await
    }

    /// Writes down how attempts ended, all at once. What was cancelled or claimed anew meanwhile stays as it is.
    pub async fn finish(&self, finished: Vec<Finished>) -> Result<(), StoreError> {
        self.batch.write(move |tx| Box::pin(finish(tx, finished))).await
    }

    /// Takes back what was claimed by processes that are gone; how many deliveries that were.
    pub async fn reclaim(&self, now: Timestamp) -> Result<usize, StoreError> {
        let row =
            sqlx::query("SELECT 1 FROM webhook_deliveries WHERE state = 'in_flight' AND lease_until_ms <= $1 LIMIT 1")
                .bind(to_ms(now))
                .fetch_optional(self.database.read())
                .await?;
        if row.is_none() {
            return Ok(0);
        }
        self.batch.write(move |tx| Box::pin(reclaim(tx, now))).await
    }
}

/// An endpoint at which attempts may begin.
struct Ready {
    endpoint: EndpointKey,
    url: String,
    room: usize,
}

async fn claim(tx: &mut Tx, limit: usize, now: Timestamp) -> Result<Claims, StoreError> {
    let ready = ready(tx, limit.min(ENDPOINTS_AT_ONCE), now).await?;
    let mut claims = Claims::default();
    let mut left = limit;
    for (index, one) in ready.iter().enumerate() {
        // As much as the others leave it: where there is little room, one for each comes before two for any.
        let share = left.div_ceil(ready.len() - index).min(one.room);
        let claimed = claim_at(tx, one, share, now).await?;
        let (live, expired): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(|claimed| !schedule::is_over(claimed.created_at, now));
        expire(tx, &expired, now).await?;
        refresh(tx, &one.endpoint, Change { served_at: Some(now), cap: None }).await?;
        left -= live.len();
        claims.expired += expired.len();
        claims.deliveries.extend(live);
    }
    Ok(claims)
}

async fn ready(tx: &mut Tx, limit: usize, now: Timestamp) -> Result<Vec<Ready>, StoreError> {
    let rows = sqlx::query(
        "SELECT merchant_id, realm, url, cap - in_flight AS room FROM webhook_endpoints \
         WHERE next_at_ms <= $1 AND in_flight < cap AND url IS NOT NULL ORDER BY next_at_ms LIMIT $2",
    )
    .bind(to_ms(now))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut **tx)
    .await?;
    rows.iter()
        .map(|row| Ok(Ready { endpoint: read_key(row)?, url: row.try_get("url")?, room: count(row.try_get("room")?)? }))
        .collect()
}

async fn claim_at(tx: &mut Tx, at: &Ready, limit: usize, now: Timestamp) -> Result<Vec<Claimed>, StoreError> {
    let claim = crate::hex::encode(&rand::random::<[u8; 16]>());
    let rows = sqlx::query(
        "UPDATE webhook_deliveries SET state = 'in_flight', claim = $1, lease_until_ms = $2, attempts = attempts + 1 \
         WHERE state = 'pending' AND id IN ( \
             SELECT id FROM webhook_deliveries \
             WHERE merchant_id = $3 AND realm = $4 AND state = 'pending' AND next_at_ms <= $5 \
             ORDER BY next_at_ms LIMIT $6) \
         RETURNING id, trigger, body, attempts, created_at_ms, next_at_ms",
    )
    .bind(&claim)
    .bind(to_ms(now).saturating_add(i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX)))
    .bind(&at.endpoint.merchant_id)
    .bind(at.endpoint.realm.as_str())
    .bind(to_ms(now))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut **tx)
    .await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query(
        "INSERT INTO webhook_attempts (delivery_id, number, due_at_ms, started_at_ms) \
         SELECT id, attempts, next_at_ms, $4 FROM webhook_deliveries \
         WHERE merchant_id = $1 AND realm = $2 AND state = 'in_flight' AND claim = $3",
    )
    .bind(&at.endpoint.merchant_id)
    .bind(at.endpoint.realm.as_str())
    .bind(&claim)
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    let mut claimed = rows
        .iter()
        .map(|row| {
            Ok(Claimed {
                id: DeliveryId::stored(row.try_get("id")?),
                endpoint: at.endpoint.clone(),
                trigger: word(row.try_get("trigger")?)?,
                url: at.url.clone(),
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
    Ok(claimed)
}

/// Ends deliveries whose seven days are over, without the attempt for which they were claimed.
async fn expire(tx: &mut Tx, expired: &[Claimed], now: Timestamp) -> Result<(), StoreError> {
    for claimed in expired {
        forget_attempt(tx, claimed).await?;
        sqlx::query(
            "UPDATE webhook_deliveries SET state = 'exhausted', attempts = attempts - 1, next_at_ms = NULL, \
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
async fn forget_attempt(tx: &mut Tx, claimed: &Claimed) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM webhook_attempts WHERE delivery_id = $1 AND number = $2 AND duration_ms IS NULL")
        .bind(claimed.id.as_str())
        .bind(i64::from(claimed.attempt))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn finish(tx: &mut Tx, finished: Vec<Finished>) -> Result<(), StoreError> {
    // In the order of their keys, as everywhere where several endpoints are touched.
    let mut by_endpoint: BTreeMap<EndpointKey, Vec<Finished>> = BTreeMap::new();
    for one in finished {
        by_endpoint.entry(one.claimed.endpoint.clone()).or_default().push(one);
    }
    for (endpoint, finished) in by_endpoint {
        let standing = standing(tx, &endpoint).await?;
        let cap = finished.iter().fold(standing.cap, |cap, one| match one.decision {
            Decision::Hold(_) => cap,
            _ => cap_after(cap, one.duration),
        });
        for one in &finished {
            match one.decision {
                Decision::Hold(until) => hold(tx, one, until).await?,
                Decision::End(state) => end(tx, one, state).await?,
                Decision::Retry(at) if standing.has_url => retry(tx, one, at).await?,
                // The URL was taken away meanwhile, and with it all that was pending.
                Decision::Retry(_) => end(tx, one, State::Cancelled).await?,
            }
        }
        if !standing.has_url
            && let Some(last) = finished.last()
        {
            cancel_pending(tx, &endpoint, last.ended_at).await?;
        }
        refresh(tx, &endpoint, Change { cap: Some(cap), served_at: None }).await?;
    }
    Ok(())
}

async fn end(tx: &mut Tx, one: &Finished, state: State) -> Result<(), StoreError> {
    log(tx, one, None).await?;
    sqlx::query(
        "UPDATE webhook_deliveries SET state = $3, next_at_ms = NULL, ended_at_ms = $4, claim = NULL, \
             lease_until_ms = NULL, status = $5, error_class = $6 \
         WHERE id = $1 AND claim = $2",
    )
    .bind(one.claimed.id.as_str())
    .bind(&one.claimed.claim)
    .bind(state.as_str())
    .bind(to_ms(one.ended_at))
    .bind(one.result.ok().map(i64::from))
    .bind(one.result.err().map(FailureClass::as_str))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn retry(tx: &mut Tx, one: &Finished, at: Timestamp) -> Result<(), StoreError> {
    log(tx, one, Some(at)).await?;
    sqlx::query(
        "UPDATE webhook_deliveries SET state = 'pending', next_at_ms = $3, claim = NULL, lease_until_ms = NULL, \
             status = $4, error_class = $5 \
         WHERE id = $1 AND claim = $2",
    )
    .bind(one.claimed.id.as_str())
    .bind(&one.claimed.claim)
    .bind(to_ms(at))
    .bind(one.result.ok().map(i64::from))
    .bind(one.result.err().map(FailureClass::as_str))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The status of an earlier attempt, if there was one, is no longer what matters.
async fn hold(tx: &mut Tx, one: &Finished, until: Timestamp) -> Result<(), StoreError> {
    forget_attempt(tx, &one.claimed).await?;
    sqlx::query(
        "UPDATE webhook_deliveries SET state = 'pending', attempts = attempts - 1, next_at_ms = $3, claim = NULL, \
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

/// Completes the attempt's row, which is right whatever has become of the delivery.
async fn log(tx: &mut Tx, one: &Finished, next_at: Option<Timestamp>) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE webhook_attempts SET duration_ms = $3, signed_at = $4, status = $5, error_class = $6, detail = $7, \
             next_at_ms = $8 \
         WHERE delivery_id = $1 AND number = $2 AND (duration_ms IS NULL OR error_class = $9)",
    )
    .bind(one.claimed.id.as_str())
    .bind(i64::from(one.claimed.attempt))
    .bind(i64::try_from(one.duration.as_millis()).unwrap_or(i64::MAX))
    .bind(one.signed_at)
    .bind(one.result.ok().map(i64::from))
    .bind(one.result.err().map(FailureClass::as_str))
    .bind(&one.detail)
    .bind(next_at.map(to_ms))
    // It was slow, was given up for dead, and comes after all.
    .bind(FailureClass::Interrupted.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn reclaim(tx: &mut Tx, now: Timestamp) -> Result<usize, StoreError> {
    // Due times stay what they were, so that these are the first in their line.
    let rows = sqlx::query(
        "UPDATE webhook_deliveries SET claim = NULL, lease_until_ms = NULL, status = NULL, error_class = $2, \
             state = CASE WHEN attempts < $3 THEN 'pending' ELSE 'exhausted' END, \
             next_at_ms = CASE WHEN attempts < $3 THEN next_at_ms END, \
             ended_at_ms = CASE WHEN attempts < $3 THEN NULL ELSE $1 END \
         WHERE state = 'in_flight' AND lease_until_ms <= $1 \
         RETURNING id, merchant_id, realm, attempts",
    )
    .bind(to_ms(now))
    .bind(FailureClass::Interrupted.as_str())
    .bind(i64::from(MAX_ATTEMPTS))
    .fetch_all(&mut **tx)
    .await?;
    let mut endpoints = Vec::with_capacity(rows.len());
    for row in &rows {
        sqlx::query(
            "UPDATE webhook_attempts SET error_class = $4, \
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
        endpoints.push(read_key(row)?);
    }
    endpoints.sort();
    endpoints.dedup();
    for endpoint in &endpoints {
        if !standing(tx, endpoint).await?.has_url {
            cancel_pending(tx, endpoint, now).await?;
        }
        refresh(tx, endpoint, Change::default()).await?;
    }
    Ok(rows.len())
}
