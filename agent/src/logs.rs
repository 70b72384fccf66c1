//! What happened to each sandbox, in memory: bounded while it lives, and for a while after it is gone.
//!
//! Lines come from three places ([`LogSource`]). Those of the guest and its console are a tenant's: they are cut to
//! [`MAX_TEXT`](sandpiper_machine::MAX_TEXT) bytes and stripped of control characters, so that no terminal they end up on can be played with.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use sandpiper_machine::sanitize;
use sandpiper_protocol::agent::{LogEntry, LogSource};

/// Entries kept of a sandbox that is here.
const LIVE_ENTRIES: usize = 1000;
/// Entries kept of one that is gone.
const ENDED_ENTRIES: usize = 200;
/// Sandboxes that are gone whose entries are kept.
const ENDED_SANDBOXES: usize = 100;

/// The log of one sandbox. Cheap to clone; all clones are the same log.
#[derive(Debug, Clone, Default)]
pub(crate) struct SandboxLog {
    entries: Arc<Mutex<VecDeque<LogEntry>>>,
}

impl SandboxLog {
    /// Something that the agent did or saw.
    pub(crate) fn host(&self, message: impl AsRef<str>) {
        self.push(LogSource::Host, message.as_ref());
    }

    /// Adds an entry; the oldest gives way.
    pub(crate) fn push(&self, source: LogSource, message: &str) {
        let entry = LogEntry { time: Timestamp::now(), source, message: sanitize(message) };
        let mut entries = lock(&self.entries);
        if entries.len() >= LIVE_ENTRIES {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// All entries, oldest first.
    pub(crate) fn entries(&self) -> Vec<LogEntry> {
        lock(&self.entries).iter().cloned().collect()
    }

    fn shorten(&self) {
        let mut entries = lock(&self.entries);
        let surplus = entries.len().saturating_sub(ENDED_ENTRIES);
        entries.drain(..surplus);
        entries.shrink_to_fit();
    }
}

/// The logs of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    live: HashMap<String, SandboxLog>,
    ended: VecDeque<(String, SandboxLog)>,
}

impl Logs {
    /// A new log for a sandbox that begins.
    pub(crate) fn open(&self, id: &str) -> SandboxLog {
        let log = SandboxLog::default();
        lock(&self.shelf).live.insert(id.to_owned(), log.clone());
        log
    }

    /// Sets a sandbox's log aside; the one set aside longest ago is dropped.
    pub(crate) fn retire(&self, id: &str) {
        let mut shelf = lock(&self.shelf);
        let Some(log) = shelf.live.remove(id) else { return };
        log.shorten();
        if shelf.ended.len() >= ENDED_SANDBOXES {
            shelf.ended.pop_front();
        }
        shelf.ended.push_back((id.to_owned(), log));
    }

    /// The log of a sandbox that is here or was here not long ago.
    pub(crate) fn find(&self, id: &str) -> Option<SandboxLog> {
        let shelf = lock(&self.shelf);
        let ended = || shelf.ended.iter().rev().find(|(ended, _)| ended == id).map(|(_, log)| log);
        shelf.live.get(id).or_else(ended).cloned()
    }
}

/// The data under these locks is changed in one step, so it is whole even after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_the_newest_entries() {
        let log = SandboxLog::default();
        for number in 0..LIVE_ENTRIES + 5 {
            log.host(number.to_string());
        }
        let entries = log.entries();
        assert_eq!(entries.len(), LIVE_ENTRIES);
        assert_eq!(entries[0].message, "5");
    }

    #[test]
    fn logs_outlive_their_sandbox_for_a_while() {
        let logs = Logs::default();
        logs.open("first").host("deleted");
        logs.retire("first");
        assert_eq!(logs.find("first").unwrap().entries()[0].message, "deleted");

        for number in 0..ENDED_SANDBOXES {
            let id = number.to_string();
            logs.open(&id);
            logs.retire(&id);
        }
        assert!(logs.find("first").is_none());
        assert!(logs.find("0").is_some());
    }
}
