//! Which machines wait, and how many of each kind should.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::Kind;

/// As many wait of a kind as were claimed within this.
const WINDOW: Duration = Duration::from_secs(60);

/// The machines that wait, by kind.
pub(super) struct Lot<M> {
    bays: Vec<Bay<M>>,
    most: usize,
    /// How long one stays for a kind that nobody claims any more.
    keep: Duration,
}

struct Bay<M> {
    kind: Kind,
    machines: Vec<M>,
    /// When one was claimed, whether or not there was one: the last [`Lot::most`] times.
    claims: VecDeque<Instant>,
}

impl<M> Lot<M> {
    /// For `most` machines at the same time.
    pub(super) fn new(most: usize, keep: Duration) -> Self {
        Self { bays: Vec::new(), most, keep }
    }

    /// A machine of this kind, if one waits; from now on that many do.
    pub(super) fn claim(&mut self, kind: &Kind, now: Instant) -> Option<M> {
        let most = self.most;
        let bay = self.bay(kind);
        bay.claims.push_back(now);
        while bay.claims.len() > most {
            bay.claims.pop_front();
        }
        bay.machines.pop()
    }

    pub(super) fn park(&mut self, kind: &Kind, machine: M) {
        self.bay(kind).machines.push(machine);
    }

    fn bay(&mut self, kind: &Kind) -> &mut Bay<M> {
        let index = self.bays.iter().position(|bay| bay.kind == *kind).unwrap_or_else(|| {
            self.bays.push(Bay { kind: kind.clone(), machines: Vec::new(), claims: VecDeque::new() });
            self.bays.len() - 1
        });
        &mut self.bays[index]
    }

    /// The kind that was claimed last of those that have fewer machines than they should, where `spare_mb` of memory are free.
    pub(super) fn lacking(&self, now: Instant, spare_mb: u64) -> Option<Kind> {
        let mut shares = self.shares(now, spare_mb).into_iter();
        let (index, _) = shares.find(|(index, share)| self.bays[*index].machines.len() < *share)?;
        Some(self.bays[index].kind.clone())
    }

    /// Takes out those that are more than there should be, and forgets kinds that nobody claims any more.
    pub(super) fn take_surplus(&mut self, now: Instant, spare_mb: u64) -> Vec<M> {
        let mut surplus = Vec::new();
        for (index, share) in self.shares(now, spare_mb) {
            let machines = &mut self.bays[index].machines;
            surplus.extend(machines.drain(share.min(machines.len())..));
        }
        let keep = self.keep;
        self.bays.retain(|bay| !bay.machines.is_empty() || bay.wanted(now, keep) > 0);
        surplus
    }

    /// Takes out all of the kinds of which `which` is true, and forgets these.
    pub(super) fn take_kinds(&mut self, which: impl Fn(&Kind) -> bool) -> Vec<M> {
        let bays = self.bays.extract_if(.., |bay| which(&bay.kind));
        bays.flat_map(|bay| bay.machines).collect()
    }

    /// Takes out those of which `which` is true.
    pub(super) fn take(&mut self, mut which: impl FnMut(&mut M) -> bool) -> Vec<M> {
        self.bays.iter_mut().flat_map(|bay| bay.machines.extract_if(.., &mut which).collect::<Vec<_>>()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.bays.iter().map(|bay| bay.machines.len()).sum()
    }

    /// How many machines each bay should have, by its index. The one that was claimed last comes first, and is served first.
    fn shares(&self, now: Instant, spare_mb: u64) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..self.bays.len()).collect();
        order.sort_by_key(|index| Reverse(self.bays[*index].claims.back().copied()));
        let (mut places, mut memory_mb) = (self.most, spare_mb);
        let share = |index: usize| {
            let bay = &self.bays[index];
            let each_mb = u64::from(bay.kind.memory_mb).max(1);
            let fitting = usize::try_from(memory_mb / each_mb).unwrap_or(usize::MAX);
            let share = bay.wanted(now, self.keep).min(places).min(fitting);
            places -= share;
            memory_mb -= each_mb * share as u64;
            (index, share)
        };
        order.into_iter().map(share).collect()
    }
}

