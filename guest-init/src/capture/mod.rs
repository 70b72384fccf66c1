//! What processes write, on its way to the sandbox's log, where the host asks for it.
//!
//! ```text
//!   pump ── [`Tap`]: pieces to lines ──▶ queue (bounded) ──▶ batches, so many a second ──▶ link ──▶ the agent's log
//!     └───▶ output of the process, for clients
//! ```
//!
//! * A tap never waits. What the queue has no room for is dropped and counted, and the next batch says how much it was: no process
//!   and no client is slower for being listened to.
//! * Batches go at a pace that leaves room on the link for everything else, which has one line for all that the guest says.
//! * What waits in the queue is part of the guest's memory: it goes on after a pause, and does not after a fork, whose log
//!   begins with its own output.

mod tap;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_protocol::guest::{GuestMessage, OutputLine};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

pub use tap::{Source, Tap};

/// Bytes that wait at most.
const QUEUE: usize = 256 * 1024;
/// What a line costs beside its texts.
const OVERHEAD: usize = 64;
/// Bytes of a batch, but for its last line. Written as JSON they may be twice as many, and with the last line are still below the
/// link's limit.
const BATCH: usize = 16 * 1024;
/// From one batch to the next: together they are fewer bytes and lines than the host reads of a link.
const PACE: Duration = Duration::from_millis(100);
/// Batches that are told at once before a guest is frozen.
const LAST_BATCHES: usize = 4;

/// All that is captured. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Capture(Arc<Parts>);

#[derive(Debug, Default)]
struct Parts {
    is_on: AtomicBool,
    queue: Mutex<Queue>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<OutputLine>,
    bytes: usize,
    /// Lines that were dropped, of which nobody was told yet.
    left_out: u64,
    /// When the next batch may go.
    due: Option<Instant>,
}

/// Lines that are told together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub lines: Vec<OutputLine>,
    /// Lines that were dropped.
    pub left_out: u64,
}

impl From<Batch> for GuestMessage {
    fn from(Batch { lines, left_out }: Batch) -> Self {
        GuestMessage::Output { lines, left_out }
    }
}

impl Capture {
    /// Turns it on or off, for what is written from now on.
    pub fn switch(&self, is_on: bool) {
        self.0.is_on.store(is_on, Ordering::Relaxed);
        if !is_on {
            self.clear();
        }
    }

    fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// Forgets what waits: it was written in another sandbox.
    pub(crate) fn clear(&self) {
        *self.queue() = Queue::default();
    }

    /// The next batch, as soon as there is one and the last is long enough ago. Cancelling loses nothing.
    pub async fn batch(&self) -> Batch {
        loop {
            let due = {
                let mut queue = self.queue();
                let now = Instant::now();
                match queue.due {
                    _ if queue.is_empty() => None,
                    Some(due) if due > now => Some(due),
                    _ => {
                        queue.due = Some(now + PACE);
                        return queue.take();
                    }
                }
            };
            match due {
                Some(due) => sleep_until(due).await,
                None => self.0.filled.notified().await,
            }
        }
    }

    /// The batches that are told before the guest stands still; what is more waits until it goes on.
    pub(crate) fn last_batches(&self) -> Vec<Batch> {
        let mut queue = self.queue();
        let batches = (0..LAST_BATCHES).map_while(|_| (!queue.is_empty()).then(|| queue.take()));
        batches.collect()
    }

    /// Notes that so many lines are dropped.
    pub(crate) fn leave_out(&self, lines: u64) {
        let mut queue = self.queue();
        queue.left_out = queue.left_out.saturating_add(lines);
        self.0.filled.notify_one();
    }

    /// Adds a line, if there is room for its `text`.
    fn add(&self, text: &[u8], line: impl FnOnce() -> OutputLine) {
        let mut queue = self.queue();
        if queue.bytes + text.len() + OVERHEAD > QUEUE {
            queue.left_out = queue.left_out.saturating_add(1);
        } else {
            let line = line();
            queue.bytes += cost(&line);
            queue.lines.push_back(line);
        }
        self.0.filled.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.left_out == 0
    }

