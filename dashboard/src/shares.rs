//! Of what costs memory and connections for as long as it is open, so much for each team and so much for all together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is open now; cheap to clone.
#[derive(Debug, Clone)]
pub struct Shares {
    most_of_team: usize,
    most: usize,
    open: Arc<Mutex<Open>>,
}

/// How many each team has open; none that has none.
type Open = HashMap<String, usize>;

/// The place of one, for as long as it is open.
#[derive(Debug)]
pub struct Place {
    team: String,
    open: Arc<Mutex<Open>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Entry::Occupied(mut of_team) = open.entry(std::mem::take(&mut self.team)) {
            *of_team.get_mut() -= 1;
            if *of_team.get() == 0 {
                of_team.remove();
            }
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    /// None open yet.
    pub fn new(most_of_team: usize, most: usize) -> Self {
        Self { most_of_team, most, open: Arc::default() }
    }

    /// A place for one more of a team; `None` while there are too many.
    pub fn place(&self, team: &str) -> Option<Place> {
        let mut open = lock(&self.open);
        let of_team = open.get(team).copied().unwrap_or(0);
        if of_team >= self.most_of_team || open.values().sum::<usize>() >= self.most {
            return None;
        }
        open.insert(team.to_owned(), of_team + 1);
        Some(Place { team: team.to_owned(), open: Arc::clone(&self.open) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_has_so_many_at_a_time_and_leaves_others_theirs() {
        let shares = Shares::new(2, 5);
        let mut places: Vec<_> = (0..2).map(|_| shares.place("one").unwrap()).collect();
        assert!(shares.place("one").is_none());
        let other = shares.place("two").unwrap();
        places.pop();
        let again = shares.place("one").unwrap();
        drop((places, other, again));
        assert!(lock(&shares.open).is_empty());

        let all: Vec<_> = (0..5).map(|n| shares.place(&format!("team{n}")).unwrap()).collect();
        assert!(shares.place("one more").is_none());
        drop(all);
        assert!(shares.place("one more").is_some());
    }
}