impl<M> Bay<M> {
    fn wanted(&self, now: Instant, keep: Duration) -> usize {
        let since = |claim: &Instant| now.saturating_duration_since(*claim);
        let recent = self.claims.iter().filter(|claim| since(claim) < WINDOW).count();
        let is_kept = self.claims.back().is_some_and(|last| since(last) < keep);
        recent.max(usize::from(is_kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(600);
    const PLENTY: u64 = 1 << 20;

    fn kind(warm: &str) -> Kind {
        Kind { warm: warm.to_owned(), memory_mb: 512, net_limits: <_>::default(), disk_limits: <_>::default() }
    }

    /// Parks as many as should be, each with a number of its own.
    fn fill(lot: &mut Lot<u32>, now: Instant, spare_mb: u64) -> usize {
        let before = lot.count();
        while let Some(kind) = lot.lacking(now, spare_mb) {
            lot.park(&kind, u32::try_from(lot.count()).unwrap());
        }
        lot.count() - before
    }

    #[test]
    fn as_many_wait_as_were_claimed_within_a_minute_and_one_stays() {
        let (mut lot, start) = (Lot::new(8, KEEP), Instant::now());
        assert_eq!(fill(&mut lot, start, PLENTY), 0);
        for _ in 0..3 {
            assert_eq!(lot.claim(&kind("a"), start), None);
        }
        assert_eq!(fill(&mut lot, start, PLENTY), 3);
        assert!(lot.claim(&kind("a"), start).is_some());
        assert_eq!(fill(&mut lot, start, PLENTY), 2);

        assert_eq!(lot.take_surplus(start + WINDOW, PLENTY).len(), 3);
        assert_eq!(lot.count(), 1);
        assert_eq!(lot.take_surplus(start + KEEP, PLENTY).len(), 1);
        assert!(lot.bays.is_empty());
    }

    #[test]
    fn the_kind_that_was_claimed_last_comes_first_where_not_all_have_a_place() {
        let (mut lot, start) = (Lot::new(4, KEEP), Instant::now());
        for (second, name) in ["a", "a", "a", "b", "b"].into_iter().enumerate() {
            lot.claim(&kind(name), start + Duration::from_secs(second as u64));
        }
        assert_eq!(fill(&mut lot, start, PLENTY), 4);
        let waiting =
            |lot: &Lot<u32>, name: &str| lot.bays.iter().find(|bay| bay.kind == kind(name)).unwrap().machines.len();
        assert_eq!((waiting(&lot, "a"), waiting(&lot, "b")), (2, 2));

        lot.claim(&kind("c"), start + Duration::from_secs(9));
        assert_eq!(lot.take_surplus(start, PLENTY).len(), 1);
        assert_eq!(fill(&mut lot, start, PLENTY), 1);
        assert_eq!((waiting(&lot, "a"), waiting(&lot, "b"), waiting(&lot, "c")), (1, 2, 1));
    }

    #[test]
    fn none_waits_for_which_there_would_be_no_memory() {
        let (mut lot, start) = (Lot::new(8, KEEP), Instant::now());
        for _ in 0..3 {
            lot.claim(&kind("a"), start);
        }
        assert_eq!(fill(&mut lot, start, 1100), 2);
        assert_eq!(lot.take_surplus(start, 1023).len(), 1);
        assert_eq!(lot.take_surplus(start, 0).len(), 1);
    }

    #[test]
    fn without_a_place_nothing_waits_and_nothing_is_remembered() {
        let (mut lot, start) = (Lot::<u32>::new(0, KEEP), Instant::now());
        assert_eq!(lot.claim(&kind("a"), start), None);
        assert_eq!(lot.lacking(start, PLENTY), None);
        lot.take_surplus(start, PLENTY);
        assert!(lot.bays.is_empty());
    }

    #[test]
    fn a_kind_that_cannot_be_made_any_more_is_forgotten() {
        let (mut lot, start) = (Lot::new(8, KEEP), Instant::now());
        lot.claim(&kind("a"), start);
        lot.claim(&kind("b"), start);
        fill(&mut lot, start, PLENTY);
        assert_eq!(lot.take_kinds(|one| *one == kind("a")).len(), 1);
        assert_eq!((lot.count(), lot.lacking(start, PLENTY)), (1, None));
        assert_eq!(lot.take(|_| true).len(), 1);
    }
}
