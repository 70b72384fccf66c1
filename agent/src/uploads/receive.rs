//! Receiving an upload: bounded, hashed, and on stable storage before anybody is told.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_protocol::ids::UploadId;
use sandpiper_protocol::template::Upload;
use sha2::{Digest, Sha256};

use super::{DATA, HIDDEN, MANIFEST, UploadError, Uploads};
use crate::host;

/// Bytes after which it is looked again whether there is room.
const CHECK_EVERY: u64 = 64 << 20;

/// An upload that is being received; gone when dropped, unless it was published.
struct Draft {
    id: UploadId,
    folder: PathBuf,
    uploads: Uploads,
    is_gone: bool,
}

impl Draft {
    /// Removes what there is of it. Blocks.
    fn remove(&mut self) {
        if let Err(error) = durable::remove_tree(&self.folder) {
            tracing::warn!(path = %self.folder.display(), %error, "cannot remove an unfinished upload now; the next start will");
        }
        self.uploads.lock().receiving.remove(&self.id);
        self.is_gone = true;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.is_gone {
            return;
        }
        // Whoever sent it went away: nobody waits, and this waits for the disk.
        let mut left =
            Self { id: self.id.clone(), folder: self.folder.clone(), uploads: self.uploads.clone(), is_gone: true };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || left.remove())),
            Err(_) => left.remove(),
        }
    }
}

/// What was received so far.
struct Received {
    file: File,
    hash: Sha256,
    bytes: u64,
    unchecked: u64,
}

impl Uploads {
    /// Receives an upload, and says whether it was not there before; then `pieces` are read to their end all the same.
    ///
    /// # Errors
    /// [`UploadError`]; nothing of it is left then.
    pub(crate) async fn receive(
        &self,
        id: &UploadId,
        mut pieces: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<(Arc<Upload>, bool), UploadError> {
        if !id.is_valid() {
            return Err(UploadError::Id);
        }
        if let Some(upload) = self.find(id) {
            let mut left = self.most;
            while let Some(Ok(piece)) = pieces.next().await {
                left = left.saturating_sub(piece.len() as u64);
                if left == 0 {
                    break;
                }
            }
            return Ok((upload, false));
        }
        let (mut draft, received) = self.create(self.begin(id)?).await?;
        let filled = self.fill(received, pieces).await;
        let this = self.clone();
        let end = move || {
            let published = filled.and_then(|received| this.publish(&draft, received));
            // Now, so that it can be sent again at once. Of one that was published there is nothing.
            draft.remove();
            published.map(|upload| (upload, true))
        };
        durable::blocking(end).await
    }

    /// Takes all pieces.
    async fn fill(
        &self,
        mut received: Received,
        mut pieces: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<Received, UploadError> {
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(UploadError::BrokenOff)?;
            if received.bytes + piece.len() as u64 > self.most {
                return Err(UploadError::TooLarge(self.most));
            }
            let this = self.clone();
            received = durable::blocking(move || this.take(received, &piece)).await?;
        }
        Ok(received)
    }

    /// Notes that it is being received.
    fn begin(&self, id: &UploadId) -> Result<Draft, UploadError> {
        if !self.lock().receiving.insert(id.clone()) {
            return Err(UploadError::Receiving(id.clone()));
        }
        let folder = self.folder.join(format!("{HIDDEN}new-{id}"));
        Ok(Draft { id: id.clone(), folder, uploads: self.clone(), is_gone: false })
    }

    /// The draft goes with the work: who goes away does not have the folder removed before it is made.
    async fn create(&self, mut draft: Draft) -> Result<(Draft, Received), UploadError> {
        let this = self.clone();
        durable::blocking(move || {
            let make = || {
                this.check_space()?;
                let make = || {
                    fs::create_dir(&draft.folder)?;
                    File::create_new(draft.folder.join(DATA))
                };
                make().map_err(|source| UploadError::Storage { what: "create the upload's file", source })
            };
            match make() {
                Ok(file) => Ok((draft, Received { file, hash: Sha256::new(), bytes: 0, unchecked: 0 })),
                Err(error) => {
                    draft.remove();
                    Err(error)
                }
            }
        })
        .await
    }

    /// Blocks.
    fn take(&self, mut received: Received, piece: &Bytes) -> Result<Received, UploadError> {
        received.hash.update(piece);
        let written = received.file.write_all(piece);
        written.map_err(|source| UploadError::Storage { what: "write the upload", source })?;
        received.bytes += piece.len() as u64;
        received.unchecked += piece.len() as u64;
        if received.unchecked >= CHECK_EVERY {
            received.unchecked = 0;
            self.check_space()?;
        }
        Ok(received)
    }

    /// Makes it an upload. Blocks.
    fn publish(&self, draft: &Draft, received: Received) -> Result<Arc<Upload>, UploadError> {
        let Received { file, hash, bytes, .. } = received;
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let upload = Arc::new(Upload { id: draft.id.clone(), bytes, sha256 });
        let publish = || {
            file.sync_all()?;
            durable::write_atomic(&draft.folder.join(MANIFEST), &serde_json::to_vec_pretty(&*upload)?)?;
            CrashPoint::UploadWritten.pass();
            let folder = self.folder(&draft.id);
            fs::rename(&draft.folder, &folder)?;
            durable::sync_parent(&folder)?;
            CrashPoint::UploadPublished.pass();
            Ok(())
        };
        publish().map_err(|source| UploadError::Storage { what: "keep the upload", source })?;
        self.lock().ready.insert(draft.id.clone(), Arc::clone(&upload));
        Ok(upload)
    }

    /// Blocks for a moment.
    fn check_space(&self) -> Result<(), UploadError> {
        let free = host::free_disk_mb(&self.folder);
        let free = free.map_err(|source| UploadError::Storage { what: "read the free disk space", source })?;
        let headroom = self.headroom_mb;
        if free < headroom { Err(UploadError::Short { free, headroom }) } else { Ok(()) }
    }
}
