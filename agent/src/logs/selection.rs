//! A page of a log: the entries that a query selects, as far as they fit.

use std::ops::ControlFlow;

use sandpiper_protocol::agent::{LogEntry, LogPage, LogQuery, MAX_LOG_ENTRIES};

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    query: &'a LogQuery,
    limit: usize,
    entries: Vec<LogEntry>,
    has_more: bool,
}

impl<'a> Selection<'a> {
    pub(super) fn new(query: &'a LogQuery) -> Self {
        let limit = query.limit.unwrap_or(MAX_LOG_ENTRIES).min(MAX_LOG_ENTRIES);
        Self { query, limit, entries: Vec::new(), has_more: false }
    }

    /// Looks at the next entry in the direction of the query; breaks when no more is wanted.
    pub(super) fn look_at(&mut self, entry: LogEntry) -> ControlFlow<()> {
        if !selects(self.query, &entry) {
            return ControlFlow::Continue(());
        }
        if self.entries.len() < self.limit {
            self.entries.push(entry);
            return ControlFlow::Continue(());
        }
        self.has_more = true;
        ControlFlow::Break(())
    }

    /// The page, of a log of which this is the first and the last sequence.
    pub(super) fn page(self, first: u64, last: u64, is_ended: bool) -> LogPage {
        let is_truncated = first > self.query.after.unwrap_or_default().saturating_add(1);
        LogPage { entries: self.entries, has_more: self.has_more, last, is_truncated, is_ended }
    }
}

fn selects(query: &LogQuery, entry: &LogEntry) -> bool {
    let time = entry.time.as_millisecond();
    query.after.is_none_or(|after| entry.sequence > after)
        && query.before.is_none_or(|before| entry.sequence < before)
        && query.since_ms.is_none_or(|since| time >= since)
        && query.until_ms.is_none_or(|until| time <= until)
        && query.search.as_ref().is_none_or(|search| entry.message.contains(search))
}
