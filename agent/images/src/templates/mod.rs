//! The templates on this host: root file systems that sandboxes start from.
//!
//! A **template** has a slug and any number of **versions**. A version is a folder named by its id, with `template.json` and
//! the layers of its disk, which are never changed again but for merges ([`layers`](crate::layers)).
//!
//! ```text
//! <folder>/<ver…>/template.json
//!                 root.ext4          of one that was imported ([`import`]): an image that is the whole disk
//!                 disk-<n>.layer     of one that was built ([`built`]): layers that it may share with others
//! <folder>/.…                        what is being made or removed
//! ```
//!
//! A version is filled under a hidden name, synced and renamed, and goes the other way round, so a crash leaves no half version;
//! what it leaves is removed when the store is opened. One that was built is **pending** at first: found by who builds it, and
//! by nobody else before it is [released](Store::release).

mod built;
mod copy;
mod import;
mod stored;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::id;
use sandpiper_protocol::template::{ImageSettings, StartCommand};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};

pub use self::built::{Draft, DraftError};
pub use self::import::{ImportError, Imported};
use self::stored::Stored;
use crate::layers::{self, Layer, LayerError};

/// Prefix of a version's id.
const ID_PREFIX: &str = "ver";
/// What the names of folders begin with that are not, or not any more, a version.
const HIDDEN: &str = ".";

/// All versions on this host. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
    /// One import at a time: so the same image sent twice is one version, and the disk is read by one copy only.
    importing: Arc<Semaphore>,
    /// Held while the manifest of a version that is there is written anew.
    writing: Arc<Mutex<()>>,
    /// A pin was dropped.
    unpinned: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Shelf {
    versions: BTreeMap<String, Arc<Stored>>,
    /// How many starts are linking the files of which.
    pinned: HashMap<String, usize>,
}

/// A version and its disk.
#[derive(Debug, Clone)]
pub struct Template {
    pub version: TemplateVersion,
    /// Where its files are.
    pub folder: PathBuf,
    /// Bottom first.
    pub disk: Vec<Layer>,
}

/// Keeps the files of a version where they are, until dropped.
#[derive(Debug)]
pub struct Pin {
    id: String,
    store: Store,
}

/// What a version says of the guests that are booted from its disk, or from what was made of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestDefaults {
    #[serde(skip_serializing_if = "ImageSettings::is_empty")]
    pub settings: ImageSettings,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartCommand>,
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("Cannot read the templates in {}", path.display())]
    Read { path: PathBuf, source: io::Error },
}

/// Why a version was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    #[error("Sandboxes are being started from the version {0}; try again")]
    Pinned(String),
    #[error("Cannot delete the version")]
    Storage(#[from] io::Error),
}

impl From<durable::Interrupted> for DeleteError {
    fn from(interrupted: durable::Interrupted) -> Self {
        Self::Storage(interrupted.into())
    }
}

impl GuestDefaults {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Template {
    /// What guests that start from it are told.
    pub fn defaults(&self) -> GuestDefaults {
        GuestDefaults { settings: self.version.settings.clone(), start: self.version.start.clone() }
    }

    /// GiB that a disk needs to hold its file system. Blocks for a moment.
    ///
    /// # Errors
    /// Its image cannot be looked at.
    pub fn least_disk_gib(&self) -> io::Result<u32> {
        if self.version.disk_gib > 0 {
            return Ok(self.version.disk_gib);
        }
        let sizes = self.disk.iter().map(|layer| Ok(fs::metadata(self.folder.join(&layer.name))?.len()));
        let size = sizes.collect::<io::Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
        Ok(u32::try_from(size.div_ceil(layers::disk_size(1))).unwrap_or(u32::MAX))
    }

    /// Links its disk into the folder `to`, each layer under the name that `name` gives it. Blocks.
    ///
    /// # Errors
    /// [`LayerError::Link`] of the first that cannot be linked; those before it are.
    pub fn link(&self, to: &Path, mut name: impl FnMut() -> String) -> Result<Vec<Layer>, LayerError> {
        let link = |layer: &Layer| {
            let name = name();
            layers::link(&self.folder.join(&layer.name), &to.join(&name))?;
            Ok(Layer { name, shared: true })
        };
        self.disk.iter().map(link).collect()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut shelf = self.store.lock();
        if let Some(count) = shelf.pinned.get_mut(&self.id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                shelf.pinned.remove(&self.id);
                self.store.unpinned.notify_waiters();
            }
        }
    }
}

