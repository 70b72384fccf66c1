//! When the machines of sandboxes ran: what is billed.
//!
//! ```text
//!   supervisor ──▶ record: ready, with an interval ──follow──▶ ┌───────────┐  list   ┌─────┐
//!   supervisor ──▶ record: stopped, or being deleted ─follow─▶ │ [journal] │ ───────▶│ API │
//!   reconcile  ──▶ what the records say, where that is missing │           │ ◀───────│     │
//!                                                              └───────────┘  acknowledge
//! ```
//!
//! * An **interval** begins when a sandbox is `ready`, or when the guest of a machine that was parked is told that it is the
//!   sandbox's, which is ready a moment later; and ends when it is stopped or its deletion is written down. What parked
//!   machines, builds and helpers take is nobody's.
//! * The truth is the sandbox's record, which is synced with each of these anyway: so a start, and a pause, wait for nothing
//!   here. The **journal** follows, within moments, on a thread of its own. Only what the record is about to forget is awaited:
//!   a sandbox that is deleted has its record until its interval's end is in the journal, one that is resumed likewise.
//! * What goes through the network of a machine is counted by the host's kernel. It is read every minute, and before the machine's
//!   slot goes: a record of an interval that goes on says what it came to, where that grew. The counters stay where they are when an
//!   agent is killed, and each record says what they said, so that the next agent goes on from there.
//! * An agent that was killed finds by the records what the journal lacks ([`Intervals::settle`]). Machines that run then are in
//!   their intervals still. One that ended meanwhile was last seen at the **seen mark**, which is written once an agent has
//!   found what runs, and every [`SEEN_EVERY`] while anything does: its interval ends there, [`EndReason::Lost`], a little too
//!   early rather than too late.
//! * The API process lists records and [acknowledges](Intervals::acknowledge) what it has. Until then nothing goes: while it is
//!   away the journal grows, up to [`Sizes::most`], and then nothing new is started. What was acknowledged goes by whole
//!   segments, once at most half of one is still needed: the beginning of an interval that goes on is written once more before
//!   its segment goes.

mod journal;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_protocol::ids::IntervalId;
use sandpiper_protocol::interval::{EndReason, Interval, IntervalEnd, IntervalPage, IntervalRecord, Traffic};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use self::journal::Journal;

/// How often it is written down that all runs: as much of an interval may be missing after the agent was killed.
const SEEN_EVERY: Duration = Duration::from_secs(5);
/// From the first news to writing it down: what a burst of starts leaves is synced once, and not while their callers wait, or
/// have their first commands run.
const GATHER: Duration = Duration::from_secs(1);
/// A segment has some two thousand records, and at most some hundred thousand intervals wait for the API process.
const SIZES: Sizes = Sizes { segment: 1 << 20, most: 128 << 20 };

/// How large the journal is.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Bytes from which on another segment is begun.
    segment: u64,
    /// Bytes from which on nothing new is started.
    most: u64,
}

/// Why records are not acknowledged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcknowledgeError {
    #[error("The journal of intervals is {0}; list its records anew")]
    OtherJournal(String),
    #[error("The journal of intervals has no record {through}; its last is {last}")]
    NoSuchRecord { through: u64, last: u64 },
    #[error("Cannot write the journal of intervals")]
    Storage(#[from] io::Error),
}

impl From<durable::Interrupted> for AcknowledgeError {
    fn from(interrupted: durable::Interrupted) -> Self {
        Self::Storage(interrupted.into())
    }
}

/// The intervals of this host's sandboxes. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Intervals(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    /// Held by threads that may wait for a disk, and taken before `state`.
    journal: Mutex<Journal>,
    /// Never held for longer than a moment.
    state: Mutex<State>,
    /// There is something to write.
    wake: Notify,
    sizes: Sizes,
}

#[derive(Debug)]
struct State {
    /// Number of the next record.
    next: u64,
    /// Records that are not in the journal yet, in their order.
    unwritten: Vec<IntervalRecord>,
    /// Intervals that have begun and not ended, each with the number of the record that says so.
    open: HashMap<IntervalId, (u64, Interval)>,
    /// When all of them were last seen to run.
    seen_at_ms: Option<i64>,
    /// Bytes of the journal.
    length: u64,
}

