//! What events tell of a build, as the row of its version changes. Of a version of the host's own they tell nothing: no team has
//! asked for it.

use jiff::Timestamp;
use sandpiper_db::{StoreError, Tx};
use sandpiper_protocol::ids::{TeamId, VersionId};
use sandpiper_protocol::template::BuildError;
use serde_json::{Value, json};
use sqlx::Row;

use super::versions::State;
use crate::store::events::{EventType, NewEvent};

/// A row before a transaction changes it. Until that ends, no other changes it.
#[derive(Debug)]
pub(super) struct Locked {
    id: VersionId,
    /// `None`: the host.
    team: Option<TeamId>,
    has_started: bool,
    /// What every event of it says.
    subject: Value,
}

/// Locks the row of a version to the end of the transaction; `None` where its build has ended, or there is none.
pub(super) async fn lock(tx: &mut Tx, id: &VersionId) -> Result<Option<Locked>, StoreError> {
    // What changes nothing locks all the same, on both databases.
    let row = sqlx::query(
        "UPDATE template_versions SET process = process WHERE id = $1 AND state IN ('queued', 'building', 'warming') \
         RETURNING template_id, number, source, started_at_ms",
    )
    .bind(id.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let template: String = row.try_get("template_id")?;
    let owner =
        sqlx::query("SELECT team_id, slug FROM templates WHERE id = $1").bind(&template).fetch_one(&mut **tx).await?;
    Ok(Some(Locked {
        id: id.clone(),
        team: owner.try_get::<Option<String>, _>("team_id")?.map(TeamId::from),
        has_started: row.try_get::<Option<i64>, _>("started_at_ms")?.is_some(),
        subject: json!({
            "template": owner.try_get::<String, _>("slug")?,
            "template_id": template,
            "number": row.try_get::<i64, _>("number")?,
            "source": row.try_get::<String, _>("source")?,
        }),
    }))
}

impl Locked {
    /// The agent says that it is in `state`, and whether it has started.
    pub(super) fn reported(
        &self,
        state: State,
        has_started: bool,
        error: Option<&BuildError>,
        now: Timestamp,
    ) -> Vec<NewEvent> {
        let started = (has_started && !self.has_started).then(|| self.event(EventType::BuildStarted, None, now));
        started.into_iter().chain([self.ended(state, error, now)]).flatten().collect()
    }

    /// It has come to `state`; `None` where it goes on.
    pub(super) fn ended(&self, state: State, error: Option<&BuildError>, now: Timestamp) -> Option<NewEvent> {
        match state {
            State::Ready => self.event(EventType::BuildReady, None, now),
            State::Failed => self.event(EventType::BuildFailed, error, now),
            State::Cancelled => self.event(EventType::BuildCancelled, None, now),
            State::Queued | State::Building | State::Warming | State::Deleted => None,
        }
    }

    fn event(&self, event_type: EventType, error: Option<&BuildError>, created_at: Timestamp) -> Option<NewEvent> {
        let mut data = self.subject.clone();
        if let Some(error) = error {
            data["error"] = json!({"code": error.code, "message": error.message, "step": error.step});
        }
        Some(NewEvent { team: self.team.clone()?, event_type, resource: self.id.to_string(), data, created_at })
    }
}
