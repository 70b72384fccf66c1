//! The volumes of a machine: claimed before it is launched, attached once its monitor runs it, released once that has let go of
//! them or is gone.

use std::os::fd::AsFd;
use std::path::PathBuf;

use sandpiper_durable as durable;
use sandpiper_images::volumes::Disk;
use sandpiper_machine::Machine;
use sandpiper_protocol::guest::GuestMount;
use sandpiper_protocol::ids::SandboxId;
use sandpiper_protocol::vmm::{DiskConfig, DiskLimits};

use crate::volumes::{Claim, VolumeError, Volumes};

/// A serial number has at most so many characters.
const SERIAL: usize = 20;

/// The volumes of one machine.
#[derive(Debug)]
pub(crate) struct Attachments {
    volumes: Volumes,
    /// Each with the slot that it is in.
    claims: Vec<(Claim, GuestMount)>,
    /// Written into their records; a machine of the agent's own has none.
    sandbox: Option<SandboxId>,
    /// What a volume stands on that was never attached before.
    blank: PathBuf,
    limits: DiskLimits,
    /// Their disks, one for each claim or none, until the monitor has them.
    opened: Vec<Disk>,
    /// The guest can have them mounted.
    are_attached: bool,
}

impl Attachments {
    /// What a machine is to have, none of it attached yet, each disk no faster than `limits`.
    pub(crate) fn new(
        volumes: Volumes,
        claims: Vec<(Claim, GuestMount)>,
        sandbox: Option<SandboxId>,
        blank: PathBuf,
        limits: DiskLimits,
    ) -> Self {
        Self { volumes, claims, sandbox, blank, limits, opened: Vec::new(), are_attached: false }
    }

    /// These are attached to a machine that an earlier agent started.
    pub(crate) fn adopted(mut self) -> Self {
        self.are_attached = true;
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    pub(crate) fn are_attached(&self) -> bool {
        self.are_attached
    }

    /// What the guest is to mount.
    pub(crate) fn mounts(&self) -> Vec<GuestMount> {
        self.claims.iter().map(|(_, mount)| mount.clone()).collect()
    }

    pub(crate) fn slots(&self) -> Vec<u8> {
        self.claims.iter().map(|(_, mount)| mount.slot).collect()
    }

    /// Has the next [`Self::attach`] use these slots, one for each volume.
    pub(crate) fn move_to(&mut self, slots: impl Iterator<Item = u8>) {
        for ((_, mount), slot) in self.claims.iter_mut().zip(slots) {
            mount.slot = slot;
        }
    }

    /// Writes down who has the volumes, and opens their disks. Not to be dropped before it is done: it would go on alone.
    ///
    /// # Errors
    /// [`VolumeError`]: the records of some of them may name this machine then.
    pub(crate) async fn open(&mut self) -> Result<(), VolumeError> {
        let mut opened = Vec::new();
        for (claim, _) in &self.claims {
            let (store, id) = (self.volumes.store.clone(), claim.volume().clone());
            let (sandbox, blank) = (self.sandbox.clone(), self.blank.clone());
            let open = move || store.attach(&id, sandbox.as_ref(), &blank).map_err(VolumeError::from);
            opened.push(durable::blocking(open).await?);
        }
        self.opened = opened;
        Ok(())
    }

    /// Gives the disks to the monitor, opened now if they are not yet.
    ///
    /// # Errors
    /// [`VolumeError`]: some of them may be attached then.
    pub(crate) async fn attach(&mut self, machine: &mut Machine) -> Result<(), VolumeError> {
        if self.claims.is_empty() {
            return Ok(());
        }
        if self.opened.is_empty() {
            self.open().await?;
        }
        self.are_attached = true;
        for ((claim, mount), disk) in self.claims.iter().zip(std::mem::take(&mut self.opened)) {
            let config = DiskConfig {
                serial: claim.volume().chars().take(SERIAL).collect(),
                size: disk.size,
                layers: 2,
                read_only: false,
            };
            let layers: Vec<_> = disk.layers.iter().map(AsFd::as_fd).collect();
            machine.attach_disk(mount.slot, config, self.limits, &layers).await.map_err(VolumeError::Monitor)?;
        }
        machine.set_mounts(self.mounts());
        Ok(())
    }

    /// Has the monitor let go of the disks, which the guest has unmounted.
    ///
    /// # Errors
    /// Of the monitor: it may have some of them.
    pub(crate) async fn detach(&mut self, machine: &mut Machine) -> Result<(), VolumeError> {
        // A guest that opens its link again is not to mount them.
        machine.set_mounts(Vec::new());
        self.are_attached = false;
        for slot in self.slots() {
            machine.detach_disk(slot).await.map_err(VolumeError::Monitor)?;
        }
        Ok(())
    }

    /// Lets others have the volumes: the monitor has let go of them, or is gone.
    pub(crate) async fn release(&mut self) {
        self.are_attached = false;
        self.opened.clear();
        for (claim, _) in std::mem::take(&mut self.claims) {
            let (store, id) = (self.volumes.store.clone(), claim.volume().clone());
            if let Err(error) = durable::blocking(move || store.detach(&id)).await {
                // The next one writes itself down, and so does the next agent.
                tracing::warn!(volume = claim.volume().as_str(), %error, "cannot write down that a volume is free");
            }
        }
    }

    /// Keeps the volumes from everybody else: the monitor may live, and cannot be ended.
    pub(crate) fn withhold(&mut self) {
        for (claim, _) in std::mem::take(&mut self.claims) {
            tracing::error!(volume = claim.volume().as_str(), "a volume stays attached: its monitor cannot be ended");
            claim.abandon();
        }
    }
}
