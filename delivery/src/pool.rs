//! Connections that wait for the next request to the same endpoint.
//!
//! A connection belongs to one endpoint, even where two have the same URL. It is kept
//! while it is young and was used lately: a name that points elsewhere is noticed within [`MAX_AGE`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Connection;
use crate::endpoint_url::Authority;
use crate::store::Endpoint;

/// Less than servers usually wait for the next request.
const MAX_IDLE: Duration = Duration::from_secs(20);
/// From its opening.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Connections of an endpoint that are kept open for the rest of a response. More only a receiver causes whose bodies do not
/// end.
const MOST_READING: usize = 128;

/// To whom a connection is.
pub(super) type PoolKey<E> = (E, Authority);

/// The connections.
#[derive(Debug)]
pub(super) struct Pool<E: Endpoint>(Mutex<HashMap<PoolKey<E>, Connections>>);

#[derive(Debug, Default)]
struct Connections {
    idle: Vec<Idle>,
    /// So many are not idle yet: the response to their last request is being read.
    reading: usize,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// A connection of which a response is being read, until this is dropped.
#[derive(Debug)]
pub(super) struct Reading<E: Endpoint> {
    pool: Arc<Pool<E>>,
    key: PoolKey<E>,
}

impl<E: Endpoint> Default for Pool<E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<E: Endpoint> Drop for Reading<E> {
    fn drop(&mut self) {
        if let Some(connections) = self.pool.lock().get_mut(&self.key) {
            connections.reading -= 1;
        }
    }
}

impl<E: Endpoint> Pool<E> {
    /// A connection that may be used once more; the one that was used last, so that others can grow old.
    pub(super) fn take(&self, key: &PoolKey<E>) -> Option<Connection> {
        let mut all = self.lock();
        let idle = &mut all.get_mut(key)?.idle;
        std::iter::from_fn(|| idle.pop()).find(Idle::is_usable).map(|idle| idle.connection)
    }

    /// Keeps a connection whose last response was read to its end.
    pub(super) fn put(&self, key: PoolKey<E>, connection: Connection) {
        let idle = Idle { connection, since: Instant::now() };
        if idle.is_usable() {
            self.lock().entry(key).or_default().idle.push(idle);
        }
    }

    /// Counts a connection of which a response is being read; `None` when the endpoint has enough of them.
    pub(super) fn begin_reading(self: &Arc<Self>, key: PoolKey<E>) -> Option<Reading<E>> {
        let mut all = self.lock();
        let connections = all.entry(key.clone()).or_default();
        if connections.reading == MOST_READING {
            return None;
        }
        connections.reading += 1;
        Some(Reading { pool: self.clone(), key })
    }

    /// Closes what has waited too long.
    pub(super) fn prune(&self) {
        self.lock().retain(|_, connections| {
            connections.idle.retain(Idle::is_usable);
            connections.reading > 0 || !connections.idle.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PoolKey<E>, Connections>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    fn is_usable(&self) -> bool {
        !self.connection.is_closed()
            && self.since.elapsed() < MAX_IDLE
            && self.connection.opened_at().elapsed() < MAX_AGE
    }
}
