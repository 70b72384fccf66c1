//! The last entries of a log, in memory: what is left of it when its files are gone.

use std::collections::VecDeque;

use sandpiper_protocol::agent::LogEntry;

/// Entries at most.
const ENTRIES: usize = 200;
/// Bytes of their messages at most.
const BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Recent {
    entries: VecDeque<LogEntry>,
    bytes: usize,
}

impl Recent {
    /// Adds an entry; the oldest give way.
    pub(super) fn push(&mut self, entry: LogEntry) {
        self.bytes += entry.message.len();
        self.entries.push_back(entry);
        while self.entries.len() > ENTRIES || self.bytes > BYTES {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.message.len();
        }
    }

    /// Oldest first.
    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.entries.iter()
    }
}
