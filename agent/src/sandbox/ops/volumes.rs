//! How a supervisor takes its sandbox's volumes away for the time in which the machine is written down, and puts them back.
//!
//! ```text
//!   mounted ──Unmount──▶ unmounted ──DetachDisk──▶ away ──AttachDisk──▶ Mount ──▶ mounted
//!      ▲   │ something holds one, and not forced        │
//!      └───┘                                            └─ the sandbox is stopped: released, free for others
//! ```
//!
//! All of them or none. While they are away they stay the sandbox's: nobody else can take one until the record says that the
//! sandbox is stopped, so that whatever goes wrong before can put them back. And as long as they may be away, the record says
//! `stopping` or `checkpointing`: an agent that finds it `ready` takes them for mounted.

use std::sync::Arc;
use std::time::Duration;

use sandpiper_crash_points::CrashPoint;
use sandpiper_machine::sanitize;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{GuestMessage, GuestMount, HostMessage};
use sandpiper_protocol::vmm::EXTRA_DISKS;

use crate::launch::{Attachments, Running};
use crate::sandbox::Context;
use crate::sandbox::errors::{ChangeError, OperationError};
use crate::sandbox::record::Record;
use crate::sandbox::supervisor::Supervisor;
use crate::volumes::VolumeError;

/// How long a guest may take to mount or unmount its volumes: it may have much to write.
const GUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for one that is being deleted: what was synced is safe without it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Takes the sandbox's volumes for a start of it.
    pub(crate) async fn claim_volumes(
        context: Arc<Context>,
        record: Arc<Record>,
        boots: bool,
    ) -> Result<Attachments, VolumeError> {
        let held = if boots { &[][..] } else { &record.held_slots[..] };
        let limits = context.allowances.disk(record.team.as_ref(), context.launcher.disk_limits());
        context.helpers.attachments(&record.id, &record.volumes, held, limits).await
    }

    /// The volumes of a machine that an earlier agent started.
    pub(crate) fn adopt_volumes(&self) -> Attachments {
        let record = self.record();
        let (volumes, limits) = (&self.context.volumes, self.context.launcher.disk_limits());
        let claims = record.volumes.iter().zip(&record.slots).filter_map(|(mount, slot)| {
            let claim = volumes.claims.take_up(&mount.volume, &record.id);
            if claim.is_none() {
                tracing::error!(
                    sandbox = record.id.as_str(),
                    volume = mount.volume.as_str(),
                    "a volume is not its sandbox's"
                );
            }
            Some((claim?, GuestMount { slot: *slot, path: mount.path.clone() }))
        });
        let limits = self.context.allowances.disk(record.team.as_ref(), limits);
        // None of them is new, so what a new one stands on is of no use.
        Attachments::new(volumes.clone(), claims.collect(), Some(record.id.clone()), Default::default(), limits)
            .adopted()
    }

    /// Has the guest unmount and the monitor let go of all volumes. With `force` also of those whose files are open; and
    /// `at_any_cost` the guest need not agree: it reads and writes errors then.
    pub(crate) async fn put_volumes_away(
        &mut self,
        running: &mut Running,
        force: bool,
        at_any_cost: bool,
    ) -> Result<(), OperationError> {
        if running.volumes.is_empty() {
            return Ok(());
        }
        let held = match self.unmount(running, force).await? {
            Ok(held) => held,
            Err(error) if at_any_cost => {
                self.log.host(format!(
                    "its volumes were taken away without the guest's consent: {}",
                    error_chain::chain(&error)
                ));
                running.volumes.slots()
            }
            Err(error) => {
                // One that did not answer may unmount them all the same.
                if !matches!(error, ChangeError::Volume(VolumeError::Busy(_))) {
                    self.remount_volumes(running).await?;
                }
                return Err(OperationError::Refused(error));
            }
        };
        if !held.is_empty() {
            self.log.host("volumes were taken from programs that had files of them open");
            // First: no guest says it again.
            self.change_regardless(|record| record.hold_slots(&held)).await;
        }
        CrashPoint::VolumesUnmounted.pass();
        self.detach_volumes(running).await?;
        CrashPoint::VolumesDetached.pass();
        Ok(())
    }

    /// Puts back what [`Self::put_volumes_away`] took. Whatever keeps it from that is reported, and the sandbox goes on.
    pub(crate) async fn bring_volumes_back(&mut self, running: &mut Running) -> Result<(), OperationError> {
        if running.volumes.is_empty() || running.volumes.are_attached() {
            return Ok(());
        }
        let held = self.record().held_slots.clone();
        let free: Vec<u8> = (0..EXTRA_DISKS).filter(|slot| !held.contains(slot)).collect();
        if free.len() < running.volumes.slots().len() {
            self.report_unmounted("its programs still hold volumes that were taken from them");
            return Ok(());
        }
        running.volumes.move_to(free.into_iter());
        let slots = running.volumes.slots();
        self.change_regardless(|record| record.slots.clone_from(&slots)).await;
        let Running { volumes, machine, .. } = running;
        if let Err(error) = self.meanwhile(volumes.attach(machine)).await? {
            self.report_unmounted(&error_chain::chain(&error));
            return Ok(());
        }
        let is_answer =
            |message: &GuestMessage| matches!(message, GuestMessage::Mounted | GuestMessage::NotMounted { .. });
        let question = HostMessage::Mount { mounts: volumes.mounts() };
        match self.ask(machine, question, is_answer, GUEST_TIMEOUT).await? {
            Ok(GuestMessage::NotMounted { message }) => self.report_unmounted(&sanitize(&message)),
            Ok(_) => CrashPoint::VolumesRemounted.pass(),
            Err(error) => self.report_unmounted(&error.to_string()),
        }
        Ok(())
    }

    /// Has the volumes mounted of a machine of which nobody knows how far its guest and its monitor have come: of one that an
    /// earlier agent left in the middle of an operation.
    pub(crate) async fn remount_volumes(&mut self, running: &mut Running) -> Result<(), OperationError> {
        if running.volumes.is_empty() {
            return Ok(());
        }
        // One that does not unmount them has them mounted, and in use.
        if self.unmount(running, false).await?.is_err() {
            return Ok(());
        }
        match self.detach_volumes(running).await {
            Ok(()) => self.bring_volumes_back(running).await,
            Err(OperationError::Refused(error)) => {
                self.report_unmounted(&error_chain::chain(&error));
                Ok(())
            }
            Err(ended) => Err(ended),
        }
    }

    /// Has the guest of a sandbox that is being deleted write its volumes down, if it does so soon.
    pub(crate) async fn flush_volumes(&mut self, running: &mut Running) {
        if running.volumes.is_empty() || !running.volumes.are_attached() {
            return;
        }
        let ear = self.ear();
        let asked =
            running.machine.ask(HostMessage::Unmount { force: true }, is_unmount_answer, FLUSH_TIMEOUT, |message| {
                ear.hear(message);
            });
        if let Err(error) = asked.await {
            tracing::debug!(sandbox = self.record().id.as_str(), %error, "a guest did not unmount its volumes");
        }
    }

    /// Has the guest unmount all volumes; which slots programs hold.
    async fn unmount(
        &mut self,
        running: &mut Running,
        force: bool,
    ) -> Result<Result<Vec<u8>, ChangeError>, OperationError> {
        let question = HostMessage::Unmount { force };
        Ok(match self.ask(&mut running.machine, question, is_unmount_answer, GUEST_TIMEOUT).await? {
            Ok(GuestMessage::Unmounted { held }) => Ok(held.into_iter().filter(|slot| *slot < EXTRA_DISKS).collect()),
            Ok(GuestMessage::NotUnmounted { message }) => Err(VolumeError::Busy(sanitize(&message)).into()),
            Ok(_) => Err(ChangeError::Unexpected),
            Err(unanswered) => Err(ChangeError::Guest(format!("The volumes could not be unmounted: {unanswered}"))),
        })
    }

    async fn detach_volumes(&mut self, running: &mut Running) -> Result<(), OperationError> {
        let Running { volumes, machine, .. } = running;
        let detached = self.meanwhile(volumes.detach(machine)).await?;
        detached.map_err(|error| OperationError::Refused(error.into()))
    }

    /// Says that the sandbox goes on without its volumes. They stay its own.
    fn report_unmounted(&self, reason: &str) {
        tracing::error!(sandbox = self.record().id.as_str(), reason, "a sandbox goes on without its volumes");
        self.log.host(format!("its volumes could not be mounted again; pause and resume it: {reason}"));
    }
}

fn is_unmount_answer(message: &GuestMessage) -> bool {
    matches!(message, GuestMessage::Unmounted { .. } | GuestMessage::NotUnmounted { .. })
}
