//! Events of teams: written in the transaction of their cause, read in the order in which they were committed.
//!
//! # No reader misses one
//!
//! A reader remembers the number of the last event that it has read, so an event must never be committed after one with a
//! greater number. Numbers of a sequence of the database do not promise that: the transaction that draws 7 may commit before the
//! one that has drawn 6. So a team's numbers come from its row in `event_counters`, which [`write`] changes: who writes next
//! waits for that transaction to end, and finds the number taken back if it was rolled back. Numbers have no gaps.
//!
//! Two rules keep this from being a deadlock, since this row is held to the end:
//!
//! - [`write`] comes last in its transaction: whoever holds a counter waits for no other row;
//! - a shared transaction ([`sandpiper_db::database`]) writes events of one team. A serialised one may write those of several.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, Tx, count, decode_enum, from_ms, to_ms};
use sandpiper_protocol::ids::TeamId;
use serde_json::Value;
use sqlx::Row;
use sqlx::any::AnyRow;

mod event_type;
pub mod retention;

pub use event_type::{EventType, ResourceKind};

/// What is to be told.
#[derive(Debug, Clone)]
pub(super) struct NewEvent {
    pub(super) team: TeamId,
    pub(super) event_type: EventType,
    /// Its id.
    pub(super) resource: String,
    /// An object: no secret, and nothing that grows without a bound.
    pub(super) data: Value,
    pub(super) created_at: Timestamp,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// From 1 on in each team.
    pub sequence: u64,
    pub event_type: EventType,
    /// The id of what it happened to.
    pub resource: String,
    pub data: Value,
    pub created_at: Timestamp,
}

/// Which events are looked for; an empty filter selects all.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Any of these; empty: any.
    pub types: Vec<EventType>,
    /// Of the resource with this id.
    pub resource: Option<String>,
}

/// One page.
#[derive(Debug)]
pub struct EventPage {
    /// Oldest first.
    pub events: Vec<EventRow>,
    /// Up to this number nothing is selected any more that is not in the page: where the next page begins.
    pub read_to: u64,
    /// The number of the team's last event; 0 before its first.
    pub last: u64,
    /// Events up to this number are gone.
    pub removed: u64,
}

/// The events.
#[derive(Debug, Clone)]
pub struct Events {
    database: Database,
}

impl Events {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// The first `limit` events of the team that `filter` selects among those with a number above `after`.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn page(
        &self,
        team: &TeamId,
        after: u64,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<EventPage, StoreError> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        // One statement, which sees one moment: nothing comes or goes between the counter and the events.
        let mut query = Statement::new(
            "SELECT c.last_sequence, c.removed_sequence, e.sequence, e.type, e.resource, e.data, e.created_at_ms \
             FROM event_counters c LEFT JOIN (SELECT * FROM events WHERE team_id = ",
        );
        query.push_bind(team.as_str()).push(" AND sequence > ").push_bind(after);
        if !filter.types.is_empty() {
            query.push(" AND type IN ").push_list(filter.types.iter().map(|one| one.as_str()));
        }
        if let Some(resource) = &filter.resource {
            query.push(" AND resource = ").push_bind(resource);
        }
        query.push(" ORDER BY sequence LIMIT ").push_bind(i64::from(limit));
        query.push(") e ON e.team_id = c.team_id WHERE c.team_id = ").push_bind(team.as_str());
        query.push(" ORDER BY e.sequence");
        let rows = query.build().fetch_all(self.database.read()).await?;
        let Some(first) = rows.first() else {
            return Ok(EventPage { events: Vec::new(), read_to: 0, last: 0, removed: 0 });
        };
        let (last, removed) = (count(first.try_get("last_sequence")?)?, count(first.try_get("removed_sequence")?)?);
        let events: Vec<EventRow> = rows.iter().filter_map(|row| event(row).transpose()).collect::<Result<_, _>>()?;
        let is_full = events.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let read_to = events.last().filter(|_| is_full).map_or(last, |event| event.sequence);
        Ok(EventPage { events, read_to, last, removed })
    }

    /// How many events of each type the team ever had, 0 included, also of those that are gone. The database counts them as they
    /// are written.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn totals(&self, team: &TeamId) -> Result<Vec<(EventType, u64)>, StoreError> {
        let rows = sqlx::query("SELECT type, number FROM event_totals WHERE team_id = $1")
            .bind(team.as_str())
            .fetch_all(self.database.read())
            .await?;
        let known = rows.iter().map(|row| Ok((row.try_get("type")?, count(row.try_get("number")?)?)));
        let known: BTreeMap<String, u64> = known.collect::<Result<_, StoreError>>()?;
        let total = |kind: EventType| known.get(kind.as_str()).copied().unwrap_or_default();
        Ok(EventType::ALL.into_iter().map(|kind| (kind, total(kind))).collect())
    }
}

/// Writes events, those of a team in this order, in the transaction of their cause: as the last thing that it does.
pub(super) async fn write(tx: &mut Tx, mut events: Vec<NewEvent>) -> Result<(), StoreError> {
    // Counters are taken in one order.
    events.sort_by(|one, other| one.team.cmp(&other.team));
    for of_team in events.chunk_by(|one, other| one.team == other.team) {
        let Some(NewEvent { team, .. }) = of_team.first() else { continue };
        let number = i64::try_from(of_team.len()).unwrap_or(i64::MAX);
        let last: i64 = sqlx::query_scalar(
            "INSERT INTO event_counters (team_id, last_sequence) VALUES ($1, $2) \
             ON CONFLICT (team_id) DO UPDATE SET last_sequence = event_counters.last_sequence + excluded.last_sequence \
             RETURNING last_sequence",
        )
        .bind(team.as_str())
        .bind(number)
        .fetch_one(&mut **tx)
        .await?;
        let mut statement = Statement::new(
            "INSERT INTO events (team_id, sequence, type, resource, data, created_at_ms) SELECT * FROM (",
        );
        statement.push_rows(of_team.iter().zip(last - number + 1..).map(|(event, sequence)| {
            [
                team.as_str().into(),
                sequence.into(),
                event.event_type.as_str().into(),
                event.resource.as_str().into(),
                event.data.to_string().into(),
                to_ms(event.created_at).into(),
            ]
        }));
        statement.push(") AS written WHERE column1 IS NOT NULL");
        statement.build().execute(&mut **tx).await?;
    }
    Ok(())
}

/// The event of a row; `None` where the counter stands alone.
fn event(row: &AnyRow) -> Result<Option<EventRow>, StoreError> {
    if row.try_get::<Option<i64>, _>("sequence")?.is_none() {
        return Ok(None);
    }
    read(row).map(Some)
}

/// The event of a row of its own.
pub(super) fn read(row: &AnyRow) -> Result<EventRow, StoreError> {
    let sequence: i64 = row.try_get("sequence")?;
    let data: String = row.try_get("data")?;
    Ok(EventRow {
        sequence: count(sequence)?,
        event_type: decode_enum(row.try_get("type")?)?,
        resource: row.try_get("resource")?,
        data: serde_json::from_str(&data)
            .map_err(|_| StoreError::Corrupt { what: format!("data of event {sequence}") })?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}

#[cfg(test)]
mod tests;
