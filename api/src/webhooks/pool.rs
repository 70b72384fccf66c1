//! Connections that wait for the next request to the same endpoint.
//!
//! A connection belongs to one endpoint, that is to one merchant and realm, even where two have the same URL. It is kept
//! while it is young and was used lately: a name that points elsewhere is noticed within [`MAX_AGE`].

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;
use super::endpoint_url::Authority;
use crate::store::webhook_endpoints::EndpointKey;

/// Less than servers usually wait for the next request.
const MAX_IDLE: Duration = Duration::from_secs(20);
/// From its opening.
const MAX_AGE: Duration = Duration::from_secs(60);

/// To whom a connection is.
pub(super) type PoolKey = (EndpointKey, Authority);

/// The connections.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<HashMap<PoolKey, Vec<Idle>>>);

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

impl Pool {
    /// A connection that may be used once more; the one that was used last, so that others can grow old.
    pub(super) fn take(&self, key: &PoolKey) -> Option<Connection> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = waiting.get_mut(key)?;
        std::iter::from_fn(|| idle.pop()).find(Idle::is_usable).map(|idle| idle.connection)
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(super) fn put(&self, key: PoolKey, connection: Connection) {
        let idle = Idle { connection, since: Instant::now() };
        if idle.is_usable() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().push(idle);
        }
    }

    /// Closes what has waited too long.
    pub(super) fn prune(&self) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, idle| {
            idle.retain(Idle::is_usable);
            !idle.is_empty()
        });
    }
}

impl Idle {
    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
            && self.since.elapsed() < MAX_IDLE
            && self.connection.opened_at().elapsed() < MAX_AGE
    }
}
