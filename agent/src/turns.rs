//! Starts take turns: more of them at a time than a host has processors for slow each other down, until none is in time.
//!
//! ```text
//!   a hundred creates ──▶ wait, in their order ──▶ a few start at a time ──ready, or too slow──▶ the next
//! ```
//!
//! * What a start is given time for begins with its turn, so nothing fails for having waited.
//! * The next turn is that of the team with the fewest starts under way, and among its starts that of the oldest: however many one
//!   team asks for, another's single one comes soon.
//! * A turn ends with the start, and after [`LONGEST`] in any case: guests that hang hold nobody up for longer.
//! * A parked machine is taken without one. It runs already.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use sandpiper_protocol::ids::TeamId;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long a start may keep the next one waiting.
const LONGEST: Duration = Duration::from_secs(5);
/// How many start at a time for each processor, and at least: a start also waits, for disks and for the guest.
const PER_PROCESSOR: usize = 2;
const LEAST: usize = 4;

/// Who may start. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Starts under way, of each team that has some.
    running: HashMap<Option<TeamId>, usize>,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    team: Option<TeamId>,
    begin: oneshot::Sender<Place>,
}

/// One of the places for starts, to be given to the next when this is dropped.
#[derive(Debug)]
struct Place {
    turns: Turns,
    team: Option<TeamId>,
}

/// The turn of one start, which ends when this is dropped, if not before.
#[derive(Debug)]
pub(crate) struct Turn {
    _end: DropGuard,
}

impl Turns {
    /// As many at a time as this host can do with.
    pub(crate) fn of_this_host() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::new((PER_PROCESSOR * processors).max(LEAST))
    }

    fn new(at_a_time: usize) -> Self {
        let state = State { free: at_a_time, running: HashMap::new(), waiting: VecDeque::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a turn of a start of this team.
    pub(crate) async fn take(&self, team: Option<TeamId>) -> Turn {
        let (begin, begun) = oneshot::channel();
        self.lock().waiting.push_back(Waiting { team, begin });
        self.give();
        let Ok(place) = begun.await else {
            // Nothing ends a wait but a turn, or whoever waits.
            return std::future::pending().await;
        };
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            // What is left of a start that takes longer goes on without a place.
            let _ = timeout(LONGEST, ended.cancelled()).await;
            drop(place);
        });
        Turn { _end: end.drop_guard() }
    }

    /// How many starts wait for their turns.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.iter().filter(|waiting| !waiting.begin.is_closed()).count()
    }

    /// Gives the places that are free to those whose turn it is.
    fn give(&self) {
        // One who gave up in this moment gives the place back, so it is given outside the lock.
        while let Some(Waiting { team, begin }) = { self.lock().next() } {
            let _ = begin.send(Place { turns: self.clone(), team });
        }
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a place for whoever is next.
    fn next(&mut self) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.begin.is_closed());
        if self.free == 0 {
            return None;
        }
        let running = |waiting: &Waiting| self.running.get(&waiting.team).copied().unwrap_or_default();
        // Of several with as many the first.
        let (index, _) = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| running(waiting))?;
        let next = self.waiting.remove(index)?;
        self.free -= 1;
        *self.running.entry(next.team.clone()).or_default() += 1;
        Some(next)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut state = self.turns.lock();
            state.free += 1;
            if let Some(running) = state.running.get_mut(&self.team) {
                *running -= 1;
            }
            state.running.retain(|_, running| *running > 0);
        }
        self.turns.give();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_have_a_turn_and_the_next_one_when_one_of_them_is_done() {
        let turns = Turns::new(2);
        let (first, _second) = (turns.take(None).await, turns.take(None).await);
        let mut third = std::pin::pin!(turns.take(None));
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!(turns.waiting(), 1);

        drop(first);
        let begin = Instant::now();
        third.await;
        assert!(begin.elapsed() < LONGEST);
        assert_eq!(turns.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_holds_up_the_next_for_so_long_only() {
        let turns = Turns::new(1);
        let _hangs = turns.take(None).await;
        let begin = Instant::now();
        turns.take(None).await;
        assert!((LONGEST..LONGEST + Duration::from_secs(1)).contains(&begin.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_takes_no_place() {
        let turns = Turns::new(1);
        let first = turns.take(None).await;
        assert!(timeout(Duration::from_millis(1), turns.take(None)).await.is_err());
        drop(first);
        sleep(Duration::from_millis(1)).await;
        assert!(turns.take(None).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_team_that_asks_for_one_does_not_wait_for_the_many_of_another() {
        let turns = Turns::new(2);
        let order = Arc::new(Mutex::new(Vec::new()));
        let start = |team: &'static str, name: &'static str| {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                let _turn = turns.take(Some(team.into())).await;
                order.lock().unwrap().push(name);
                sleep(Duration::from_secs(1)).await;
            })
        };
        let mut starts = Vec::new();
        for (team, name) in [("many", "1"), ("many", "2"), ("many", "3"), ("many", "4"), ("one", "a"), ("one", "b")] {
            starts.push(start(team, name));
            tokio::task::yield_now().await;
        }

        for start in starts {
            start.await.unwrap();
        }

        // Two are free at once; of the two teams' starts each has one then.
        assert_eq!(*order.lock().unwrap(), ["1", "2", "a", "3", "b", "4"]);
        assert!(turns.lock().running.is_empty());
    }
}
