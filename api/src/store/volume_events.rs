//! What events tell of a volume, as its row changes.
//!
//! One that is being made is told of when it is ready: until then it may come to nothing, of which the response tells.

use jiff::Timestamp;
use sandpiper_db::{StoreError, Tx, decode_enum};
use sandpiper_protocol::ids::{TeamId, VolumeId};
use serde_json::{Value, json};
use sqlx::Row;

use super::events::{EventType, NewEvent};
use super::volumes::State;

/// A row before a transaction changes it. Until that ends, no other changes it.
#[derive(Debug)]
pub(super) struct Locked {
    id: VolumeId,
    team: TeamId,
    pub(super) state: State,
    /// What every event of it says.
    subject: Value,
}

/// Locks the row of a volume to the end of the transaction; `None` where it is deleted, or there is none.
pub(super) async fn lock(tx: &mut Tx, id: &VolumeId) -> Result<Option<Locked>, StoreError> {
    // What changes nothing locks all the same, on both databases.
    let row = sqlx::query(
        "UPDATE volumes SET process = process WHERE id = $1 AND state <> 'deleted' \
         RETURNING team_id, state, name, size_gib",
    )
    .bind(id.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Locked {
        id: id.clone(),
        team: row.try_get::<String, _>("team_id")?.into(),
        state: decode_enum(row.try_get("state")?)?,
        subject: json!({
            "name": row.try_get::<String, _>("name")?,
            "size_gib": row.try_get::<i64, _>("size_gib")?,
        }),
    }))
}

impl Locked {
    /// The agent has it.
    pub(super) fn reported(&self, now: Timestamp) -> Option<NewEvent> {
        match self.state {
            State::Creating => Some(self.event(EventType::VolumeCreated, now)),
            State::Failed => Some(self.event(EventType::VolumeFound, now)),
            State::Ready | State::Deleting | State::Deleted => None,
        }
    }

    /// The agent does not have it any more.
    pub(super) fn lost(&self, now: Timestamp) -> NewEvent {
        self.event(EventType::VolumeLost, now)
    }

    /// It is gone; `None` where there never was one.
    pub(super) fn deleted(&self, now: Timestamp) -> Option<NewEvent> {
        (self.state != State::Creating).then(|| self.event(EventType::VolumeDeleted, now))
    }

    fn event(&self, event_type: EventType, created_at: Timestamp) -> NewEvent {
        let (team, resource) = (self.team.clone(), self.id.to_string());
        NewEvent { team, event_type, resource, data: self.subject.clone(), created_at }
    }
}
