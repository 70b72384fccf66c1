//! The audit's entry on a request that is under way.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use jiff::Timestamp;
use sandpiper_db::audit::Entry;

/// Put by the middleware into a request. Whoever takes the entry first writes it: a handler, or its task, in the transaction of what it
/// did, which saves a commit; or the middleware, once it knows how the request ended.
#[derive(Debug, Clone)]
pub struct PendingAudit(Arc<Mutex<Option<Entry>>>);

impl PendingAudit {
    /// The entry is without its time, its resource and its status.
    pub fn new(entry: Entry) -> Self {
        Self(Arc::new(Mutex::new(Some(entry))))
    }

    /// The entry on a request that ends so; `None` where somebody else has taken it.
    pub fn take(&self, at: Timestamp, resource: Option<String>, status: StatusCode) -> Option<Entry> {
        // It is taken in one step, whoever panicked.
        let entry = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Entry { at, resource, status: status.as_u16(), ..entry })
    }

    /// The same for whoever does what is asked for, and knows nothing of the response.
    pub fn of_success(&self, status: StatusCode) -> SuccessAudit {
        SuccessAudit { pending: self.clone(), status }
    }
}

/// The entry on a request that has this response if all goes well.
#[derive(Debug, Clone)]
pub struct SuccessAudit {
    pending: PendingAudit,
    status: StatusCode,
}

impl SuccessAudit {
    /// See [`PendingAudit::take`].
    pub fn take(&self, at: Timestamp, resource: String) -> Option<Entry> {
        self.pending.take(at, Some(resource), self.status)
    }
}
