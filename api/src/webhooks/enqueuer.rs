//! The task that makes deliveries of events.
//!
//! Events are written by many, in transactions of their own, which it does not touch: it looks several times a second at whether there
//! are some that a webhook was not looked at for.

use std::time::Duration;

use sandpiper_db::StoreError;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::orchestration::news::News;
use crate::state::App;
use crate::store::events::EventRow;
use crate::v1::events::body::EventBody;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// Between two looks while there is no news.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// After a look that the database did not take part in.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Webhooks of one look; the next finds the others.
const AT_ONCE: u32 = 64;

/// Makes deliveries of events until `stop` changes, and rests while there is no news.
pub async fn run(app: App, mut news: News, mut stop: watch::Receiver<bool>) {
    loop {
        let looked = tokio::select! {
            looked = round(&app) => looked,
            _ = stop.changed() => return,
        };
        let pause = match looked {
            Ok(_) => PAUSE,
            Err(error) => {
                tracing::error!(error = chain(&error), "no deliveries to teams' webhooks made of events");
                PAUSE_AFTER_ERROR
            }
        };
        tokio::select! {
            () = async {
                sleep(pause).await;
                news.wait(LONGEST_REST).await;
            } => {}
            _ = stop.changed() => return,
        }
    }
}

/// Makes the deliveries of all events that there are; how many that were.
///
/// # Errors
///
/// Those of the database; for one webhook, once the others of the same look had their turn. What was made is made.
pub async fn round(app: &App) -> Result<usize, StoreError> {
    let mut all = 0;
    loop {
        let behind = app.store.webhooks.behind(AT_ONCE).await?;
        if behind.is_empty() {
            return Ok(all);
        }
        let mut failed = None;
        for webhook in behind {
            match app.store.webhooks.enqueue(webhook, body, app.clock.now()).await {
                Ok(made) => all += made,
                Err(error) => failed = Some(error),
            }
        }
        app.webhooks.wake();
        if let Some(error) = failed {
            return Err(error);
        }
    }
}

/// The event as `GET /v1/events` shows it.
fn body(event: EventRow) -> Vec<u8> {
    // What has been read as JSON can be written as such.
    serde_json::to_vec(&EventBody::from(event)).unwrap_or_default()
}
