//! The events of one watch until its client takes them: a bounded number, and a word about those that did not fit.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sandpiper_protocol::connect::Code;
use sandpiper_protocol::filesystem::FilesystemEvent;
use tokio::sync::Notify;

use crate::serve::connect::Error;

/// Events that wait, and bytes of the texts in them.
pub(super) const MAX_EVENTS: usize = 10_000;
const MAX_BYTES: usize = 2 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    added: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<FilesystemEvent>,
    bytes: usize,
    has_lost: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events. If there is no room, all that wait are lost, and the client is told.
    pub(super) fn push(&self, events: Vec<FilesystemEvent>) {
        let mut state = self.state();
        state.bytes += events.iter().map(size).sum::<usize>();
        state.events.extend(events);
        if state.events.len() > MAX_EVENTS || state.bytes > MAX_BYTES {
            *state = State { has_lost: true, ..State::default() };
        }
        drop(state);
        self.added.notify_waiters();
    }

    /// Notes that events were lost before they came here.
    pub(super) fn lose(&self) {
        *self.state() = State { has_lost: true, ..State::default() };
        self.added.notify_waiters();
    }

    /// Takes what waits.
    ///
    /// # Errors
    ///
    /// Fails once, with `resource_exhausted`, if events were lost.
    pub(super) fn take(&self) -> Result<Vec<FilesystemEvent>, Error> {
        let state = std::mem::take(&mut *self.state());
        if state.has_lost {
            let message = "Events were lost: there were more than could be kept. List the folder, then go on";
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        Ok(state.events)
    }

    /// Takes what waits, or waits for it. Cancelling loses nothing.
    pub(super) async fn next(&self) -> Result<Vec<FilesystemEvent>, Error> {
        loop {
            let added = self.added.notified();
            match self.take() {
                Ok(events) if events.is_empty() => added.await,
                taken => return taken,
            }
        }
    }
}

fn size(event: &FilesystemEvent) -> usize {
    let entry = event.entry.as_ref().map_or(0, |entry| {
        let metadata: usize = entry.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        entry.name.len() + entry.path.len() + entry.symlink_target.as_ref().map_or(0, String::len) + metadata
    });
    event.name.len() + entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::filesystem::EventType;

    fn events(count: usize, name: &str) -> Vec<FilesystemEvent> {
        vec![FilesystemEvent { name: name.to_owned(), kind: EventType::Write, entry: None }; count]
    }

    #[test]
    fn what_does_not_fit_is_told_once() {
        let queue = Queue::default();
        queue.push(events(MAX_EVENTS, "x"));
        assert_eq!(queue.take().unwrap().len(), MAX_EVENTS);

        queue.push(events(MAX_EVENTS, "x"));
        queue.push(events(1, "x"));
        assert_eq!(queue.take().unwrap_err().body().code, Code::ResourceExhausted);
        assert_eq!(queue.take().unwrap(), []);

        queue.push(events(MAX_BYTES / 4_000 + 1, &"x".repeat(4_000)));
        assert!(queue.take().is_err());
    }
}
