//! One claim for each volume, in this agent's memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpiper_protocol::ids::{SandboxId, VolumeId};

/// Who has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    Sandbox(SandboxId),
    /// A machine of the agent's own.
    Helper,
    /// It is being deleted.
    Deletion,
    /// A machine of the agent's own that could not be ended: it may still write. So it stays until the next agent.
    Stuck,
}

/// Who has which volume. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims {
    holders: Arc<Mutex<HashMap<VolumeId, Holder>>>,
}

/// The volume is whoever's this is; free when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    volume: VolumeId,
    claims: Claims,
}

impl Claims {
    /// Takes a volume.
    ///
    /// # Errors
    /// Who has it.
    pub(crate) fn take(&self, volume: &VolumeId, holder: Holder) -> Result<Claim, Holder> {
        let mut holders = self.lock();
        match holders.get(volume) {
            Some(other) => Err(other.clone()),
            None => {
                holders.insert(volume.clone(), holder);
                Ok(Claim { volume: volume.clone(), claims: self.clone() })
            }
        }
    }

    /// Notes who has a volume since an earlier agent.
    pub(crate) fn note(&self, volume: &VolumeId, holder: Holder) {
        self.lock().insert(volume.clone(), holder);
    }

    /// The claim that was [noted](Self::note) for `sandbox`, if it was.
    pub(crate) fn take_up(&self, volume: &VolumeId, sandbox: &SandboxId) -> Option<Claim> {
        let is_its_own = self.holder(volume) == Some(Holder::Sandbox(sandbox.clone()));
        is_its_own.then(|| Claim { volume: volume.clone(), claims: self.clone() })
    }

    pub(crate) fn holder(&self, volume: &VolumeId) -> Option<Holder> {
        self.lock().get(volume).cloned()
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    pub(crate) fn volume(&self) -> &VolumeId {
        &self.volume
    }

    /// Leaves the volume for good to whom it was claimed for, a machine that cannot be ended.
    pub(crate) fn abandon(self) {
        if let Some(holder @ Holder::Helper) = self.claims.lock().get_mut(&self.volume) {
            *holder = Holder::Stuck;
        }
        std::mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_who_want_a_volume_one_has_it_until_it_lets_go() {
        let (claims, volume) = (Claims::default(), VolumeId::generate());
        let take = || claims.take(&volume, Holder::Sandbox(SandboxId::generate()));
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(take)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
        });
        assert_eq!(taken.len(), 1);
        assert!(claims.take(&volume, Holder::Deletion).is_err());

        drop(taken);

        assert_eq!(claims.holder(&volume), None);
        let _deletion = claims.take(&volume, Holder::Deletion).unwrap();
        assert!(matches!(take(), Err(Holder::Deletion)));
    }
}
