//! Files that were sent for builds. What is in them nobody on the host looks at: a machine of the agent's own does.
//!
//! ```text
//! <folder>/<upl…>/upload.json, data     one that is complete
//! <folder>/.…                           what is being received or removed
//! ```
//!
//! An upload is there whole or not at all: received under a hidden name, synced, renamed. It goes when it is deleted, or when it
//! was neither sent nor used for a while: the time of its `data` says when that was.

mod receive;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable::{self as durable, Interrupted};
use sandpiper_protocol::id;
use sandpiper_protocol::ids::UploadId;
use sandpiper_protocol::template::Upload;
use tokio_util::sync::CancellationToken;

use crate::paths::Paths;

const HIDDEN: &str = ".";
const MANIFEST: &str = "upload.json";
const DATA: &str = "data";
/// How often it is looked whose time is over.
const SWEEP: Duration = Duration::from_secs(600);

/// The uploads of this host. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Uploads {
    folder: PathBuf,
    /// Most bytes of one.
    most: u64,
    /// Free space below which none is received.
    headroom_mb: u64,
    keep: Duration,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: BTreeMap<UploadId, Arc<Upload>>,
    /// Those that are being received.
    receiving: HashSet<UploadId>,
}

/// Limits of uploads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) most_bytes: u64,
    pub(crate) headroom_mb: u64,
    pub(crate) keep: Duration,
}

/// Why the uploads cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("Cannot read the uploads in {}", path.display())]
pub(crate) struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// Why an upload is not there, or not removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("id: must be `{}` and 22 characters of base32", UploadId::PREFIX)]
    Id,
    #[error("The upload {0} is being sent already")]
    Receiving(UploadId),
    #[error("An upload may have {0} bytes on this host; leave out what the build does not need")]
    TooLarge(u64),
    #[error("Only {free} MiB are free on this host's disk, {headroom} are kept free; try again later")]
    Short { free: u64, headroom: u64 },
    #[error("The upload broke off; send it again")]
    BrokenOff(#[source] io::Error),
    #[error("Cannot {what}")]
    Storage { what: &'static str, source: io::Error },
}

impl From<Interrupted> for UploadError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Storage { what: "work with the upload", source: interrupted.into() }
    }
}

