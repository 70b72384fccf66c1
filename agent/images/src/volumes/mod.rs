//! The volumes of this host.
//!
//! ```text
//! <folder>/blank-<GiB>-<ver…>.layer   an empty file system, made by a guest of this helper template: shared, never changed
//! <folder>/<vol…>/volume.json         the record
//!                 base.layer          a link to a blank layer, from the first attachment on
//!                 data.layer          what was written since: sparse, a hole is what `base.layer` has
//! <folder>/.…                         what is being made or removed
//! ```
//!
//! A volume is a disk of two layers, which only guests read as a file system: the host never does. Making one takes no space
//! and needs no guest. It comes and goes with its folder's name: made beside its place and renamed into it, hidden by a rename
//! before its bytes are freed; what an agent leaves that is killed in between is removed when the volumes are opened.
//!
//! Who may have a volume is not decided here: whoever calls [`Volumes::attach`] and [`Volumes::delete`] sees to it that
//! nobody else has it. Should that go wrong, because a monitor could not be ended for instance, the kernel refuses: the
//! descriptor that is written to is locked, for as long as any process has it open.

mod record;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_protocol::id;
use sandpiper_protocol::ids::{SandboxId, VolumeId};

pub use self::record::{Record, RecordError};
use crate::layers::{self, LayerError};

const GIB: u64 = 1 << 30;
/// Unit of `st_blocks`, whatever the file system's own block.
const SECTOR: u64 = 512;
/// What the names of folders and files begin with that are not, or not any more, what they will be or were.
const HIDDEN: &str = ".";
const BLANK: &str = "blank-";
const BASE: &str = "base.layer";
const DATA: &str = "data.layer";
/// How long a volume's last user may take to be gone. A process that this one is just starting has all its descriptors for a
/// moment, so there may be one where there is none any more.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// All volumes. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Volumes {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: BTreeMap<VolumeId, Arc<Record>>,
    /// Those that are being made, with their sizes in bytes.
    drafts: BTreeMap<VolumeId, u64>,
    /// Those whose records nobody can read.
    unreadable: Vec<String>,
}

/// The files of a volume, opened for a monitor, bottom first; the last is writable.
#[derive(Debug)]
pub struct Disk {
    pub size: u64,
    pub layers: Vec<File>,
}

/// A volume that is counted already and not there yet; given up when dropped.
#[derive(Debug)]
pub struct Draft {
    id: VolumeId,
    size_bytes: u64,
    store: Volumes,
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.store.lock().drafts.remove(&self.id);
    }
}

/// Why a volume is not made.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    #[error("id: must be `{}` and 22 characters of base32", VolumeId::PREFIX)]
    Id,
    #[error("The volume {0} is being made, or its record cannot be read; choose another id, or try again")]
    Taken(VolumeId),
}

