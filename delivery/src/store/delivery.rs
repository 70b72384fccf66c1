//! A delivery's id and state, and its attempts as they are logged.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{StoreError, count, decode_enum, from_ms};
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{DeliveryStore, Endpoint, query};
use crate::outcome::FailureClass;

/// A delivery's id, which is also its `Idempotency-Key`: `dlv_` and 26 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(String);

impl DeliveryId {
    const PREFIX: &str = "dlv_";
    const LENGTH: usize = 26;

    /// The id for what is told of a thing once: the same for the same `version` of the same thing, whoever asks and how often.
    /// Things of different scopes may have the same id.
    pub fn of_update(scope: impl fmt::Display, id: &str, version: i64) -> Self {
        let digest = Sha256::digest(format!("{scope}\n{id}\n{version}"));
        Self::encode_base32(&digest)
    }

    /// A new one.
    pub fn random() -> Self {
        Self::encode_base32(&rand::random::<[u8; 32]>())
    }

    fn encode_base32(bytes: &[u8]) -> Self {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let bit = |index: usize| bytes[index / 8] >> (7 - index % 8) & 1;
        let characters = (0..Self::LENGTH).map(|position| {
            let value = (0..5).fold(0, |value, offset| value << 1 | usize::from(bit(5 * position + offset)));
            char::from(ALPHABET[value])
        });
        Self(Self::PREFIX.chars().chain(characters).collect())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// One that a store has.
    pub fn stored(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a delivery stands.
///
/// ```text
///            claimed            acknowledged
/// pending ───────────► in_flight ───────────► delivered
///    ▲  │                │ │ │
///    │  │   try again    │ │ │  refused
///    └──┼────────────────┘ │ └──────────────► failed
///       │                  │  hundredth attempt, or seven days
///       │                  └────────────────► exhausted
///       └───────────────────────────────────► cancelled
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    Pending,
    InFlight,
    Delivered,
    Failed,
    Exhausted,
    Cancelled,
}

impl State {
    /// All of them.
    pub const ALL: [State; 6] =
        [State::Pending, State::InFlight, State::Delivered, State::Failed, State::Exhausted, State::Cancelled];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::InFlight => "in_flight",
            State::Delivered => "delivered",
            State::Failed => "failed",
            State::Exhausted => "exhausted",
            State::Cancelled => "cancelled",
        }
    }

    /// Whether nothing will happen any more.
    pub fn is_over(self) -> bool {
        !matches!(self, State::Pending | State::InFlight)
    }
}

impl FromStr for State {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        State::ALL.into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

/// An attempt as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// From 1.
    pub number: u32,
    pub due_at: Timestamp,
    pub started_at: Timestamp,
    /// `None` while it is under way.
    pub duration_ms: Option<u64>,
    /// `t` of the signature, in seconds since 1970.
    pub signed_at: Option<i64>,
    pub status: Option<u16>,
    pub error_class: Option<FailureClass>,
    /// The beginning of the response's body if it did not acknowledge, or why there was no response.
    pub detail: Option<String>,
    pub next_at: Option<Timestamp>,
}

impl<E: Endpoint> DeliveryStore<E> {
    /// The attempts of a delivery, in their order.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn attempts(&self, id: &str) -> Result<Vec<AttemptRow>, StoreError> {
        let rows = query::<E>("SELECT * FROM {attempts} WHERE delivery_id = $1 ORDER BY number")
            .bind(id.to_owned())
            .fetch_all(self.database.read())
            .await?;
        rows.iter().map(read_attempt).collect()
    }
}

fn read_attempt(row: &AnyRow) -> Result<AttemptRow, StoreError> {
    Ok(AttemptRow {
        number: count(row.try_get("number")?)?,
        due_at: from_ms(row.try_get("due_at_ms")?)?,
        started_at: from_ms(row.try_get("started_at_ms")?)?,
        duration_ms: row.try_get::<Option<i64>, _>("duration_ms")?.map(count).transpose()?,
        signed_at: row.try_get("signed_at")?,
        status: row.try_get::<Option<i64>, _>("status")?.map(count).transpose()?,
        error_class: row.try_get::<Option<String>, _>("error_class")?.map(|text| decode_enum(&text)).transpose()?,
        detail: row.try_get("detail")?,
        next_at: row.try_get::<Option<i64>, _>("next_at_ms")?.map(from_ms).transpose()?,
    })
}
