//! How many machines this host takes, and how much memory they may use together.
//!
//! Every machine holds a [`Place`] from before its first file exists until its process is gone. A stopped or failed sandbox
//! holds none. Waiting shells hold none either: nothing has touched their memory. With a sandbox's memory counts what the
//! agent holds for its connections ([`AGENT_MB`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpiper_network::names;

use crate::config::Limits;

/// What the agent's proxies guarantee each sandbox of the agent's own memory.
pub(crate) const AGENT_MB: u64 = (sandpiper_ingress::SANDBOX_KIB as u64 + names::SANDBOX_KIB as u64).div_ceil(1024);

/// The host's places. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    limits: Limits,
    memory_total_mb: u64,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    sandboxes: u32,
    memory_mb: u64,
}

/// What one machine holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    held: Arc<Mutex<Held>>,
    sandboxes: u32,
    memory_mb: u64,
}

impl Capacity {
    pub(crate) fn new(limits: Limits, memory_total_mb: u64) -> Self {
        Self { limits, memory_total_mb, held: Arc::default() }
    }

    /// A place for one more sandbox, or what to do to get one.
    pub(crate) fn reserve(&self, memory_mb: u32) -> Result<Place, String> {
        let mut held = lock(&self.held);
        let most = self.limits.max_sandboxes;
        if held.sandboxes >= most {
            return Err(format!("This host runs {most} sandboxes, its maximum; delete or pause some"));
        }
        let usable = self.usable_mb();
        let needed = u64::from(memory_mb) + AGENT_MB;
        if held.memory_mb + needed > usable {
            return Err(format!(
                "{needed} MiB of memory are needed, {AGENT_MB} of them for its connections, {} of {usable} MiB are free on \
                 this host; delete or pause sandboxes",
                usable.saturating_sub(held.memory_mb)
            ));
        }
        Ok(self.hold(&mut held, 1, needed))
    }

    /// The place of a sandbox that an earlier agent started.
    pub(crate) fn occupy(&self, memory_mb: u32) -> Place {
        self.hold(&mut lock(&self.held), 1, u64::from(memory_mb) + AGENT_MB)
    }

    /// Memory for a machine of the agent's own, which is no sandbox; `None` when there is none to spare.
    pub(crate) fn spare(&self, memory_mb: u32) -> Option<Place> {
        let mut held = lock(&self.held);
        let fits = held.memory_mb + u64::from(memory_mb) <= self.usable_mb();
        fits.then(|| self.hold(&mut held, 0, memory_mb.into()))
    }

    /// Sandboxes that hold a place.
    pub(crate) fn sandboxes(&self) -> u32 {
        lock(&self.held).sandboxes
    }

    fn usable_mb(&self) -> u64 {
        self.memory_total_mb.saturating_sub(self.limits.memory_headroom_mb)
    }

    fn hold(&self, held: &mut Held, sandboxes: u32, memory_mb: u64) -> Place {
        held.sandboxes += sandboxes;
        held.memory_mb += memory_mb;
        Place { held: Arc::clone(&self.held), sandboxes, memory_mb }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        held.sandboxes = held.sandboxes.saturating_sub(self.sandboxes);
        held.memory_mb = held.memory_mb.saturating_sub(self.memory_mb);
    }
}

/// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity() -> Capacity {
        let limits = Limits { max_sandboxes: 2, memory_headroom_mb: 100, ..Limits::default() };
        Capacity::new(limits, 1124 + 2 * AGENT_MB)
    }

    #[test]
    fn a_place_is_given_back_when_its_machine_is_gone() {
        let capacity = capacity();
        let first = capacity.reserve(800).unwrap();
        assert!(capacity.reserve(400).unwrap_err().contains("233 of 1042 MiB"));
        drop(first);
        let _second = capacity.reserve(400).unwrap();
        let _third = capacity.reserve(400).unwrap();
        assert!(capacity.reserve(1).unwrap_err().contains("its maximum"));
        assert_eq!(capacity.sandboxes(), 2);
    }

    #[test]
    fn a_machine_of_the_agents_own_takes_memory_and_is_no_sandbox() {
        let capacity = capacity();
        let _running = capacity.occupy(700);
        let spare = capacity.spare(333).unwrap();
        assert!(capacity.spare(1).is_none() && capacity.reserve(1).is_err());
        drop(spare);
        assert_eq!(capacity.sandboxes(), 1);
        capacity.reserve(324).unwrap();
    }
}
