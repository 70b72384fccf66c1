//! Whose turn it is to have a builder's machine.
//!
//! So many run at the same time, and one for each team: it has the team's cache. Teams take turns, however many builds one of them
//! has waiting; within a team it is first come, first served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpiper_protocol::ids::{TeamId, VersionId};
use tokio::sync::oneshot;

/// Most teams whose last turn is remembered.
const MOST_SERVED: usize = 1024;

/// The queue. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    at_once: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    /// Teams whose builds have a machine.
    running: Vec<TeamId>,
    /// How many turns there had been when a team had its last one; also of teams that have nothing to build now, or one that
    /// comes again and again would pass one that waits.
    served: HashMap<TeamId, u64>,
    turns: u64,
}

#[derive(Debug)]
struct Waiting {
    id: VersionId,
    team: TeamId,
    turn: oneshot::Sender<Turn>,
}

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    id: VersionId,
    turn: oneshot::Receiver<Turn>,
    queue: Queue,
}

/// The right to have a machine, and the team's cache, until dropped.
#[derive(Debug)]
pub(super) struct Turn {
    team: TeamId,
    queue: Queue,
}

impl Queue {
    /// So many have a machine at the same time.
    pub(super) fn new(at_once: usize) -> Self {
        Self { at_once, state: Arc::default() }
    }

    /// Takes a place.
    pub(super) fn enter(&self, id: &VersionId, team: &TeamId) -> Ticket {
        let (sender, turn) = oneshot::channel();
        self.lock().waiting.push(Waiting { id: id.clone(), team: team.clone(), turn: sender });
        self.admit();
        Ticket { id: id.clone(), turn, queue: self.clone() }
    }

    /// How many builds are before this one; `None` when it does not wait.
    pub(super) fn position(&self, id: &VersionId) -> Option<u32> {
        let state = self.lock();
        let position = state.order().into_iter().position(|index| state.waiting[index].id == *id)?;
        u32::try_from(position).ok()
    }

    /// Gives turns to all who can have one.
    fn admit(&self) {
        while let Some((sender, turn)) = self.next() {
            // Not under the lock: a turn that nobody takes is given back at once.
            let _ = sender.send(turn);
        }
    }

    fn next(&self) -> Option<(oneshot::Sender<Turn>, Turn)> {
        let mut state = self.lock();
        if state.running.len() >= self.at_once {
            return None;
        }
        let is_free = |index: &usize| !state.running.contains(&state.waiting[*index].team);
        let index = state.order().into_iter().find(is_free)?;
        let Waiting { team, turn, .. } = state.waiting.remove(index);
        state.running.push(team.clone());
        state.turns += 1;
        let turns = state.turns;
        state.served.insert(team.clone(), turns);
        Some((turn, Turn { team, queue: self.clone() }))
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets of the teams whose last turn was longest ago, when there are many.
    fn forget_some(&mut self) {
        if self.served.len() > MOST_SERVED {
            let before = self.turns.saturating_sub(MOST_SERVED as u64 / 2);
            self.served.retain(|_, turn| *turn > before);
        }
    }

    /// Indices of those that wait, in the order of their turns: by how many of its team each has to let pass, then by when its
    /// team had a turn last, then by when it came.
    fn order(&self) -> Vec<usize> {
        let mut rounds: HashMap<&TeamId, usize> = HashMap::new();
        for team in &self.running {
            *rounds.entry(team).or_default() += 1;
        }
        let mut order: Vec<(usize, u64, usize)> = Vec::new();
        for (index, waiting) in self.waiting.iter().enumerate() {
            let round = rounds.entry(&waiting.team).or_default();
            order.push((*round, self.served.get(&waiting.team).copied().unwrap_or_default(), index));
            *round += 1;
        }
        order.sort_unstable();
        order.into_iter().map(|(.., index)| index).collect()
    }
}

impl Ticket {
    /// Waits for the turn. May be dropped and called again.
    pub(super) async fn turn(&mut self) -> Turn {
        match (&mut self.turn).await {
            Ok(turn) => turn,
            // The sender goes with the place in the queue, which is this one's.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.lock().waiting.retain(|waiting| waiting.id != self.id);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(index) = state.running.iter().position(|team| *team == self.team) {
            state.running.swap_remove(index);
        }
        state.forget_some();
        drop(state);
        self.queue.admit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    struct Line {
        queue: Queue,
        tickets: HashMap<&'static str, Ticket>,
    }

    impl Line {
        /// Builds of these teams, called by the team and a number: `a1`, `b1`.
        fn new(at_once: usize, names: &[&'static str]) -> Self {
            let queue = Queue::new(at_once);
            let tickets =
                names.iter().map(|name| (*name, queue.enter(&VersionId::from(*name), &name[..1].into()))).collect();
            Self { queue, tickets }
        }

        fn turn(&mut self, name: &str) -> Option<Turn> {
            self.tickets.get_mut(name).unwrap().turn().now_or_never()
        }

        fn position(&self, name: &str) -> Option<u32> {
            self.queue.position(&name.into())
        }
    }

    #[test]
    fn teams_take_turns_and_each_has_one_machine() {
        let mut line = Line::new(2, &["a1", "a2", "a3", "b1", "b2", "c1"]);

        let [a1, b1] = ["a1", "b1"].map(|name| line.turn(name).unwrap());
        assert_eq!(["c1", "a2", "b2", "a3"].map(|name| line.position(name).unwrap()), [0, 1, 2, 3]);
        assert_eq!(line.position("a1"), None);
        drop(a1);
        let c1 = line.turn("c1").unwrap();
        assert!(line.turn("a2").is_none());
        drop(b1);
        let a2 = line.turn("a2").unwrap();
        drop(c1);
        assert!(line.turn("b2").is_some() && line.turn("a3").is_none());
        drop(a2);
        assert!(line.turn("a3").is_some());
    }

    #[test]
    fn teams_that_come_again_and_again_do_not_pass_one_that_waits() {
        let mut line = Line::new(1, &["b1", "b2", "a1", "c1"]);
        drop(line.turn("b1").unwrap());
        drop(line.turn("a1").unwrap());
        let c1 = line.turn("c1").unwrap();
        let a2 = line.queue.enter(&"a2".into(), &"a".into());
        drop(c1);

        assert!(line.turn("b2").is_some(), "`a` had a turn since `b` had one");
        drop(a2);
    }

    #[test]
    fn of_many_teams_those_of_long_ago_are_forgotten() {
        let queue = Queue::new(1);
        for team in 0..=MOST_SERVED {
            let name = team.to_string();
            drop(queue.enter(&name.as_str().into(), &name.as_str().into()).turn().now_or_never().unwrap());
        }
        let served = &queue.lock().served;
        assert!(
            served.len() <= MOST_SERVED / 2 && served.contains_key(&TeamId::from(MOST_SERVED.to_string().as_str()))
        );
    }

    #[test]
    fn who_leaves_the_queue_holds_up_nobody() {
        let mut line = Line::new(1, &["a1", "b1", "c1"]);
        line.tickets.remove("b1");
        assert_eq!(line.position("c1"), Some(0));
        // Its turn has come, and it never learned of it.
        line.tickets.remove("a1");
        assert!(line.turn("c1").is_some());
    }
}
