//! How many machines this host takes, and how much memory they may use together; and how much of that each team.
//!
//! Every machine holds a [`Reservation`] from before its first file exists until its process is gone. A stopped or failed sandbox
//! holds none. Idle monitors hold none either: nothing has touched their memory. With a sandbox's memory counts what the
//! agent holds for its connections ([`AGENT_MB`]).
//!
//! Whoever has a machine start, the API process or a request that wakes a sandbox, it reserves here: host and team are
//! counted in one step, so that no two of them pass the limit together. The team's part is given back as soon as the sandbox
//! is stopped, which is when the API process stops counting it.

mod allowances;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpiper_network::names;
use sandpiper_protocol::agent::Amounts;
use sandpiper_protocol::ids::TeamId;

pub(crate) use self::allowances::Allowances;
use crate::config::Limits;

/// What the agent's proxies guarantee each sandbox of the agent's own memory.
pub(crate) const AGENT_MB: u64 = (sandpiper_ingress::SANDBOX_KIB as u64 + names::SANDBOX_KIB as u64).div_ceil(1024);

/// The host's capacity. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    limits: Limits,
    memory_total_mb: u64,
    allowances: Allowances,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    sandboxes: u32,
    memory_mb: u64,
    teams: HashMap<TeamId, Amounts>,
}

/// What the machine of a sandbox needs.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    /// Whom it is counted with; nobody, where that was never said.
    pub(crate) team: Option<TeamId>,
    pub(crate) cpu: u32,
    pub(crate) memory_mb: u32,
}

/// What one machine holds; given back when the last clone is dropped. Whoever starts a machine has one, and so has the
/// machine: another attempt needs no new one.
#[derive(Debug, Clone)]
pub(crate) struct Reservation(Arc<Reserved>);

#[derive(Debug)]
struct Reserved {
    held: Arc<Mutex<Held>>,
    sandboxes: u32,
    memory_mb: u64,
    share: Mutex<Option<Share>>,
}

/// What it holds of what its team may hold; given back when dropped.
#[derive(Debug)]
struct Share {
    held: Arc<Mutex<Held>>,
    team: TeamId,
    amounts: Amounts,
}

/// Why nothing is reserved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Full {
    #[error("{0}")]
    Host(String),
    #[error("The operator of this host has disabled the team; ask them to enable it")]
    Disabled,
    #[error(
        "The team's quota of {} sandboxes, {} CPUs and {} MiB of memory has no room for this; pause or delete another \
         sandbox",
        .0.sandboxes, .0.cpu, .0.memory_mb
    )]
    Team(Amounts),
}

impl Capacity {
    pub(crate) fn new(limits: Limits, memory_total_mb: u64, allowances: Allowances) -> Self {
        Self { limits, memory_total_mb, allowances, held: Arc::default() }
    }

    /// Reserves for the machine of one more sandbox, or says what to do to make that possible.
    pub(crate) fn reserve(&self, demand: &Demand) -> Result<Reservation, Full> {
        let mut held = lock(&self.held);
        if demand.team.as_ref().is_some_and(|team| self.allowances.is_disabled(team)) {
            return Err(Full::Disabled);
        }
        let quota = demand.team.as_ref().and_then(|team| self.allowances.quota(team));
        if let (Some(team), Some(quota)) = (&demand.team, quota) {
            let before = held.teams.get(team).copied().unwrap_or_default();
            before.plus(amounts(demand), quota).ok_or(Full::Team(quota))?;
        }
        let most = self.limits.max_sandboxes;
        if held.sandboxes >= most {
            return Err(Full::Host(format!("This host runs {most} sandboxes, its maximum; delete or pause some")));
        }
        let usable = self.usable_mb();
        let needed = u64::from(demand.memory_mb) + AGENT_MB;
        if held.memory_mb + needed > usable {
            return Err(Full::Host(format!(
                "{needed} MiB of memory are needed, {AGENT_MB} of them for its connections, {} of {usable} MiB are free on \
                 this host; delete or pause sandboxes",
                usable.saturating_sub(held.memory_mb)
            )));
        }
        Ok(self.hold_for(&mut held, demand))
    }

    /// The reservation of a sandbox whose machine an earlier agent started.
    pub(crate) fn occupy(&self, demand: &Demand) -> Reservation {
        self.hold_for(&mut lock(&self.held), demand)
    }

    /// Memory for a machine of the agent's own, which is no sandbox; `None` when there is none to spare.
    pub(crate) fn spare(&self, memory_mb: u32) -> Option<Reservation> {
        let mut held = lock(&self.held);
        let fits = held.memory_mb + u64::from(memory_mb) <= self.usable_mb();
        fits.then(|| self.hold(&mut held, 0, memory_mb.into(), None))
    }

    /// Memory for which [`Self::spare`] would be given a reservation.
    pub(crate) fn spare_mb(&self) -> u64 {
        self.usable_mb().saturating_sub(lock(&self.held).memory_mb)
    }

    /// Sandboxes that hold a reservation.
    pub(crate) fn sandboxes(&self) -> u32 {
        lock(&self.held).sandboxes
    }

    /// Memory of all machines together.
    pub(crate) fn usable_mb(&self) -> u64 {
        self.memory_total_mb.saturating_sub(self.limits.memory_headroom_mb)
    }

    fn hold_for(&self, held: &mut Held, demand: &Demand) -> Reservation {
        let share = demand.team.clone().map(|team| {
            let amounts = amounts(demand);
            let sum = held.teams.entry(team.clone()).or_default();
            sum.sandboxes += amounts.sandboxes;
            sum.cpu += amounts.cpu;
            sum.memory_mb += amounts.memory_mb;
            Share { held: Arc::clone(&self.held), team, amounts }
        });
        self.hold(held, 1, u64::from(demand.memory_mb) + AGENT_MB, share)
    }

