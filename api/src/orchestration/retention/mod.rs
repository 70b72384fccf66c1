//! What a plan keeps for some days: stopped sandboxes ([`sandboxes`]), and checkpoints, volumes and versions of templates that nobody
//! uses ([`stored`]). It is announced, and then deleted.
//!
//! What was announced holds: a plan that keeps a thing for longer moves the day, one that keeps it for less does so with a day's
//! notice at least, and so does one that begins to count. While a team is disabled, all that it has is kept. Whoever uses it again has it for as long as that goes on, and for its days anew
//! from then on.

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::StoreError;
use sandpiper_db::audit::Entry;
use sandpiper_protocol::ids::TeamId;

use crate::state::App;
use crate::store::sandbox_row::SandboxRow;

mod sandboxes;
mod stored;

/// From the announcement to the deletion, whatever a plan says meanwhile.
const NOTICE: SignedDuration = SignedDuration::from_hours(24);
/// Things of a kind that are deleted in one round: others wait for the next.
const AT_A_TIME: usize = 10;
/// What is in the audit in place of a key.
const ACTOR: &str = "retention";

/// One round; `rows`: all sandboxes that there are.
///
/// # Errors
///
/// Those of the database. What cannot be deleted now is tried again in the next round.
pub async fn round(app: &App, rows: &[SandboxRow]) -> Result<(), StoreError> {
    sandboxes::round(app, rows).await?;
    stored::round(app).await
}

/// When what nobody uses since that time, and a plan keeps for `days`, is to be deleted; `said`: what was announced of it.
fn expiry(unused_since: Option<Timestamp>, said: Option<Timestamp>, days: u32, now: Timestamp) -> Option<Timestamp> {
    let unused_since = unused_since.filter(|_| days > 0)?;
    let later = |time: Timestamp, by| time.saturating_add(by).unwrap_or(Timestamp::MAX);
    let wanted = later(unused_since, SignedDuration::from_hours(24 * i64::from(days)));
    match said {
        Some(said) if wanted >= said => Some(wanted),
        Some(said) => Some(said.min(wanted.max(later(now, NOTICE)))),
        None => Some(wanted.max(later(now, NOTICE))),
    }
}

/// Writes down that something was deleted.
async fn write_down(app: &App, team_id: &TeamId, action: &str, resource: &str) {
    let entry = Entry {
        at: app.clock.now(),
        team_id: team_id.to_string(),
        key_id: ACTOR.to_owned(),
        user_id: None,
        request_id: "-".to_owned(),
        action: action.to_owned(),
        resource: Some(resource.to_owned()),
        status: 204,
    };
    app.store.audit.keep(vec![entry]).await;
}
