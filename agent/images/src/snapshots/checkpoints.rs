//! The checkpoints of this host.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_protocol::agent::Checkpoint;
use sandpiper_protocol::ids::{CheckpointId, SandboxId};
use serde::{Deserialize, Serialize};

use super::{FORMAT_VERSION, HIDDEN, MANIFEST, OpenError, Snapshot};
use sandpiper_crash_points::CrashPoint;

/// All checkpoints. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: BTreeMap<CheckpointId, Arc<Manifest>>,
    /// Ids of those that are being made.
    drafts: HashSet<CheckpointId>,
    /// How many starts are linking the files of which.
    pinned: HashMap<CheckpointId, usize>,
}

/// A checkpoint, as it stands in its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    #[serde(rename = "form")]
    format_version: u32,
    pub id: CheckpointId,
    /// The sandbox that it was taken of.
    pub sandbox: SandboxId,
    pub created_at: Timestamp,
    /// Of that sandbox when it was taken.
    pub generation: u64,
    pub stopped_us: u64,
    pub snapshot: Snapshot,
}

impl Manifest {
    pub fn new(id: CheckpointId, sandbox: SandboxId, generation: u64, stopped_us: u64, snapshot: Snapshot) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            id,
            sandbox,
            created_at: Timestamp::now(),
            generation,
            stopped_us,
            snapshot,
        }
    }

    /// The form in which the API process sees it.
    pub fn to_contract(&self, retained_bytes: u64) -> Checkpoint {
        Checkpoint {
            id: self.id.clone(),
            sandbox: self.sandbox.clone(),
            template_version: self.snapshot.template_version.clone(),
            memory: self.snapshot.files.has_memory(),
            cpu: self.snapshot.cpu,
            memory_mb: self.snapshot.memory_mb,
            disk_gib: self.snapshot.disk_gib,
            created_at: self.created_at,
            retained_bytes,
            stopped_us: self.stopped_us,
        }
    }
}

/// Keeps the files of a checkpoint where its manifest says, until dropped. Deleting it is possible all the same.
#[derive(Debug)]
pub struct Pin {
    id: CheckpointId,
    store: Checkpoints,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut shelf = self.store.lock();
        if let Some(count) = shelf.pinned.get_mut(&self.id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                shelf.pinned.remove(&self.id);
            }
        }
    }
}

/// Why a checkpoint cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    #[error("id: must be `{}` and 22 characters of base32", CheckpointId::PREFIX)]
    Id,
    #[error("There is a checkpoint {0} already; choose another id")]
    Exists(CheckpointId),
    #[error("Cannot create the checkpoint's folder")]
    Storage(#[source] io::Error),
}

/// A folder for the files of a checkpoint that is being made, or of a snapshot that is needed for a moment only. Removed
/// when dropped, unless it was published; so dropping blocks.
#[derive(Debug)]
pub struct Draft {
    id: CheckpointId,
    folder: PathBuf,
    store: Checkpoints,
}

impl Draft {
    pub fn id(&self) -> &CheckpointId {
        &self.id
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.store.lock().drafts.remove(&self.id);
        if let Err(error) = durable::remove_tree(&self.folder) {
            tracing::warn!(path = %self.folder.display(), %error, "cannot remove a draft now; the next start will");
        }
    }
}

