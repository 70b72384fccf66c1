//! What events tell of a sandbox, as its row changes.
//!
//! Of the machine's starts and stops the agent is the witness, and this process asks it once a second, may be away for long, and
//! may get an older report after a newer one. So starts and stops are told apart by the agent's times of them, not by states:
//! the row keeps the last that were told (`told_start_ms`, `told_stop_ms`), and what a report shows beyond them is new.
//!
//! | a report | tells of |
//! |---|---|
//! | a start later than the last that was told | `ready` if it is the first, else `resumed`, and before it of a stop that nobody saw |
//! | a stop later than the last that was told | `paused`; with an error `crashed` |
//! | `failed` | `failed`, and no more |

use jiff::Timestamp;
use sandpiper_db::audit::Entry;
use sandpiper_db::{StoreError, Tx, decode_enum, to_ms};
use sandpiper_protocol::agent::SandboxError;
use sandpiper_protocol::ids::TeamId;
use serde_json::{Value, json};
use sqlx::Row;

use super::events::{EventType, NewEvent};
use super::sandbox_network::Versions;
use super::sandbox_row::{NewSandbox, State};

/// What is in the audit in place of a key.
const HOST: &str = "host";

/// Why a sandbox is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionReason {
    /// A request.
    Requested,
    /// Its deadline.
    TimedOut,
    /// It was stopped, or had failed, for as long as such ones are kept.
    Expired,
    /// It was never started, which the response to the request has said.
    NotStarted,
    /// The host does not have it any more.
    Gone,
}

impl DeletionReason {
    /// Its name in JSON.
    fn as_str(self) -> &'static str {
        match self {
            DeletionReason::Requested => "requested",
            DeletionReason::TimedOut => "timed_out",
            DeletionReason::Expired => "expired",
            DeletionReason::NotStarted => "not_started",
            DeletionReason::Gone => "gone",
        }
    }
}

/// What a report says of the machine's starts and stops. Times are the agent's, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reported<'r> {
    pub(super) state: State,
    pub(super) start_ms: Option<i64>,
    pub(super) stop_ms: Option<i64>,
    pub(super) error: Option<&'r SandboxError>,
}

/// The starts and stops that were told, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Told {
    pub(super) start_ms: Option<i64>,
    pub(super) stop_ms: Option<i64>,
}

/// A row before a transaction changes it. Until that ends, no other changes it.
#[derive(Debug)]
pub(super) struct Locked {
    id: String,
    team: TeamId,
    pub(super) state: State,
    pub(super) told: Told,
    /// Of its policy.
    pub(super) versions: Versions,
    /// What every event of it says.
    subject: Value,
}

/// Locks the row of a sandbox to the end of the transaction; `None` where it is destroyed, or there is none.
pub(super) async fn lock(tx: &mut Tx, id: &str) -> Result<Option<Locked>, StoreError> {
    // What changes nothing locks all the same, on both databases.
    let row = sqlx::query(
        "UPDATE sandboxes SET process = process WHERE id = $1 AND state <> 'destroyed' \
         RETURNING team_id, state, told_start_ms, told_stop_ms, network_version, network_applied, template, template_version, \
             snapshot_id, cpu, memory_mb",
    )
    .bind(id)
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Locked {
        id: id.to_owned(),
        team: row.try_get::<String, _>("team_id")?.into(),
        state: decode_enum(row.try_get("state")?)?,
        told: Told { start_ms: row.try_get("told_start_ms")?, stop_ms: row.try_get("told_stop_ms")? },
        versions: Versions { newest: row.try_get("network_version")?, applied: row.try_get("network_applied")? },
        subject: json!({
            "template": row.try_get::<String, _>("template")?,
            "template_version": row.try_get::<String, _>("template_version")?,
            "snapshot_id": row.try_get::<Option<String>, _>("snapshot_id")?,
            "cpu": row.try_get::<i64, _>("cpu")?,
            "memory_mb": row.try_get::<i64, _>("memory_mb")?,
        }),
    }))
}

/// A sandbox was asked for.
pub(super) fn created(team: &TeamId, new: &NewSandbox) -> NewEvent {
    NewEvent {
        team: team.clone(),
        event_type: EventType::SandboxCreated,
        resource: new.id.clone(),
        data: json!({
            "template": new.template, "template_version": new.template_version, "snapshot_id": new.snapshot_id,
            "cpu": new.cpu, "memory_mb": new.memory_mb,
        }),
        created_at: new.created_at,
    }
}

impl Locked {
    /// What a report that the row takes over is the first to tell of; and what was told from then on.
    pub(super) fn reported(&self, report: &Reported<'_>, now: Timestamp) -> (Vec<NewEvent>, Told) {
        let (types, told) = news(self.told, report);
        let event = |event_type| {
            let says_why = matches!(event_type, EventType::SandboxCrashed | EventType::SandboxFailed);
            self.event(event_type, says_why.then(|| json!({"error": report.error})), now)
        };
        (types.into_iter().map(event).collect(), told)
    }

    /// It never became ready.
    pub(super) fn failed(&self, error: &SandboxError, now: Timestamp) -> NewEvent {
        self.event(EventType::SandboxFailed, Some(json!({"error": error})), now)
    }

    /// It is gone.
    pub(super) fn deleted(&self, reason: DeletionReason, now: Timestamp) -> NewEvent {
        self.event(EventType::SandboxDeleted, Some(json!({"reason": reason.as_str()})), now)
    }