/// Why the volumes cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("Cannot read the volumes in {}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// Why a volume cannot be given to a monitor.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("There is no volume {0}")]
    Missing(VolumeId),
    #[error("The volume {0} is still open in a monitor that has not ended")]
    InUse(VolumeId),
    #[error("Cannot lock the volume's file")]
    Lock(#[source] io::Error),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("Cannot write the record of a volume")]
    Record(#[source] io::Error),
}

impl Volumes {
    /// Opens the volumes in `folder`, which exists; finishes what was being removed, and drops what was being made. Blocks.
    ///
    /// # Errors
    /// Where the folder cannot be read, or a rest not be removed. A volume that cannot be read is logged, and stays.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError { path: folder.to_owned(), source };
        let mut shelf = Shelf::default();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.starts_with(HIDDEN) {
                let removed = if path.is_dir() { durable::remove_tree(&path) } else { durable::remove_file(&path) };
                removed.map_err(failed)?;
            } else if id::is_valid(VolumeId::PREFIX, name) {
                match Record::load(&path, name) {
                    Ok(record) => drop(shelf.ready.insert(record.id.clone(), Arc::new(record))),
                    Err(error) => {
                        let error = sandpiper_protocol::error_chain::chain(&error);
                        tracing::error!(
                            volume = name,
                            error,
                            "a volume is left alone until an operator has seen to it"
                        );
                        shelf.unreadable.push(name.to_owned());
                    }
                }
            }
        }
        Ok(Self { folder: folder.to_owned(), shelf: Arc::new(Mutex::new(shelf)) })
    }

    /// All, oldest first.
    pub fn list(&self) -> Vec<Arc<Record>> {
        self.lock().ready.values().cloned().collect()
    }

    /// Ids of those whose records nobody can read.
    pub fn unreadable(&self) -> Vec<String> {
        self.lock().unreadable.clone()
    }

    pub fn find(&self, id: &VolumeId) -> Option<Arc<Record>> {
        self.lock().ready.get(id).cloned()
    }

    /// How many GiB all volumes may come to hold.
    pub fn promised_gib(&self) -> u64 {
        let shelf = self.lock();
        let bytes = shelf.ready.values().map(|record| record.size_bytes).chain(shelf.drafts.values().copied());
        bytes.map(|bytes| bytes.div_ceil(GIB)).sum()
    }

    /// Bytes of the host's disk that are the volume's own. Blocks for a moment.
    pub fn retained_bytes(&self, id: &VolumeId) -> u64 {
        fs::metadata(self.folder(id).join(DATA)).map_or(0, |metadata| metadata.blocks() * SECTOR)
    }

    /// Counts a volume that is about to be made.
    ///
    /// # Errors
    /// The id is none, or in the way of another.
    pub fn draft(&self, id: &VolumeId, size_gib: u32) -> Result<Draft, DraftError> {
        if !id.is_valid() {
            return Err(DraftError::Id);
        }
        let size_bytes = layers::disk_size(size_gib);
        let mut shelf = self.lock();
        let is_taken = shelf.ready.contains_key(id) || shelf.unreadable.iter().any(|other| **id == **other);
        if is_taken || shelf.drafts.contains_key(id) {
            return Err(DraftError::Taken(id.clone()));
        }
        shelf.drafts.insert(id.clone(), size_bytes);
        Ok(Draft { id: id.clone(), size_bytes, store: self.clone() })
    }

    /// Makes a volume, empty. Durable when it returns. Blocks.
    ///
    /// # Errors
    /// Of the file system; then there is none.
    pub fn create(&self, draft: &Draft) -> io::Result<Arc<Record>> {
        let record = Record::new(draft.id.clone(), draft.size_bytes);
        let hidden = self.folder.join(format!("{HIDDEN}new-{}", draft.id));
        let make = || {
            durable::remove_tree(&hidden)?;
            fs::create_dir(&hidden)?;
            record.save(&hidden)?;
            layers::create(&hidden.join(DATA), record.size_bytes).map_err(io::Error::other)?.sync_all()?;
            File::open(&hidden)?.sync_all()?;
            CrashPoint::VolumeMade.pass();
            let folder = self.folder(&draft.id);
            fs::rename(&hidden, &folder)?;
            durable::sync_parent(&folder)?;
            CrashPoint::VolumePublished.pass();
            Ok(())
        };
        if let Err(error) = make() {
            // The next start does it otherwise.
            let _ = durable::remove_tree(&hidden);
            return Err(error);
        }
        let record = Arc::new(record);
        self.lock().ready.insert(record.id.clone(), Arc::clone(&record));
        Ok(record)
    }

    /// Opens the files of a volume for the monitor of `sandbox`, or of a machine of the agent's own, and writes down who has it
    /// before anybody gets a descriptor. One that was never attached stands on the layer `blank` from now on. Blocks.
    ///
    /// # Errors
    /// [`AttachError`]; nobody has the volume then.
    pub fn attach(&self, id: &VolumeId, sandbox: Option<&SandboxId>, blank: &Path) -> Result<Disk, AttachError> {
        let mut record = (*self.find(id).ok_or_else(|| AttachError::Missing(id.clone()))?).clone();
        let folder = self.folder(id);
        let (base, data) = (folder.join(BASE), folder.join(DATA));
        let before = record.clone();
        if record.blank.is_none() {
            // Of an attachment that did not come about.
            durable::remove_file(&base).map_err(AttachError::Record)?;
            layers::link(blank, &base)?;
            record.blank = blank.file_name().map(|name| name.to_string_lossy().into_owned());
        }
        let bottom = open_whole(&base, record.size_bytes, false)?;
        let top = open_whole(&data, record.size_bytes, true)?;
        lock(&top, id)?;
        record.attached_to = sandbox.cloned();
        if record != before {
            self.write(record.clone()).map_err(AttachError::Record)?;
        }
        CrashPoint::VolumeRecorded.pass();
        Ok(Disk { size: record.size_bytes, layers: vec![bottom, top] })
    }

    /// Writes down that no sandbox has the volume. Blocks.
    ///
    /// # Errors
    /// Where the record cannot be written; it says then that its last sandbox has it.
    pub fn detach(&self, id: &VolumeId) -> io::Result<()> {
        match self.find(id) {
            Some(record) if record.attached_to.is_some() => {
                let mut free = (*record).clone();
                free.attached_to = None;
                self.write(free)?;
                CrashPoint::VolumeReleased.pass();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes a volume and frees its bytes; false where there is none. Blocks.
    ///
    /// # Errors
    /// Where its folder cannot be hidden, then it stays; or not be removed, then the next start does that.
    pub fn delete(&self, id: &VolumeId) -> io::Result<bool> {
        if self.find(id).is_none() {
            return Ok(false);
        }
        let (folder, hidden) = (self.folder(id), self.folder.join(format!("{HIDDEN}deleted-{id}")));
        fs::rename(&folder, &hidden)?;
        self.lock().ready.remove(id);
        CrashPoint::VolumeHidden.pass();
        durable::sync_parent(&folder)?;
        durable::remove_tree(&hidden)?;
        CrashPoint::VolumeRemoved.pass();
        Ok(true)
    }

    /// Where the blank layer of this size is, made by this version of the helper template, if it is there or not.
    pub fn blank(&self, size_gib: u32, helper: &str) -> PathBuf {
        self.folder.join(format!("{BLANK}{size_gib}-{helper}.layer"))
    }

    /// An empty file that a guest makes a blank layer of, for [`Self::publish_blank`]. Blocks.
    ///
    /// # Errors
    /// Of the file system.
    pub fn draft_blank(&self, size_gib: u32) -> Result<File, LayerError> {
        let path = self.blank_draft();
        durable::remove_file(&path).map_err(|source| LayerError::Create { path: path.clone(), source })?;
        layers::create(&path, layers::disk_size(size_gib))
    }

    /// Makes the draft the blank layer `blank`, for good, and removes those of other sizes and helpers that no volume stands
    /// on. Blocks.
    ///
    /// # Errors
    /// Of the file system.
    pub fn publish_blank(&self, draft: &File, blank: &Path) -> io::Result<()> {
        draft.sync_all()?;
        CrashPoint::BlankFormatted.pass();
        fs::rename(self.blank_draft(), blank)?;
        durable::sync_parent(blank)?;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_blank = entry.file_name().to_string_lossy().starts_with(BLANK);
            if is_blank && entry.path() != blank && entry.metadata()?.nlink() == 1 {
                durable::remove_file(&entry.path())?;
            }
        }
        Ok(())
    }

    fn blank_draft(&self) -> PathBuf {
        self.folder.join(format!("{HIDDEN}{BLANK}new"))
    }

    fn write(&self, record: Record) -> io::Result<()> {
        record.save(&self.folder(&record.id))?;
        if let Some(present) = self.lock().ready.get_mut(&record.id) {
            *present = Arc::new(record);
        }
        Ok(())
    }

    fn folder(&self, id: &VolumeId) -> PathBuf {
        self.folder.join(id.as_str())
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a layer that is as long as the disk: in one that was cut off, what is below would show through.
fn open_whole(path: &Path, size: u64, write: bool) -> Result<File, LayerError> {
    let failed = |source| LayerError::Open { path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).write(write).open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length == size { Ok(file) } else { Err(LayerError::Length { path: path.to_owned(), length }) }
}

/// Keeps everybody else from writing to `file` until it is closed, here and wherever its descriptor was sent. Blocks.
fn lock(file: &File, id: &VolumeId) -> Result<(), AttachError> {
    let give_up_at = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < give_up_at => thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => return Err(AttachError::InUse(id.clone())),
            Err(TryLockError::Error(error)) => return Err(AttachError::Lock(error)),
        }
    }
}

#[cfg(test)]
mod tests;