impl Store {
    /// Opens the store in `folder`, which exists; removes what was being made or removed. Blocks.
    ///
    /// # Errors
    /// [`OpenError`] where the folder cannot be read. A version that cannot be read is left out, and logged.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Read { path: folder.to_owned(), source };
        let mut shelf = Shelf::default();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(HIDDEN) {
                durable::remove_tree(&entry.path()).map_err(failed)?;
            } else if id::is_valid(ID_PREFIX, name) {
                match Stored::load(&entry.path(), name) {
                    Ok(stored) => drop(shelf.versions.insert(name.to_owned(), Arc::new(stored))),
                    Err(error) => tracing::error!(template = name, %error, "template left out: it cannot be read"),
                }
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            shelf: Arc::new(Mutex::new(shelf)),
            importing: Arc::new(Semaphore::new(1)),
            writing: Arc::default(),
            unpinned: Arc::default(),
        })
    }

    /// Every version that sandboxes can be started from, oldest first within its slug.
    pub fn list(&self) -> Vec<TemplateVersion> {
        let mut versions: Vec<_> =
            self.all().into_iter().filter(|(_, pending)| !pending).map(|(t, _)| t.version).collect();
        versions.sort_by(|a, b| (&a.slug, a.created_at, &a.id).cmp(&(&b.slug, b.created_at, &b.id)));
        versions
    }

    /// Every version, and whether it is pending.
    pub fn all(&self) -> Vec<(Template, bool)> {
        self.lock().versions.values().map(|stored| (self.template(stored), stored.pending)).collect()
    }

    /// A version that sandboxes can be started from, by its id.
    pub fn find(&self, version: &str) -> Option<Template> {
        let stored = self.lock().versions.get(version).cloned()?;
        (!stored.pending).then(|| self.template(&stored))
    }

    /// Likewise, or one that is pending.
    pub fn find_any(&self, version: &str) -> Option<Template> {
        let stored = self.lock().versions.get(version).cloned()?;
        Some(self.template(&stored))
    }

    /// As [`Self::find_any`], with its files kept where they are while something is started from them.
    pub fn pin(&self, version: &str) -> Option<(Template, Pin)> {
        let mut shelf = self.lock();
        let stored = shelf.versions.get(version).cloned()?;
        *shelf.pinned.entry(version.to_owned()).or_default() += 1;
        Some((self.template(&stored), Pin { id: version.to_owned(), store: self.clone() }))
    }

    /// Removes a version and frees its bytes; false where there is none. Nothing is started from it any more at once; for
    /// starts that are linking its files it waits, for `timeout` at most.
    ///
    /// # Errors
    /// [`DeleteError`]: it is there as before. Where it was hidden but not removed, the next start removes it.
    pub async fn delete(&self, version: &str, timeout: Duration) -> Result<bool, DeleteError> {
        let Some(stored) = self.lock().versions.remove(version) else { return Ok(false) };
        let put_back = || drop(self.lock().versions.insert(version.to_owned(), Arc::clone(&stored)));
        if tokio::time::timeout(timeout, self.wait_unpinned(version)).await.is_err() {
            put_back();
            return Err(DeleteError::Pinned(version.to_owned()));
        }
        let folder = self.folder.join(version);
        let removed = durable::blocking(move || remove(&folder)).await;
        if removed.is_err() && self.folder.join(version).exists() {
            put_back();
        }
        removed.map(|()| true).map_err(DeleteError::Storage)
    }

    async fn wait_unpinned(&self, version: &str) {
        loop {
            let mut unpinned = std::pin::pin!(self.unpinned.notified());
            unpinned.as_mut().enable();
            if !self.lock().pinned.contains_key(version) {
                return;
            }
            unpinned.await;
        }
    }

    fn template(&self, stored: &Stored) -> Template {
        let version = stored.version.clone();
        Template { folder: self.folder.join(&version.id), disk: stored.layers(), version }
    }

    /// The right to write manifests anew, so that of two changes neither is lost.
    fn write_manifests(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a version's folder: from one moment to the next it is no version any more. Blocks.
fn remove(folder: &Path) -> io::Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let hidden = folder.with_file_name(format!("{HIDDEN}deleted-{name}"));
    fs::rename(folder, &hidden)?;
    CrashPoint::VersionHidden.pass();
    durable::sync_parent(folder)?;
    durable::remove_tree(&hidden)?;
    CrashPoint::VersionRemoved.pass();
    Ok(())
}

#[cfg(test)]
mod tests;
