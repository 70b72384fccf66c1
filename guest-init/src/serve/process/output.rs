//! What a process has written, kept for those who listen and for those who come later.
//!
//! A bounded run of pieces in the order in which they were read, from both streams or from the terminal. Each subscriber
//! reads it at a place of its own.
//!
//! * **The first subscriber** (the one that started the process, or the oldest left) loses nothing: while it lags by a whole
//!   buffer, [`Output::push`] waits, so the process is not read and in the end waits itself, as it would for a pipe.
//! * **Other subscribers** read as fast as they can; one that lags by more than the buffer goes on with the oldest piece
//!   that is left. They cannot hold up the process.
//! * **With no subscriber** the process never waits; the oldest pieces go.
//!
//! A new subscriber begins with the oldest piece that is left, so connecting late or again repeats what is still there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sandpiper_protocol::process::EndEvent;
use tokio::sync::Notify;

/// Most bytes kept of one process.
pub(super) const CAPACITY: usize = 1024 * 1024;

/// What a piece costs beside its bytes, so that a million tiny ones are bounded too.
const OVERHEAD: usize = 64;

/// Where a piece came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
    Pty,
}

/// What a subscriber reads.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Data(Source, Bytes),
    End(EndEvent),
}

#[derive(Debug, Default)]
pub(super) struct Output {
    state: Mutex<State>,
    /// A piece or the end was added.
    added: Notify,
    /// The first subscriber has read on, or another is first.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<(Source, Bytes)>,
    /// Number of the first piece that is kept, counted from the process's start.
    first: u64,
    /// Cost of the pieces.
    size: usize,
    end: Option<EndEvent>,
    /// Oldest first.
    subscribers: VecDeque<Place>,
    next_id: u64,
}

#[derive(Debug)]
struct Place {
    id: u64,
    /// Number of the piece to read next.
    next: u64,
}

impl Output {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece, waiting while it would push out what the first subscriber has yet to read.
    pub(super) async fn push(&self, source: Source, bytes: Bytes) {
        loop {
            let room = self.room.notified();
            if self.state().try_push(source, &bytes) {
                self.added.notify_waiters();
                return;
            }
            room.await;
        }
    }

    /// Adds the last item. What is pushed later is never read.
    pub(super) fn finish(&self, end: EndEvent) {
        self.state().end = Some(end);
        self.added.notify_waiters();
    }

    /// Bytes that the pieces take.
    pub(super) fn size(&self) -> usize {
        self.state().size
    }

    /// Begins to read at the oldest piece.
    pub(super) fn subscribe(self: &Arc<Self>) -> Subscriber {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let next = state.first;
        state.subscribers.push_back(Place { id, next });
        Subscriber { output: Arc::clone(self), id }
    }
}

impl State {
    fn try_push(&mut self, source: Source, bytes: &Bytes) -> bool {
        let cost = bytes.len() + OVERHEAD;
        let unread = self.subscribers.front().map_or(u64::MAX, |place| place.next);
        while self.size + cost > CAPACITY && self.first < unread {
            let Some((_, oldest)) = self.pieces.pop_front() else { break };
            self.size = self.size.saturating_sub(oldest.len() + OVERHEAD);
            self.first += 1;
        }
        let fits = self.size + cost <= CAPACITY || self.pieces.is_empty();
        if fits {
            self.size += cost;
            self.pieces.push_back((source, bytes.clone()));
        }
        fits
    }

    /// The next item of a subscriber, and whether it was the first one's.
    fn read(&mut self, id: u64) -> Option<(Item, bool)> {
        let index = self.subscribers.iter().position(|place| place.id == id)?;
        let place = self.subscribers.get_mut(index)?;
        place.next = place.next.max(self.first);
        let offset = usize::try_from(place.next - self.first).ok()?;
        if let Some((source, bytes)) = self.pieces.get(offset) {
            place.next += 1;
            return Some((Item::Data(*source, bytes.clone()), index == 0));
        }
        self.end.clone().map(|end| (Item::End(end), false))
    }
}

/// A reader of an [`Output`]; dropping it ends the reading.
#[derive(Debug)]
pub(super) struct Subscriber {
    output: Arc<Output>,
    id: u64,
}

impl Subscriber {
    /// The next item, waiting for it. After [`Item::End`] there is no other. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> Item {
        loop {
            let added = self.output.added.notified();
            let read = self.output.state().read(self.id);
            if let Some((item, is_first)) = read {
                if is_first {
                    self.output.room.notify_waiters();
                }
                return item;
            }
            added.await;
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.output.state().subscribers.retain(|place| place.id != self.id);
        self.output.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Pieces of which exactly four fit.
    fn piece(byte: u8) -> Bytes {
        Bytes::from(vec![byte; CAPACITY / 4 - OVERHEAD])
    }

    fn fill(output: &Output, bytes: std::ops::Range<u8>) {
        for byte in bytes {
            output.push(Source::Stdout, piece(byte)).now_or_never().expect("there is room");
        }
    }

    fn read(subscriber: &mut Subscriber) -> Option<u8> {
        match subscriber.next().now_or_never()? {
            Item::Data(_, bytes) => bytes.first().copied(),
            Item::End(_) => Some(u8::MAX),
        }
    }

    #[tokio::test]
    async fn without_a_subscriber_the_newest_is_kept_for_one_who_comes_late() {
        let output = Arc::new(Output::default());
        fill(&output, 0..6);
        output.finish(EndEvent::default());

        let mut late = output.subscribe();
        let seen: Vec<_> = std::iter::from_fn(|| read(&mut late).filter(|byte| *byte != u8::MAX)).collect();

        assert_eq!(seen, [2, 3, 4, 5]);
        assert!(matches!(late.next().await, Item::End(_)));
    }

    #[tokio::test]
    async fn the_first_subscriber_holds_the_process_up_and_others_do_not() {
        let output = Arc::new(Output::default());
        let mut first = output.subscribe();
        let mut second = output.subscribe();
        fill(&output, 0..4);

        let held = output.push(Source::Stdout, piece(4)).now_or_never();
        let read_first = read(&mut first);
        fill(&output, 4..5);

        assert_eq!((held, read_first), (None, Some(0)));
        assert_eq!(read(&mut second), Some(1), "the second lost the oldest piece");
        drop(first);
        assert_eq!(
            output.push(Source::Stdout, piece(5)).now_or_never(),
            Some(()),
            "the second is first now and has read on"
        );
        assert_eq!(output.push(Source::Stdout, piece(6)).now_or_never(), None);
    }

    #[tokio::test]
    async fn a_waiting_push_goes_on_when_the_subscriber_leaves() {
        let output = Arc::new(Output::default());
        let first = output.subscribe();
        fill(&output, 0..4);
        let pushed = tokio::spawn({
            let output = Arc::clone(&output);
            async move { output.push(Source::Stderr, piece(9)).await }
        });

        drop(first);

        pushed.await.unwrap();
        assert_eq!(output.size(), CAPACITY);
    }
}
