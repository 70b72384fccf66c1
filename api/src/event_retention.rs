//! The task that removes events which are older, or more, than the operator wants to keep.

use std::time::Duration;

use jiff::SignedDuration;
use sandpiper_db::StoreError;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::state::App;
use crate::store::events::retention::AT_ONCE;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(60);
/// Between two transactions, for those of others.
const BREATH: Duration = Duration::from_millis(20);

/// Removes old events until `stop` changes.
pub async fn keep(app: App, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = look(&app) => {}
            _ = stop.changed() => return,
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = stop.changed() => return,
        }
    }
}

/// Removes all that is old now; how many events that were.
///
/// # Errors
///
/// Those of the database.
pub async fn round(app: &App) -> Result<usize, StoreError> {
    let settings = &app.settings.events;
    let kept = SignedDuration::from_hours(24 * i64::from(settings.keep_days));
    let Ok(end) = app.clock.now().checked_sub(kept) else { return Ok(0) };
    let mut all = 0;
    for team in app.store.events.teams_with_old(end, settings.keep_most).await? {
        loop {
            let removed = app.store.events.remove_old(&team, end, settings.keep_most).await?;
            all += removed;
            if removed < AT_ONCE {
                break;
            }
            sleep(BREATH).await;
        }
    }
    Ok(all)
}

async fn look(app: &App) {
    match round(app).await {
        Ok(0) => {}
        Ok(events) => tracing::info!(events, "old events removed"),
        Err(error) => tracing::error!(error = chain(&error), "old events not removed"),
    }
}
