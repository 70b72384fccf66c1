//! The life of one helper: a place among the machines, the volume, a machine that serves it, and the end of all three.

use std::sync::Arc;
use std::time::Duration;

use sandpiper_protocol::guest::{GuestMount, VOLUME_FOLDER};
use tokio::sync::SemaphorePermit;
use tokio::time::sleep;

use super::{Helper, Helpers, State, machine, stuck};
use crate::launch::Attachments;
use crate::volumes::{Holder, VolumeError};

/// How long a request waits for its turn to have a helper.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

impl Helpers {
    /// Whether nobody uses the helper; if so nobody will.
    fn retire(&self, helper: &Helper) -> bool {
        let _table = self.lock();
        let is_idle = *helper.users() == 0;
        if is_idle {
            helper.wanted.cancel();
        }
        is_idle
    }

    /// The life of a helper.
    pub(super) async fn keep(self, helper: Arc<Helper>) {
        let served = self.serve(&helper).await;
        if let Err(error) = served {
            helper.wanted.cancel();
            helper.state.send_replace(State::Failed(Arc::new(error)));
        }
        self.lock().remove(&helper.volume);
        helper.gone.cancel();
    }

    async fn serve(&self, helper: &Helper) -> Result<(), VolumeError> {
        let host = &self.inner.host;
        let _place = self.place().await?;
        // Not from another helper: of one volume there is one.
        let claim = match self.take(&helper.volume, Holder::Helper)? {
            Ok(claim) => claim,
            Err(Holder::Sandbox(_)) => return Err(VolumeError::Attached(helper.volume.clone())),
            Err(Holder::Stuck) => return Err(stuck()),
            Err(Holder::Helper | Holder::Deletion) => return Err(VolumeError::Missing(helper.volume.clone())),
        };
        let claims = vec![(claim, GuestMount { slot: 0, path: VOLUME_FOLDER.to_owned() })];
        let blank = self.blank_for(&claims).await?;
        let limits = host.launcher.disk_limits();
        let attachments = Attachments::new(host.volumes.clone(), claims, None, blank, limits);
        let paths = host.paths.helper(&helper.volume);
        let mut running = machine::start(host, &paths, attachments).await?;
        tracing::info!(volume = helper.volume.as_str(), "a helper has a volume");
        helper.state.send_replace(State::Serving(paths.vsock_socket()));
        let keep = Duration::from_secs(host.config.volumes.helper_keep_seconds);
        loop {
            tokio::select! {
                () = host.leave.cancelled() => break,
                reason = machine::ended(&mut running.machine) => {
                    tracing::warn!(volume = helper.volume.as_str(), reason, "a helper ended while it had a volume");
                    break;
                }
                () = helper.wanted.cancelled(), if *helper.users() == 0 => break,
                () = helper.done.notified() => {}
                () = sleep(keep) => if self.retire(helper) {
                    break;
                },
            }
        }
        // No request is begun from now on; of a machine that has ended, those under way break.
        helper.wanted.cancel();
        machine::end(host, &paths, running).await;
        tracing::info!(volume = helper.volume.as_str(), "a helper let go of a volume");
        Ok(())
    }

    /// Waits for a place among the machines; an idle one makes room.
    async fn place(&self) -> Result<SemaphorePermit<'_>, VolumeError> {
        if let Ok(place) = self.inner.places.try_acquire() {
            return Ok(place);
        }
        let full = || VolumeError::Unavailable("All machines for work with volumes are in use; try again".into());
        let _turn = self.inner.queue.try_acquire().map_err(|_| full())?;
        let idle = self
            .lock()
            .values()
            .find(|helper| {
                matches!(*helper.state.borrow(), State::Serving(_))
                    && *helper.users() == 0
                    && !helper.wanted.is_cancelled()
            })
            .cloned();
        if let Some(idle) = idle {
            self.retire(&idle);
        }
        tokio::select! {
            () = self.inner.host.leave.cancelled() => Err(VolumeError::Unavailable("The agent is ending; try again".into())),
            () = sleep(QUEUE_TIMEOUT) => Err(full()),
            place = self.inner.places.acquire() => place.map_err(|_| full()),
        }
    }
}
