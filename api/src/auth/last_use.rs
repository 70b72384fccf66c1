//! When keys, login sessions and volumes were last used: noted in memory with each request, written down now and then.
//!
//! What a process has not written down when it is killed is lost: it is a hint for people, which keys nobody uses.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::StoreError;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::watch;

use crate::state::App;

/// Between two times that it is written down.
const PAUSE: Duration = Duration::from_secs(30);

/// Uses that are not written down yet.
#[derive(Debug, Default)]
pub struct LastUse(Mutex<HashMap<String, Timestamp>>);

impl LastUse {
    /// Notes that the key, login session or volume of this id was used.
    pub fn note(&self, id: &str, now: Timestamp) {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match uses.get_mut(id) {
            Some(at) => *at = now,
            None => drop(uses.insert(id.to_owned(), now)),
        }
    }

    fn take(&self) -> HashMap<String, Timestamp> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes down what was noted so far.
///
/// # Errors
///
/// The database does not take it; it is lost.
pub async fn write_down(app: &App) -> Result<(), StoreError> {
    // In one order, so that two processes do not wait for each other.
    let mut uses: Vec<_> = app.last_use.take().into_iter().collect();
    uses.sort();
    if uses.is_empty() { Ok(()) } else { app.store.keys.note_use(&uses).await }
}

/// Writes it down again and again, and once more when `stop` changes.
pub async fn keep(app: App, mut stop: watch::Receiver<bool>) {
    loop {
        let is_over = tokio::select! {
            () = tokio::time::sleep(PAUSE) => false,
            _ = stop.changed() => true,
        };
        if let Err(error) = write_down(&app).await {
            tracing::warn!(error = chain(&error), "cannot write down when keys were last used");
        }
        if is_over {
            return;
        }
    }
}