impl Uploads {
    /// Opens the uploads of this host, and removes what was being received or removed. Blocks.
    ///
    /// # Errors
    /// The folder cannot be read, or a rest not be removed. An upload that cannot be read is removed: it can be sent again.
    pub(crate) fn open(paths: &Paths, limits: Limits) -> Result<Self, OpenError> {
        let folder = paths.uploads();
        let failed = |source| OpenError { path: folder.clone(), source };
        let mut shelf = Shelf::default();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.starts_with(HIDDEN) {
                durable::remove_tree(&path).map_err(failed)?;
            } else if id::is_valid(UploadId::PREFIX, name) {
                match load(&path, name) {
                    Ok(upload) => drop(shelf.ready.insert(upload.id.clone(), Arc::new(upload))),
                    Err(error) => {
                        tracing::error!(upload = name, %error, "removing an upload that cannot be read");
                        durable::remove_tree(&path).map_err(failed)?;
                    }
                }
            }
        }
        let Limits { most_bytes: most, headroom_mb, keep } = limits;
        Ok(Self { folder, most, headroom_mb, keep, shelf: Arc::new(Mutex::new(shelf)) })
    }

    pub(crate) fn find(&self, id: &UploadId) -> Option<Arc<Upload>> {
        self.lock().ready.get(id).cloned()
    }

    /// Opens what was sent, and notes its use; `None` where there is no such upload. Blocks.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn open_data(&self, id: &UploadId) -> io::Result<Option<(Arc<Upload>, File)>> {
        let Some(upload) = self.find(id) else { return Ok(None) };
        let file = match File::open(self.folder(id).join(DATA)) {
            Ok(file) => file,
            // Removed just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        file.set_modified(SystemTime::now())?;
        Ok(Some((upload, file)))
    }

    /// Removes an upload; false where there is none. Who has opened it reads on. Blocks.
    ///
    /// # Errors
    /// Where its folder cannot be hidden, then it stays; or not be removed, then the next start does that.
    pub(crate) fn delete(&self, id: &UploadId) -> Result<bool, UploadError> {
        let failed = |source| UploadError::Storage { what: "remove the upload", source };
        let Some(upload) = self.lock().ready.remove(id) else { return Ok(false) };
        let (folder, hidden) = (self.folder(id), self.folder.join(format!("{HIDDEN}deleted-{id}")));
        if let Err(error) = fs::rename(&folder, &hidden) {
            self.lock().ready.insert(id.clone(), upload);
            return Err(failed(error));
        }
        CrashPoint::UploadHidden.pass();
        durable::sync_parent(&folder).and_then(|()| durable::remove_tree(&hidden)).map_err(failed)?;
        Ok(true)
    }

    /// Removes what was not used for long, until the agent ends.
    pub(crate) async fn sweep(self, leave: CancellationToken) {
        loop {
            let this = self.clone();
            if let Err(error) = durable::blocking(move || this.remove_unused(SystemTime::now())).await {
                tracing::warn!(%error, "cannot remove uploads that nobody used for long");
            }
            tokio::select! {
                () = leave.cancelled() => return,
                () = tokio::time::sleep(SWEEP) => {}
            }
        }
    }

    /// Removes what was last used so long before `now` that it is not kept. Blocks.
    fn remove_unused(&self, now: SystemTime) -> io::Result<()> {
        let ids: Vec<UploadId> = self.lock().ready.keys().cloned().collect();
        for id in ids {
            let used = fs::metadata(self.folder(&id).join(DATA)).and_then(|data| data.modified());
            if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|unused| unused > self.keep)) {
                tracing::info!(upload = id.as_str(), "removing an upload that nobody used for long");
                self.delete(&id).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    fn folder(&self, id: &UploadId) -> PathBuf {
        self.folder.join(id.as_str())
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The upload `name`, in its folder, if it is whole as far as its length says. Blocks.
fn load(folder: &Path, name: &str) -> io::Result<Upload> {
    let upload: Upload = serde_json::from_slice(&fs::read(folder.join(MANIFEST))?)?;
    let length = fs::metadata(folder.join(DATA))?.len();
    if *upload.id == *name && upload.bytes == length {
        return Ok(upload);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is not what was sent"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::{StreamExt, stream};

    struct Host {
        folder: tempfile::TempDir,
        limits: Limits,
    }

    impl Host {
        fn new() -> Self {
            let limits = Limits { most_bytes: 100_000, headroom_mb: 0, keep: Duration::from_secs(60) };
            Self { folder: tempfile::tempdir().unwrap(), limits }
        }

        fn open(&self) -> Uploads {
            let paths = Paths::new(self.folder.path(), &self.folder.path().join("run"));
            paths.create().unwrap();
            Uploads::open(&paths, self.limits).unwrap()
        }

        fn entries(&self) -> usize {
            fs::read_dir(self.folder.path().join("uploads")).unwrap().count()
        }
    }

    fn pieces(count: usize) -> impl stream::Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static {
        stream::iter((0..count).map(|_| Ok(Bytes::from_static(&[b'x'; 1000]))))
    }

    #[tokio::test]
    async fn what_was_sent_is_found_by_the_next_agent_until_it_is_deleted_or_not_used_for_long() {
        let host = Host::new();
        let uploads = host.open();
        let ids = [UploadId::generate(), UploadId::generate()];
        for id in &ids {
            let (upload, is_new) = uploads.receive(id, pieces(3)).await.unwrap();
            assert_eq!((upload.bytes, is_new), (3000, true));
            assert_eq!(upload.sha256, "e1630f843370f402870799e14abbf2b06af2d23b0153658e1211dffabc61ad8f");
        }
        assert!(!uploads.receive(&ids[0], pieces(1)).await.unwrap().1);

        let reopened = host.open();
        let (upload, file) = reopened.open_data(&ids[0]).unwrap().unwrap();
        assert_eq!((upload.bytes, file.metadata().unwrap().len()), (3000, 3000));
        assert!(reopened.delete(&ids[0]).unwrap() && !reopened.delete(&ids[0]).unwrap());
        assert_eq!(io::Read::read(&mut &file, &mut [0; 10]).unwrap(), 10);
        reopened.remove_unused(SystemTime::now() + Duration::from_secs(50)).unwrap();
        assert!(reopened.find(&ids[1]).is_some());
        reopened.remove_unused(SystemTime::now() + Duration::from_secs(70)).unwrap();

        assert!(reopened.find(&ids[1]).is_none());
        assert_eq!(host.entries(), 0);
    }

    #[tokio::test]
    async fn an_upload_that_is_too_long_broke_off_or_has_no_id_leaves_nothing() {
        let host = Host::new();
        let uploads = host.open();
        let id = UploadId::generate();
        let broken = pieces(2).chain(stream::iter([Err(io::ErrorKind::BrokenPipe.into())]));

        assert!(matches!(uploads.receive(&id, pieces(101)).await, Err(UploadError::TooLarge(100_000))));
        assert!(matches!(uploads.receive(&id, broken).await, Err(UploadError::BrokenOff(_))));
        assert!(matches!(uploads.receive(&"upl../../etc".into(), pieces(1)).await, Err(UploadError::Id)));
        assert_eq!(host.entries(), 0);

        assert!(uploads.receive(&id, pieces(100)).await.unwrap().1);
    }

    #[tokio::test]
    async fn one_upload_is_sent_once_at_a_time_and_who_goes_away_leaves_nothing() {
        let host = Host::new();
        let uploads = host.open();
        let id = UploadId::generate();
        let endless = pieces(1).chain(stream::pending());
        let sending = tokio::spawn({
            let (uploads, id) = (uploads.clone(), id.clone());
            async move { uploads.receive(&id, endless).await.map(drop) }
        });
        while host.entries() == 0 {
            tokio::task::yield_now().await;
        }

        assert!(matches!(uploads.receive(&id, pieces(1)).await, Err(UploadError::Receiving(_))));
        sending.abort();
        assert!(sending.await.is_err());

        while matches!(uploads.receive(&id, pieces(1)).await, Err(UploadError::Receiving(_))) {
            tokio::task::yield_now().await;
        }
        assert_eq!((uploads.find(&id).unwrap().bytes, host.entries()), (1000, 1));
    }

    #[tokio::test]
    async fn a_host_without_room_takes_no_upload() {
        let mut host = Host::new();
        host.limits.headroom_mb = u64::MAX;
        let refused = host.open().receive(&UploadId::generate(), pieces(1)).await;
        assert!(matches!(refused, Err(UploadError::Short { .. })));
        assert_eq!(host.entries(), 0);
    }
}