impl Checkpoints {
    /// Opens the checkpoints in `folder`, which exists. Blocks.
    ///
    /// # Errors
    /// Where the folder cannot be read. A checkpoint that cannot be read is left out, and logged.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let found = super::load::<Manifest>(folder)?.into_iter();
        let ready = found
            .filter(|(name, manifest)| {
                let is_its_own = *manifest.id == **name;
                if !is_its_own {
                    tracing::error!(checkpoint = name, "checkpoint left out: its id is not its folder's name");
                }
                is_its_own
            })
            .map(|(_, manifest)| (manifest.id.clone(), Arc::new(manifest)))
            .collect();
        let shelf = Shelf { ready, ..Shelf::default() };
        Ok(Self { folder: folder.to_owned(), shelf: Arc::new(Mutex::new(shelf)) })
    }

    /// Begins a checkpoint. Blocks.
    ///
    /// # Errors
    /// [`DraftError`]: the id is none, or taken, or its folder cannot be made.
    pub fn draft(&self, id: &CheckpointId) -> Result<Draft, DraftError> {
        if !id.is_valid() {
            return Err(DraftError::Id);
        }
        {
            let mut shelf = self.lock();
            // A checkpoint that could not be read is in no list, but in the way.
            if shelf.ready.contains_key(id) || !shelf.drafts.insert(id.clone()) {
                return Err(DraftError::Exists(id.clone()));
            }
        }
        let draft = Draft { id: id.clone(), folder: self.folder.join(format!("{HIDDEN}{id}")), store: self.clone() };
        if self.folder.join(id.as_str()).exists() {
            return Err(DraftError::Exists(id.clone()));
        }
        fs::create_dir(&draft.folder).map_err(DraftError::Storage)?;
        CrashPoint::CheckpointDrafted.pass();
        Ok(draft)
    }

    /// A folder for a snapshot that is gone when the draft is dropped. Blocks.
    ///
    /// # Errors
    /// [`DraftError::Storage`] where the folder cannot be made.
    pub fn scratch(&self) -> Result<Draft, DraftError> {
        self.draft(&CheckpointId::generate())
    }

    /// Makes a filled and synced draft a checkpoint. Blocks.
    ///
    /// # Errors
    /// Where the manifest cannot be written, or the folder cannot be renamed.
    pub fn publish(&self, draft: Draft, manifest: Manifest) -> io::Result<Arc<Manifest>> {
        super::publish(&draft.folder, &self.folder.join(draft.id.as_str()), &manifest)?;
        let manifest = Arc::new(manifest);
        self.lock().ready.insert(draft.id.clone(), Arc::clone(&manifest));
        Ok(manifest)
    }

    pub fn find(&self, id: &CheckpointId) -> Option<Arc<Manifest>> {
        self.lock().ready.get(id).cloned()
    }

    /// A checkpoint whose files stay where they are while something is started from it.
    pub fn pin(&self, id: &CheckpointId) -> Option<(Arc<Manifest>, Pin)> {
        let mut shelf = self.lock();
        let manifest = shelf.ready.get(id).cloned()?;
        *shelf.pinned.entry(id.clone()).or_default() += 1;
        Some((manifest, Pin { id: id.clone(), store: self.clone() }))
    }

    /// All, oldest first.
    pub fn list(&self) -> Vec<Arc<Manifest>> {
        self.lock().ready.values().cloned().collect()
    }

    /// Where the files of the checkpoint `id` are.
    pub fn folder(&self, id: &CheckpointId) -> PathBuf {
        self.folder.join(id.as_str())
    }

    /// Removes a checkpoint; false when there is none. Blocks.
    ///
    /// # Errors
    /// Where its folder cannot be hidden or removed; one that could not be hidden stays a checkpoint.
    pub fn delete(&self, id: &CheckpointId) -> io::Result<bool> {
        let Some(manifest) = self.lock().ready.remove(id) else { return Ok(false) };
        match super::retract(&self.folder.join(id.as_str())) {
            Ok(()) => Ok(true),
            Err(error) => {
                if self.folder.join(id.as_str()).exists() {
                    self.lock().ready.insert(id.clone(), manifest);
                }
                Err(error)
            }
        }
    }

    /// Notes that in the checkpoint `id` the layer `upper` holds what `lower`, right below it, held, and removes that one's
    /// link. Refused while something is started from the checkpoint. Blocks.
    ///
    /// # Errors
    /// While something is started from it, or where its manifest cannot be written.
    pub fn absorb(&self, id: &CheckpointId, lower: &str, upper: &str) -> io::Result<()> {
        let manifest = {
            let mut shelf = self.lock();
            if shelf.pinned.contains_key(id) {
                return Err(io::Error::other("Something is being started from the checkpoint"));
            }
            let Some(present) = shelf.ready.get_mut(id) else { return Ok(()) };
            let mut manifest = (**present).clone();
            if !manifest.snapshot.files.absorb(lower, upper) {
                return Ok(());
            }
            // Whoever starts from it now links the shorter chain; the longer one is as good while its link is there.
            *present = Arc::new(manifest);
            Arc::clone(present)
        };
        let folder = self.folder.join(id.as_str());
        // Fails when the checkpoint was deleted meanwhile, which is as good.
        durable::write_atomic(&folder.join(MANIFEST), &serde_json::to_vec_pretty(&*manifest)?)?;
        durable::remove_file(&folder.join(lower))
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Files, Layer, Role};

    fn snapshot(folder: &Path) -> Snapshot {
        let mut files = Files::default();
        files.disk = (0..3).map(|_| Layer::own(files.new_name(Role::Disk))).collect();
        for name in files.names() {
            fs::write(folder.join(name), name).unwrap();
        }
        Snapshot {
            template_version: "ver1".into(),
            cpu: 1,
            memory_mb: 256,
            disk_gib: 2,
            files,
            held_slots: Vec::new(),
            defaults: Default::default(),
            can_wait: false,
        }
    }

    fn take(store: &Checkpoints, id: &CheckpointId) -> Arc<Manifest> {
        let draft = store.draft(id).unwrap();
        let snapshot = snapshot(draft.folder());
        store.publish(draft, Manifest::new(id.clone(), "sbx1".into(), 4, 700, snapshot)).unwrap()
    }

    #[test]
    fn a_published_checkpoint_is_found_by_the_next_agent_until_it_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let store = Checkpoints::open(folder.path()).unwrap();
        let id = CheckpointId::generate();
        let taken = take(&store, &id);
        assert!(matches!(store.draft(&id), Err(DraftError::Exists(_))));

        let reopened = Checkpoints::open(folder.path()).unwrap();
        assert_eq!(reopened.find(&id).as_deref(), Some(&*taken));
        assert!(reopened.folder(&id).join("disk-0.layer").exists());
        assert!(reopened.delete(&id).unwrap() && !reopened.delete(&id).unwrap());

        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(reopened.list().is_empty());
    }

    #[test]
    fn a_draft_leaves_nothing_and_an_interrupted_one_is_removed_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = Checkpoints::open(folder.path()).unwrap();
        let id = CheckpointId::generate();

        let draft = store.draft(&id).unwrap();
        snapshot(draft.folder());
        assert!(matches!(store.draft(&id), Err(DraftError::Exists(_))));
        drop(draft);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        std::mem::forget(store.draft(&id).unwrap());

        let reopened = Checkpoints::open(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        take(&reopened, &id);
    }

    #[test]
    fn an_absorbed_layer_leaves_manifest_and_folder() {
        let folder = tempfile::tempdir().unwrap();
        let store = Checkpoints::open(folder.path()).unwrap();
        let id = CheckpointId::generate();
        take(&store, &id);

        store.absorb(&id, "disk-0.layer", "disk-2.layer").unwrap();
        let pin = store.pin(&id).unwrap();
        store.absorb(&id, "disk-0.layer", "disk-1.layer").unwrap_err();
        assert_eq!(store.find(&id).unwrap().snapshot.files.disk.len(), 3);
        drop(pin);
        store.absorb(&id, "disk-0.layer", "disk-1.layer").unwrap();

        let reopened = Checkpoints::open(folder.path()).unwrap();
        assert_eq!(reopened.find(&id).unwrap().snapshot.files.names().len(), 2);
        assert!(!store.folder(&id).join("disk-0.layer").exists());
    }

    #[test]
    fn an_id_that_is_no_id_becomes_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let store = Checkpoints::open(folder.path()).unwrap();
        assert!(matches!(store.draft(&"ckp../../../../../../etc/".into()), Err(DraftError::Id)));
    }
}
