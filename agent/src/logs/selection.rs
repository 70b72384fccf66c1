//! A page of a log: the entries that a query selects, as far as they fit.

use std::io;
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

    /// Looks at entries in the direction of the query, until there are enough.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub(super) fn take(&mut self, entries: impl Iterator<Item = io::Result<LogEntry>>) -> io::Result<()> {
        for entry in entries {
            if self.look_at(entry?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Breaks when no more is wanted.
    fn look_at(&mut self, entry: LogEntry) -> ControlFlow<()> {
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
        && query.source.is_none_or(|source| entry.source == source)
        && query.search.as_ref().is_none_or(|search| entry.message.contains(search))
}

/// Runs of entries as one: each is in the direction of the query, and so is the whole.
pub(super) fn merged(
    runs: Vec<impl Iterator<Item = io::Result<LogEntry>>>,
    newest_first: bool,
) -> impl Iterator<Item = io::Result<LogEntry>> {
    let mut runs: Vec<_> = runs.into_iter().map(Iterator::peekable).collect();
    let rank = move |entry: &io::Result<LogEntry>| match entry {
        Ok(entry) if newest_first => u64::MAX - entry.sequence,
        Ok(entry) => entry.sequence,
        // It ends the reading, so it need not wait.
        Err(_) => 0,
    };
    std::iter::from_fn(move || {
        let next = runs.iter_mut().enumerate().filter_map(|(index, run)| Some((rank(run.peek()?), index))).min()?;
        runs[next.1].next()
    })
}