    fn event(&self, event_type: EventType, more: Option<Value>, created_at: Timestamp) -> NewEvent {
        let mut data = self.subject.clone();
        if let (Some(data), Some(Value::Object(more))) = (data.as_object_mut(), more) {
            data.extend(more);
        }
        NewEvent { team: self.team.clone(), event_type, resource: self.id.clone(), data, created_at }
    }
}

/// Entries of the audit on what the host did without a request: at a deadline, to wake a sandbox, or because its machine ended.
pub(super) fn of_the_host(events: &[NewEvent]) -> Vec<Entry> {
    use EventType::{SandboxCrashed, SandboxDeleted, SandboxPaused, SandboxResumed};
    let told = [SandboxPaused, SandboxResumed, SandboxCrashed, SandboxDeleted];
    let entry = |event: &NewEvent| Entry {
        at: event.created_at,
        team_id: event.team.to_string(),
        key_id: HOST.to_owned(),
        user_id: None,
        request_id: "-".to_owned(),
        action: event.event_type.as_str().to_owned(),
        resource: Some(event.resource.clone()),
        status: 200,
    };
    events.iter().filter(|event| told.contains(&event.event_type)).map(entry).collect()
}

/// Which events a report is; and what was told from then on.
fn news(mut told: Told, report: &Reported<'_>) -> (Vec<EventType>, Told) {
    if report.state == State::Failed {
        return (vec![EventType::SandboxFailed], told);
    }
    let mut types = Vec::new();
    if report.start_ms > told.start_ms {
        match told.start_ms {
            None => types.push(EventType::SandboxReady),
            // It has stopped and started again since it was looked at.
            Some(_) if told.stop_ms < told.start_ms => {
                types.extend([EventType::SandboxPaused, EventType::SandboxResumed]);
                told.stop_ms = report.start_ms;
            }
            Some(_) => types.push(EventType::SandboxResumed),
        }
        told.start_ms = report.start_ms;
    }
    // A report of a stop names it until the next start.
    if report.stop_ms > told.stop_ms {
        let crashed = report.error.is_some();
        types.push(if crashed { EventType::SandboxCrashed } else { EventType::SandboxPaused });
        told.stop_ms = report.stop_ms;
    }
    (types, told)
}

/// A stored time of the agent's.
pub(super) fn ms(time: Option<Timestamp>) -> Option<i64> {
    time.map(to_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of what reports tell of, one after the other.
    fn told_by(reports: &[(State, Option<i64>, Option<i64>, bool)]) -> Vec<&'static str> {
        let error = SandboxError { code: "c".to_owned(), message: "m".to_owned() };
        let (mut told, mut names) = (Told::default(), Vec::new());
        for (state, start_ms, stop_ms, is_error) in reports.iter().copied() {
            let report = Reported { state, start_ms, stop_ms, error: is_error.then_some(&error) };
            let (types, then) = news(told, &report);
            told = then;
            names.extend(types.into_iter().map(EventType::as_str));
        }
        names
    }

    const CREATING: (State, Option<i64>, Option<i64>, bool) = (State::Creating, None, None, false);
    const READY: (State, Option<i64>, Option<i64>, bool) = (State::Ready, Some(10), None, false);
    const STOPPED: (State, Option<i64>, Option<i64>, bool) = (State::Stopped, Some(10), Some(20), false);
    const RESUMED: (State, Option<i64>, Option<i64>, bool) = (State::Ready, Some(30), None, false);

    #[test]
    fn every_start_and_every_stop_is_told_once() {
        assert_eq!(
            told_by(&[CREATING, READY, READY, STOPPED, STOPPED, RESUMED, RESUMED]),
            ["sandbox.ready", "sandbox.paused", "sandbox.resumed"]
        );
    }

    #[test]
    fn an_older_report_that_comes_late_tells_nothing() {
        assert_eq!(
            told_by(&[READY, STOPPED, READY, STOPPED, RESUMED, STOPPED, READY, RESUMED]),
            ["sandbox.ready", "sandbox.paused", "sandbox.resumed"]
        );
    }

    #[test]
    fn what_happened_between_two_looks_is_told_in_its_order() {
        assert_eq!(told_by(&[CREATING, STOPPED]), ["sandbox.ready", "sandbox.paused"]);
        assert_eq!(told_by(&[READY, RESUMED]), ["sandbox.ready", "sandbox.paused", "sandbox.resumed"]);
        let stopped_again = (State::Stopped, Some(30), Some(40), false);
        assert_eq!(
            told_by(&[READY, STOPPED, stopped_again]),
            ["sandbox.ready", "sandbox.paused", "sandbox.resumed", "sandbox.paused"]
        );
        assert_eq!(
            told_by(&[READY, RESUMED, stopped_again]),
            ["sandbox.ready", "sandbox.paused", "sandbox.resumed", "sandbox.paused"]
        );
    }

    #[test]
    fn a_resume_that_came_to_nothing_tells_nothing() {
        let restoring = (State::Restoring, Some(10), Some(20), false);
        assert_eq!(told_by(&[READY, STOPPED, restoring, STOPPED]), ["sandbox.ready", "sandbox.paused"]);
    }

    #[test]
    fn an_end_that_nobody_asked_for_has_a_name_of_its_own() {
        let crashed = (State::Stopped, Some(10), Some(20), true);
        assert_eq!(told_by(&[READY, crashed, RESUMED]), ["sandbox.ready", "sandbox.crashed", "sandbox.resumed"]);
        let failed = (State::Failed, None, Some(5), true);
        assert_eq!(told_by(&[CREATING, failed]), ["sandbox.failed"]);
    }
}