    fn take(&mut self) -> Batch {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH
            && let Some(line) = self.lines.pop_front()
        {
            bytes += cost(&line);
            lines.push(line);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        Batch { lines, left_out: std::mem::take(&mut self.left_out) }
    }
}

fn cost(line: &OutputLine) -> usize {
    line.text.len() + line.command.len() + line.tag.as_ref().map_or(0, String::len) + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use sandpiper_protocol::guest::{MAX_LINK_LINE, MAX_OUTPUT_LINE, OutputStream};

    fn tap(capture: &Capture) -> Tap {
        capture.switch(true);
        Tap::new(capture, OutputStream::Stdout, Source::new(7, "/bin/sh", Some("a tag")))
    }

    fn texts(batch: &Batch) -> Vec<&str> {
        batch.lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[tokio::test]
    async fn batches_come_at_once_and_then_at_a_pace_in_the_order_of_the_lines() {
        let capture = Capture::default();
        let mut tap = tap(&capture);
        assert!(capture.batch().now_or_never().is_none());

        tap.take(b"one\ntwo\nthr");
        let first = capture.batch().await;
        tap.take(b"ee\n");
        assert!(capture.queue().due.is_some(), "it has a time to wait for");
        let second = capture.batch().await;

        assert_eq!((texts(&first), texts(&second)), (vec!["one", "two"], vec!["three"]));
        let line = &second.lines[0];
        assert_eq!((line.pid, line.command.as_str(), line.tag.as_deref()), (7, "sh", Some("a tag")));
        assert_eq!((line.stream, line.cut), (OutputStream::Stdout, false));
    }

    #[tokio::test]
    async fn a_flood_is_bounded_counted_and_never_waited_for() {
        let capture = Capture::default();
        let mut tap = tap(&capture);
        let lines = 100_000_u64;
        for number in 0..lines {
            tap.take(format!("line {number}\n").as_bytes());
        }
        assert!(capture.queue().bytes <= QUEUE);

        let (mut told, mut left_out, mut batches) = (0, 0, 0_u32);
        while told + left_out < lines {
            let batch = capture.batch().await;
            (told, left_out) = (told + batch.lines.len() as u64, left_out + batch.left_out);
            batches += 1;
        }

        assert_eq!(told + left_out, lines);
        assert!(told > 1000 && left_out > 1000 && batches > 5, "{told} {left_out} {batches}");
    }

    #[test]
    fn every_batch_fits_the_link_whatever_is_written() {
        let capture = Capture::default();
        let long = "\"".repeat(10_000);
        capture.switch(true);
        let mut tap = Tap::new(&capture, OutputStream::Stderr, Source::new(u32::MAX, &long, Some(&long)));
        for _ in 0..100 {
            for line in [&b"\"\\\t\x01\xff"[..], &[b'"'; MAX_OUTPUT_LINE + 1], &[0xff; MAX_OUTPUT_LINE]] {
                tap.take(line);
                tap.take(b"\n");
            }
        }

        let batches: Vec<_> =
            std::iter::from_fn(|| Some(capture.last_batches()).filter(|some| !some.is_empty())).collect();

        assert!(batches.len() > 1);
        for batch in batches.into_iter().flatten() {
            let json = serde_json::to_vec(&GuestMessage::from(batch)).unwrap();
            assert!(json.len() < MAX_LINK_LINE, "{}", json.len());
        }
    }

    #[test]
    fn nothing_is_taken_while_it_is_off_and_nothing_kept_when_it_is_turned_off() {
        let capture = Capture::default();
        let mut tap = tap(&capture);
        tap.take(b"on\nhalf");
        capture.switch(false);
        tap.take(b" a line\noff\n");
        tap.flush();
        assert!(capture.batch().now_or_never().is_none());

        capture.switch(true);
        tap.take(b"on again\n");

        assert_eq!(texts(&capture.batch().now_or_never().unwrap()), ["on again"]);
    }
}