    fn hold(&self, held: &mut Held, sandboxes: u32, memory_mb: u64, share: Option<Share>) -> Reservation {
        held.sandboxes += sandboxes;
        held.memory_mb += memory_mb;
        let share = Mutex::new(share);
        Reservation(Arc::new(Reserved { held: Arc::clone(&self.held), sandboxes, memory_mb, share }))
    }
}

fn amounts(demand: &Demand) -> Amounts {
    Amounts { sandboxes: 1, cpu: demand.cpu, memory_mb: demand.memory_mb.into() }
}

impl Reservation {
    /// That of a machine which is not counted.
    pub(crate) fn of_nothing() -> Self {
        let (held, share) = (Arc::default(), Mutex::default());
        Self(Arc::new(Reserved { held, sandboxes: 0, memory_mb: 0, share }))
    }

    /// Counts no longer with the team: the sandbox is stopped, only its machine is still there.
    pub(crate) fn leave_team(&self) {
        let share = lock(&self.0.share).take();
        drop(share);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        held.sandboxes = held.sandboxes.saturating_sub(self.sandboxes);
        held.memory_mb = held.memory_mb.saturating_sub(self.memory_mb);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        let Some(sum) = held.teams.get_mut(&self.team) else { return };
        sum.sandboxes = sum.sandboxes.saturating_sub(self.amounts.sandboxes);
        sum.cpu = sum.cpu.saturating_sub(self.amounts.cpu);
        sum.memory_mb = sum.memory_mb.saturating_sub(self.amounts.memory_mb);
        if sum.sandboxes == 0 {
            held.teams.remove(&self.team);
        }
    }
}

/// The data under these locks is changed in one step, so it is whole even after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::agent::Allowance;

    /// For two sandboxes at most, with room for three of team `acme` in CPUs and for 1,000 MiB of it.
    fn capacity() -> Capacity {
        let folder = tempfile::tempdir().unwrap();
        let allowances = Allowances::open(&folder.path().join("allowances.json")).unwrap();
        let quota = Amounts { sandboxes: 2, cpu: 3, memory_mb: 1000 };
        let allowance =
            Allowance { team: "acme".into(), quota, disk: <_>::default(), network: <_>::default(), disabled: false };
        allowances.take(vec![allowance]).unwrap();
        let limits = Limits { max_sandboxes: 2, memory_headroom_mb: 100, ..Limits::default() };
        Capacity::new(limits, 1124 + 2 * AGENT_MB, allowances)
    }

    fn nobodys(memory_mb: u32) -> Demand {
        Demand { team: None, cpu: 1, memory_mb }
    }

    fn of_acme(memory_mb: u32) -> Demand {
        Demand { team: Some("acme".into()), ..nobodys(memory_mb) }
    }

    #[test]
    fn a_place_is_given_back_when_its_machine_is_gone() {
        let capacity = capacity();
        let first = capacity.reserve(&nobodys(800)).unwrap();
        assert!(capacity.reserve(&nobodys(400)).unwrap_err().to_string().contains("233 of 1042 MiB"));
        drop(first);
        let _second = capacity.reserve(&nobodys(400)).unwrap();
        let _third = capacity.reserve(&nobodys(400)).unwrap();
        assert!(capacity.reserve(&nobodys(1)).unwrap_err().to_string().contains("its maximum"));
        assert_eq!(capacity.sandboxes(), 2);
    }

    #[test]
    fn what_an_attempt_gives_back_is_still_held_for_the_next_one() {
        let capacity = capacity();
        let reservation = capacity.reserve(&nobodys(800)).unwrap();
        let attempt = reservation.clone();
        drop(attempt);
        assert_eq!(capacity.sandboxes(), 1);
        drop(reservation);
        assert_eq!(capacity.sandboxes(), 0);
    }

    #[test]
    fn a_machine_of_the_agents_own_takes_memory_and_is_no_sandbox() {
        let capacity = capacity();
        let _running = capacity.occupy(&nobodys(700));
        let spare = capacity.spare(333).unwrap();
        assert!(capacity.spare(1).is_none() && capacity.reserve(&nobodys(1)).is_err());
        drop(spare);
        assert_eq!(capacity.sandboxes(), 1);
        capacity.reserve(&nobodys(324)).unwrap();
    }

    #[test]
    fn a_team_holds_no_more_than_it_may_and_nobody_elses_share() {
        let capacity = capacity();
        let first = capacity.reserve(&of_acme(600)).unwrap();
        let refused = capacity.reserve(&of_acme(401)).unwrap_err();
        assert!(matches!(refused, Full::Team(_)) && refused.to_string().contains("1000 MiB"), "{refused}");
        let refused = capacity.reserve(&Demand { cpu: 3, ..of_acme(1) }).unwrap_err();
        assert!(matches!(refused, Full::Team(_)), "{refused}");
        drop(capacity.reserve(&Demand { team: Some("rival".into()), ..nobodys(401) }).unwrap());

        first.leave_team();

        capacity.reserve(&of_acme(401)).expect("of the first, only the machine is still there");
    }

    #[test]
    fn what_runs_counts_although_it_is_more_than_the_team_may_hold() {
        let capacity = capacity();
        let adopted = capacity.occupy(&of_acme(1001));
        assert!(matches!(capacity.reserve(&of_acme(1)).unwrap_err(), Full::Team(_)));
        drop(adopted);
        capacity.reserve(&of_acme(1)).unwrap();
    }
}
