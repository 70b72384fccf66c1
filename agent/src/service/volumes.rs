//! Volumes, as far as they are no sandbox's: made, listed and deleted here; what is in them is [`crate::helpers`]'.

use std::io;

use sandpiper_durable::{self as durable, Interrupted};
use sandpiper_images::volumes::{Draft, DraftError, Record};
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{Volume, VolumeList};

use super::Sandboxes;
use super::validation::{self, DiskSpaceError};
use crate::volumes::{Holder, VolumeError};

/// Why a volume is not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeCreateError {
    #[error(transparent)]
    Draft(#[from] DraftError),
    #[error("{0}")]
    Capacity(String),
    #[error(transparent)]
    Space(#[from] DiskSpaceError),
    #[error("Cannot {what}")]
    Storage { what: &'static str, source: io::Error },
}

impl From<Interrupted> for VolumeCreateError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Storage { what: "make the volume", source: interrupted.into() }
    }
}

impl Sandboxes {
    /// Makes a volume, and says whether it was not there before. Dropping the future does not stop that.
    ///
    /// # Errors
    /// [`VolumeCreateError`]: the id is taken, there is no room, or the host failed.
    pub(crate) async fn create_volume(&self, id: VolumeId) -> Result<(Volume, bool), VolumeCreateError> {
        let failed = |what| move |source| VolumeCreateError::Storage { what, source };
        let this = self.clone();
        let make = move || {
            if let Some(record) = this.context().volumes.store.find(&id) {
                return Ok((this.view_volume(&record), false));
            }
            validation::check_disk_space(this.context())?;
            let most = validation::most_promised_gib(this.context());
            let most = most.map_err(|error| failed("read the size of the disk")(io::Error::other(error)))?;
            let draft = this.reserve_volume(&id, most)?;
            let record = this.context().volumes.store.create(&draft).map_err(failed("make the volume"))?;
            tracing::info!(target: "audit", volume = id.as_str(), "volume created");
            Ok((this.view_volume(&record), true))
        };
        durable::blocking(make).await
    }

    /// Counts a volume that is about to be made, if there is room for all that may be written to it.
    fn reserve_volume(&self, id: &VolumeId, most_promised_gib: u64) -> Result<Draft, VolumeCreateError> {
        let size_gib = self.context().config.volumes.size_gib;
        let shelf = self.lock();
        let store = &self.context().volumes.store;
        let disks = shelf.by_id.values().map(|handle| u64::from(handle.record.borrow().disk_gib));
        let promised = disks.sum::<u64>() + store.promised_gib() + u64::from(size_gib);
        if promised > most_promised_gib {
            return Err(VolumeCreateError::Capacity(format!(
                "The disks of this host's sandboxes and volumes would have {promised} GiB, and may have {most_promised_gib}; \
                 delete some, or have the operator add space or raise limits.disk_overcommit"
            )));
        }
        Ok(store.draft(id, size_gib)?)
    }

    /// A volume as it is now. Blocks for a moment.
    fn view_volume(&self, record: &Record) -> Volume {
        let volumes = &self.context().volumes;
        let attached_to = match volumes.claims.holder(&record.id) {
            Some(Holder::Sandbox(sandbox)) => Some(sandbox),
            Some(Holder::Helper | Holder::Deletion | Holder::Stuck) | None => None,
        };
        Volume {
            id: record.id.clone(),
            size_bytes: record.size_bytes,
            retained_bytes: volumes.store.retained_bytes(&record.id),
            attached_to,
            created_at: record.created_at,
        }
    }

    /// A volume as it is now, if there is one.
    ///
    /// # Errors
    /// The agent failed.
    pub(crate) async fn volume(&self, id: VolumeId) -> Result<Volume, VolumeError> {
        let this = self.clone();
        durable::blocking(move || {
            let record = this.context().volumes.store.find(&id).ok_or(VolumeError::Missing(id))?;
            Ok(this.view_volume(&record))
        })
        .await
    }

    /// All volumes, oldest first.
    ///
    /// # Errors
    /// The agent failed: an empty list would say that all volumes are lost.
    pub(crate) async fn volumes(&self) -> Result<VolumeList, Interrupted> {
        let this = self.clone();
        durable::blocking(move || {
            let store = &this.context().volumes.store;
            let volumes = store.list().iter().map(|record| this.view_volume(record)).collect();
            Ok(VolumeList { volumes, unreadable: store.unreadable() })
        })
        .await
    }

    /// Removes a volume that nobody has; its bytes are free when this returns. Dropping the future does not stop that.
    ///
    /// # Errors
    /// [`VolumeError`]: somebody has it, there is none, or it cannot be removed.
    pub(crate) async fn delete_volume(&self, id: &VolumeId) -> Result<(), VolumeError> {
        let (this, id) = (self.clone(), id.clone());
        let failed = |source| VolumeError::Host { what: "delete the volume", source };
        let work = async move {
            let claim = this.context().helpers.claim(&id, Holder::Deletion).await?;
            let (store, volume) = (this.context().volumes.store.clone(), claim.volume().clone());
            if durable::blocking(move || store.delete(&volume)).await.map_err(failed)? {
                tracing::info!(target: "audit", volume = id.as_str(), "volume deleted");
                return Ok(());
            }
            Err(VolumeError::Missing(id))
        };
        self.spawn(work).await.map_err(|error| failed(io::Error::other(error)))?
    }
}
