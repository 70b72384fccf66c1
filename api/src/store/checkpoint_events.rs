//! What events tell of a checkpoint, as its row changes.
//!
//! One that is being taken is told of when it is ready: until then it may come to nothing, of which the response tells.

use jiff::Timestamp;
use sandpiper_db::{StoreError, Tx, decode_bool, decode_enum};
use sandpiper_protocol::agent::SandboxError;
use sandpiper_protocol::ids::TeamId;
use serde_json::{Value, json};
use sqlx::Row;

use super::checkpoints::State;
use super::events::{EventType, NewEvent};

/// A row before a transaction changes it. Until that ends, no other changes it.
#[derive(Debug)]
pub(super) struct Locked {
    id: String,
    team: TeamId,
    pub(super) state: State,
    /// Whether it could not be taken, as far as is known.
    was_not_taken: bool,
    /// Whether the response was sent before it was taken.
    accepted: bool,
    /// What every event of it says.
    subject: Value,
}

/// Locks the row of a checkpoint to the end of the transaction; `None` where it is deleted, or there is none.
pub(super) async fn lock(tx: &mut Tx, id: &str) -> Result<Option<Locked>, StoreError> {
    // What changes nothing locks all the same, on both databases. A name that it is to take over it has with the change.
    let row = sqlx::query(
        "UPDATE checkpoints SET process = process WHERE id = $1 AND state <> 'deleted' \
         RETURNING team_id, state, accepted, error_code, COALESCE(name_when_ready, name) AS name, sandbox_id, memory",
    )
    .bind(id)
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Locked {
        id: id.to_owned(),
        team: row.try_get::<String, _>("team_id")?.into(),
        state: decode_enum(row.try_get("state")?)?,
        was_not_taken: row.try_get::<Option<String>, _>("error_code")?.is_some(),
        accepted: decode_bool(row.try_get("accepted")?)?,
        subject: json!({
            "name": row.try_get::<String, _>("name")?,
            "sandbox": row.try_get::<String, _>("sandbox_id")?,
            "memory": decode_bool(row.try_get("memory")?)?,
        }),
    }))
}

impl Locked {
    /// The agent has it.
    pub(super) fn reported(&self, now: Timestamp) -> Option<NewEvent> {
        match self.state {
            State::Creating => Some(self.event(EventType::CheckpointCreated, None, now)),
            // It was taken in the end.
            State::Failed if self.was_not_taken => Some(self.event(EventType::CheckpointCreated, None, now)),
            State::Failed => Some(self.event(EventType::CheckpointFound, None, now)),
            State::Ready | State::Deleted => None,
        }
    }

    /// It could not be taken.
    pub(super) fn failed(&self, error: &SandboxError, now: Timestamp) -> NewEvent {
        self.event(EventType::CheckpointFailed, Some(error), now)
    }

    /// The agent does not have it any more.
    pub(super) fn lost(&self, now: Timestamp) -> NewEvent {
        self.event(EventType::CheckpointLost, None, now)
    }

    /// It is gone; `None` where nobody was told that there was one.
    pub(super) fn deleted(&self, now: Timestamp) -> Option<NewEvent> {
        let was_told = self.state != State::Creating || self.accepted;
        was_told.then(|| self.event(EventType::CheckpointDeleted, None, now))
    }

    fn event(&self, event_type: EventType, error: Option<&SandboxError>, created_at: Timestamp) -> NewEvent {
        let mut data = self.subject.clone();
        if let Some(error) = error {
            data["error"] = json!(error);
        }
        NewEvent { team: self.team.clone(), event_type, resource: self.id.clone(), data, created_at }
    }
}