impl Intervals {
    /// Opens the journal in `folder`. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        Self::open_with(folder, SIZES)
    }

    fn open_with(folder: PathBuf, sizes: Sizes) -> io::Result<Self> {
        let (journal, kept) = Journal::open(folder, sizes.segment)?;
        let mut open = HashMap::new();
        for IntervalRecord { sequence, interval } in kept.records {
            match interval.end {
                None => open.insert(interval.id.clone(), (sequence, interval)),
                Some(_) => open.remove(&interval.id),
            };
        }
        let state = State {
            next: journal.last() + 1,
            unwritten: Vec::new(),
            open,
            seen_at_ms: kept.seen_at_ms,
            length: journal.length(),
        };
        let (journal, state) = (Mutex::new(journal), Mutex::new(state));
        Ok(Self(Arc::new(Parts { journal, state, wake: Notify::new(), sizes })))
    }

    /// Has the journal say what the record of a sandbox says of its interval, soon. Once it does, that changes nothing.
    pub(crate) fn follow(&self, interval: &Interval) {
        if self.state().follow(interval) {
            self.0.wake.notify_one();
        }
    }

    /// Whether something of this interval is on its way to the journal.
    pub(crate) fn is_unwritten(&self, id: &IntervalId) -> bool {
        self.state().unwritten.iter().any(|record| record.interval.id == *id)
    }

    /// Whether so much waits for the API process that nothing new is to be started.
    pub(crate) fn is_full(&self) -> bool {
        self.state().length >= self.0.sizes.most
    }

    /// What went through the network of an interval's machine as far as it is known; nothing of one that has ended, or whose traffic
    /// is not counted.
    pub(crate) fn traffic(&self, id: &IntervalId) -> Option<Traffic> {
        self.state().open.get(id)?.1.traffic
    }

    /// Has the journal say that so much went through the network of an interval's machine, when it is written next: within
    /// [`SEEN_EVERY`], together with what others read. Where its counters have not moved, and of one that has ended, that changes nothing.
    pub(crate) fn measure(&self, id: &IntervalId, traffic: Traffic) {
        self.state().measure(id, traffic);
    }

    /// Whether so much waits for the API process that there should be no records which can be done without.
    pub(crate) fn is_crowded(&self) -> bool {
        self.state().length >= self.0.sizes.most / 2
    }

    /// When all that runs was last seen to run; nothing where nothing ever did.
    pub(crate) fn seen_at_ms(&self) -> Option<i64> {
        self.state().seen_at_ms
    }

    /// Ends intervals that an earlier agent left open and that are not `live`: nobody knows their sandboxes any more.
    pub(crate) fn settle(&self, live: &HashSet<IntervalId>) {
        let mut state = self.state();
        let lost: Vec<Interval> =
            state.open.values().filter(|(_, one)| !live.contains(&one.id)).map(|(_, one)| one.clone()).collect();
        for mut interval in lost {
            tracing::warn!(sandbox = interval.sandbox.as_str(), "an interval ends whose sandbox is not known any more");
            let at_ms = state.seen_at_ms.unwrap_or(interval.began_at_ms).max(interval.known_until_ms());
            interval.end = Some(IntervalEnd { at_ms, reason: EndReason::Lost });
            state.follow(&interval);
        }
    }

    /// Writes down what is on its way to the journal. Blocks.
    ///
    /// # Errors
    /// Those of the file system; the rest is still on its way.
    pub(crate) fn write(&self) -> io::Result<()> {
        self.write_to(&mut self.journal())
    }

    fn write_to(&self, journal: &mut Journal) -> io::Result<()> {
        let records = self.state().unwritten.clone();
        journal.append(&records)?;
        let mut state = self.state();
        state.unwritten.drain(..records.len());
        state.length = journal.length();
        Ok(())
    }

    /// Writes down that all runs `now` which has begun and not ended. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn see(&self, now: Timestamp) -> io::Result<()> {
        let mut journal = self.journal();
        // What has ended must have done so in the journal too, before anybody believes that it ran until now.
        self.write_to(&mut journal)?;
        if self.state().open.is_empty() {
            return Ok(());
        }
        let at_ms = now.as_millisecond();
        journal.write_seen(at_ms)?;
        self.state().seen_at_ms = Some(at_ms);
        Ok(())
    }

    /// The oldest records that were not acknowledged, at most `limit`. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn page(&self, limit: usize) -> io::Result<IntervalPage> {
        let journal = self.journal();
        // Before the records: what had ended by then is among them.
        let seen_at_ms = self.seen_at_ms();
        let (records, more) = journal.unacknowledged(limit)?;
        Ok(IntervalPage { journal: journal.id().to_owned(), records, more, seen_at_ms })
    }

    /// Notes that the API process has the records of `journal` through this one, and removes what nobody needs. Blocks.
    ///
    /// # Errors
    /// See [`AcknowledgeError`].
    pub(crate) fn acknowledge(&self, id: &str, through: u64) -> Result<(), AcknowledgeError> {
        let mut journal = self.journal();
        if id != journal.id() {
            return Err(AcknowledgeError::OtherJournal(journal.id().to_owned()));
        }
        let last = journal.last();
        if through > last {
            return Err(AcknowledgeError::NoSuchRecord { through, last });
        }
        journal.acknowledge(through)?;
        for done in journal.done() {
            if self.state().begun_within(&done.numbers) * 2 > done.records {
                continue;
            }
            self.state().begin_again(&done.numbers);
            self.write_to(&mut journal)?;
            journal.remove(&done)?;
        }
        self.state().length = journal.length();
        Ok(())
    }

    /// Writes what comes, and now and then that all runs, until the agent ends. Not at once: the end of a machine that an earlier
    /// agent left is noticed only once somebody watches it.
    pub(crate) async fn keep(self, leave: CancellationToken) {
        let mut looks = interval_at(Instant::now() + SEEN_EVERY, SEEN_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed_before = false;
        loop {
            let (looks_around, ends) = tokio::select! {
                () = leave.cancelled() => (true, true),
                _ = looks.tick() => (true, false),
                () = self.0.wake.notified() => {
                    let left = timeout(GATHER, leave.cancelled()).await;
                    (left.is_ok(), left.is_ok())
                }
            };
            let this = self.clone();
            let written =
                durable::blocking(move || if looks_around { this.see(Timestamp::now()) } else { this.write() }).await;
            match &written {
                Err(error) if !failed_before => {
                    tracing::error!(%error, "cannot write the journal of intervals; trying again, and nothing is deleted until then");
                }
                _ => {}
            }
            failed_before = written.is_err();
            if ends {
                return;
            }
        }
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.0.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a record where the interval has begun or ended since the last one of it; whether it did.
    fn follow(&mut self, interval: &Interval) -> bool {
        let sequence = self.next;
        let is_news = match (self.open.contains_key(&interval.id), interval.end) {
            (false, None) => self.open.insert(interval.id.clone(), (sequence, interval.clone())).is_none(),
            (true, Some(_)) => self.open.remove(&interval.id).is_some(),
            // It is as it was, or has ended long ago.
            (true, None) | (false, Some(_)) => false,
        };
        if is_news {
            self.next += 1;
            self.unwritten.push(IntervalRecord { sequence, interval: interval.clone() });
        }
        is_news
    }

    /// Adds a record where the counters of an interval's network have moved since its last one.
    fn measure(&mut self, id: &IntervalId, traffic: Traffic) {
        let Some((sequence, interval)) = self.open.get_mut(id) else { return };
        if interval.traffic.is_none_or(|before| before.counters == traffic.counters) {
            return;
        }
        interval.traffic = Some(traffic);
        *sequence = self.next;
        self.next += 1;
        self.unwritten.push(IntervalRecord { sequence: *sequence, interval: interval.clone() });
    }

    /// How many records with these numbers say that an interval began which has not ended.
    fn begun_within(&self, numbers: &Range<u64>) -> usize {
        self.open.values().filter(|(sequence, _)| numbers.contains(sequence)).count()
    }

    /// Adds those records once more.
    fn begin_again(&mut self, numbers: &Range<u64>) {
        for (sequence, interval) in self.open.values_mut().filter(|(sequence, _)| numbers.contains(sequence)) {
            *sequence = self.next;
            self.next += 1;
            self.unwritten.push(IntervalRecord { sequence: *sequence, interval: interval.clone() });
        }
    }
}
