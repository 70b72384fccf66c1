//! Who has which volume.
//!
//! * A **claim** ([`claims`]) is what this agent lives by: one for each volume, taken before anything is done with it. A sandbox
//!   has one from the moment its start begins until its monitor has let go of the disk and its record says so, or the monitor
//!   is gone; so has a machine of the agent's own, and whoever deletes the volume.
//! * The volume's **record** ([`sandpiper_images::volumes`]) says which sandbox has it, from before the monitor is given a
//!   descriptor until after it has closed it. The next agent takes up claims from it ([`Volumes::reconcile`]): those of
//!   sandboxes that live, or of which nobody can tell. A record that names any other sandbox is put right: its monitor is dead.
//!   Machines of the agent's own need no record, since the next agent kills them before it does anything else.
//!
//! So a volume is either a live sandbox's or free, wherever the agent is killed, and never two have it. The kernel sees to that
//! too, by a lock on the file that a monitor writes to, should one have outlived all that was done to end it.

mod claims;

use std::collections::HashSet;
use std::io;

use sandpiper_durable::Interrupted;
use sandpiper_images::volumes as images;
use sandpiper_machine::control::RequestError;
use sandpiper_protocol::ids::{SandboxId, VolumeId};

pub(crate) use self::claims::{Claim, Claims, Holder};

/// The volumes of this host. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Volumes {
    pub(crate) store: images::Volumes,
    pub(crate) claims: Claims,
}

/// Why something was not done with a volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("There is no volume {0} on this host")]
    Missing(VolumeId),
    #[error("The volume {0} is attached to another live sandbox; pause or delete that one first")]
    Attached(VolumeId),
    #[error("{0}")]
    Busy(String),
    /// Of a machine that goes on with its memory; a boot from its disk has all slots.
    #[error("Its programs still hold volumes that were taken from them, and leave no slot for the others")]
    NoSlot,
    /// What is on it cannot be used.
    #[error("{0}")]
    Damaged(String),
    /// It cannot be mounted where it is to be.
    #[error("{0}")]
    Place(String),
    /// No room for a machine that works with it.
    #[error("{0}")]
    Unavailable(String),
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error("The monitor could not attach the volume")]
    Monitor(#[source] RequestError),
}

impl From<images::AttachError> for VolumeError {
    fn from(error: images::AttachError) -> Self {
        match error {
            images::AttachError::Missing(id) => Self::Missing(id),
            error @ images::AttachError::InUse(_) => Self::Busy(error.to_string()),
            error => Self::Host { what: "open the volume's files", source: io::Error::other(error) },
        }
    }
}

impl From<Interrupted> for VolumeError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Host { what: "work with the volume", source: interrupted.into() }
    }
}

impl Volumes {
    pub(crate) fn new(store: images::Volumes) -> Self {
        Self { store, claims: Claims::default() }
    }

    /// Takes up the claims of `live` sandboxes, and has every other record say that nobody has its volume. What `unreadable`
    /// sandboxes have stays theirs: their monitors may run. Blocks.
    pub(crate) fn reconcile(&self, live: &HashSet<SandboxId>, unreadable: &HashSet<String>) {
        for record in self.store.list() {
            let Some(sandbox) = record.attached_to.clone() else { continue };
            if live.contains(&sandbox) || unreadable.contains(sandbox.as_str()) {
                self.claims.note(&record.id, Holder::Sandbox(sandbox));
                continue;
            }
            tracing::info!(
                volume = record.id.as_str(),
                sandbox = sandbox.as_str(),
                "a volume of a machine that is gone is free"
            );
            if let Err(error) = self.store.detach(&record.id) {
                tracing::warn!(volume = record.id.as_str(), %error, "cannot write down that a volume is free; it is all the same");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn open(folder: &Path) -> Volumes {
        Volumes::new(images::Volumes::open(folder).unwrap())
    }

    /// A volume that a sandbox has, as its record says.
    fn attached(volumes: &Volumes) -> (VolumeId, SandboxId) {
        let (id, sandbox) = (VolumeId::generate(), SandboxId::generate());
        volumes.store.create(&volumes.store.draft(&id, 1).unwrap()).unwrap();
        let blank = volumes.store.blank(1, "ver1");
        if !blank.exists() {
            volumes.store.publish_blank(&volumes.store.draft_blank(1).unwrap(), &blank).unwrap();
        }
        volumes.store.attach(&id, Some(&sandbox), &blank).unwrap();
        (id, sandbox)
    }

    #[test]
    fn what_a_live_sandbox_has_stays_its_own_and_what_a_dead_one_had_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let before = open(folder.path());
        let [living, lost, dead] = [(); 3].map(|()| attached(&before));

        let volumes = open(folder.path());
        volumes.reconcile(&[living.1.clone()].into(), &[lost.1.to_string()].into());

        for (id, sandbox) in [living, lost] {
            assert_eq!(volumes.claims.holder(&id), Some(Holder::Sandbox(sandbox.clone())));
            assert_eq!(volumes.store.find(&id).unwrap().attached_to, Some(sandbox));
        }
        assert_eq!(volumes.claims.holder(&dead.0), None);
        assert_eq!(open(folder.path()).store.find(&dead.0).unwrap().attached_to, None);
    }
}
