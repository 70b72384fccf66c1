//! What tasks of this process are at work on: ids that nobody else touches, and locks by id that are waited for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandpiper_protocol::ids::TeamId;
use tokio::sync::OwnedMutexGuard;

/// Ids of sandboxes and checkpoints that a task of this process is at work on.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Mutex<HashSet<String>>>);

impl InFlight {
    /// Enters an id until the guard is dropped; `None` if it is entered already.
    pub fn enter(&self, id: &str) -> Option<InFlightGuard> {
        let entered = self.with(|ids| ids.insert(id.to_owned()));
        entered.then(|| InFlightGuard { ids: self.clone(), id: id.to_owned() })
    }

    /// Whether a task is at work on this id.
    pub fn contains(&self, id: &str) -> bool {
        self.with(|ids| ids.contains(id))
    }

    /// Whether no task is at work.
    pub fn is_empty(&self) -> bool {
        self.with(|ids| ids.is_empty())
    }

    /// All ids.
    pub fn snapshot(&self) -> HashSet<String> {
        self.with(|ids| ids.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashSet<String>) -> T) -> T {
        // Every change is one call of the set: a panic elsewhere cannot leave it half done.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps an id entered.
#[derive(Debug)]
pub struct InFlightGuard {
    ids: InFlight,
    id: String,
}

impl InFlightGuard {
    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.ids.with(|ids| ids.remove(&self.id));
    }
}

/// How many of something each team has at a time, at most.
#[derive(Debug, Clone)]
pub struct PerTeam {
    most: usize,
    counts: Arc<Mutex<HashMap<TeamId, usize>>>,
}

impl PerTeam {
    /// None of it yet.
    pub fn new(most: usize) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// Counts one more of a team until the guard is dropped; `None` if it has all that it may.
    pub fn enter(&self, team: &TeamId) -> Option<PerTeamGuard> {
        self.with(|counts| {
            let count = counts.entry(team.clone()).or_default();
            (*count < self.most).then(|| *count += 1)
        })?;
        Some(PerTeamGuard { of: self.clone(), team: team.clone() })
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<TeamId, usize>) -> T) -> T {
        // No change below panics half way.
        work(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps one counted.
#[derive(Debug)]
pub struct PerTeamGuard {
    of: PerTeam,
    team: TeamId,
}

impl Drop for PerTeamGuard {
    fn drop(&mut self) {
        self.of.with(|counts| {
            if let Some(count) = counts.get_mut(&self.team) {
                *count -= 1;
            }
            counts.retain(|_, count| *count > 0);
        });
    }
}

/// A lock for each id, which is there while somebody holds it or waits for it.
#[derive(Debug, Default)]
pub struct KeyedLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl KeyedLocks {
    /// Waits for the lock of this id, which is free again when the guard is dropped.
    pub async fn lock(&self, id: &str) -> OwnedMutexGuard<()> {
        let lock = {
            // Every change below leaves a map of which each entry is right by itself, whoever panicked.
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            locks.get(id).and_then(Weak::upgrade).unwrap_or_else(|| {
                let lock = Arc::default();
                locks.insert(id.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}
