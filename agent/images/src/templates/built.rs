//! Versions that were built: their disk is a stack of layers, which a sandbox, a checkpoint or a builder's machine wrote.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::ids::VersionId;

use super::{HIDDEN, Store, Stored};
use crate::layers::Layer;

/// A folder for the layers of a version that is being made. Removed when dropped, unless it was published; so dropping blocks.
#[derive(Debug)]
pub struct Draft {
    id: VersionId,
    folder: PathBuf,
}

/// Why a version cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    #[error("id: must be `{}` and 22 characters of base32", VersionId::PREFIX)]
    Id,
    #[error("There is a version {0} already; choose another id")]
    Exists(VersionId),
    #[error("Cannot create the version's folder")]
    Storage(#[source] io::Error),
}

impl Draft {
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(error) = durable::remove_tree(&self.folder) {
            tracing::warn!(path = %self.folder.display(), %error, "cannot remove a draft now; the next start will");
        }
    }
}

impl Store {
    /// Begins a version. The caller sees to it that nobody else makes one of this id. Blocks.
    ///
    /// # Errors
    /// [`DraftError`]: the id is none, or taken, or its folder cannot be made.
    pub fn draft(&self, id: &VersionId) -> Result<Draft, DraftError> {
        if !id.is_valid() {
            return Err(DraftError::Id);
        }
        // One that could not be read is in no list, but in the way.
        if self.find_any(id).is_some() || self.folder.join(id.as_str()).exists() {
            return Err(DraftError::Exists(id.clone()));
        }
        let folder = self.folder.join(format!("{HIDDEN}new-{id}"));
        fs::create_dir(&folder).map_err(DraftError::Storage)?;
        Ok(Draft { id: id.clone(), folder })
    }

    /// Makes a filled draft a version, which is pending. Durable when it returns. Blocks.
    ///
    /// # Errors
    /// Of the file system; then there is none.
    pub fn publish(&self, draft: Draft, version: TemplateVersion, disk: Vec<Layer>) -> io::Result<()> {
        for layer in &disk {
            File::open(draft.folder.join(&layer.name))?.sync_data()?;
        }
        let stored = Stored { version, disk, pending: true };
        stored.save(&draft.folder)?;
        File::open(&draft.folder)?.sync_all()?;
        CrashPoint::VersionMade.pass();
        let folder = self.folder.join(draft.id.as_str());
        fs::rename(&draft.folder, &folder)?;
        durable::sync_parent(&folder)?;
        CrashPoint::VersionPublished.pass();
        self.lock().versions.insert(draft.id.to_string(), Arc::new(stored));
        Ok(())
    }

    /// Lets everybody start from a version that is pending. Blocks.
    ///
    /// # Errors
    /// It is gone, or its manifest cannot be written.
    pub fn release(&self, id: &VersionId) -> io::Result<TemplateVersion> {
        let _writing = self.write_manifests();
        let found = self.lock().versions.get(id.as_str()).cloned();
        let stored = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the version is gone"))?;
        let released = Stored { pending: false, ..(*stored).clone() };
        released.save(&self.folder.join(id.as_str()))?;
        CrashPoint::VersionReleased.pass();
        let version = released.version.clone();
        if let Some(present) = self.lock().versions.get_mut(id.as_str()) {
            *present = Arc::new(released);
        }
        Ok(version)
    }

    /// Notes that in the version `id` the layer `upper` holds what `lower`, right below it, held, and removes that one's link.
    /// Blocks.
    ///
    /// # Errors
    /// While something is started from it, or where its manifest cannot be written.
    pub fn absorb(&self, id: &str, lower: &str, upper: &str) -> io::Result<()> {
        let _writing = self.write_manifests();
        let stored = {
            let mut shelf = self.lock();
            if shelf.pinned.contains_key(id) {
                return Err(io::Error::other("Something is being started from the version"));
            }
            let Some(present) = shelf.versions.get_mut(id) else { return Ok(()) };
            let Some(at) = present.disk.windows(2).position(|pair| pair[0].name == lower && pair[1].name == upper)
            else {
                return Ok(());
            };
            let mut stored = (**present).clone();
            stored.disk.remove(at);
            // Whoever starts from it now links the shorter chain; the longer one is as good while its link is there.
            *present = Arc::new(stored);
            Arc::clone(present)
        };
        let folder = self.folder.join(id);
        // Fails when the version was deleted meanwhile, which is as good.
        stored.save(&folder)?;
        durable::remove_file(&folder.join(lower))
    }

    /// Removes every pending version that is not one of `wanted`: nobody builds it any more. Blocks.
    ///
    /// # Errors
    /// Of the first that cannot be removed.
    pub fn remove_unwanted(&self, wanted: &HashSet<VersionId>) -> io::Result<()> {
        let pending = self.all().into_iter().filter(|(_, pending)| *pending).map(|(template, _)| template);
        for template in pending.filter(|template| !wanted.contains(&VersionId::from(template.version.id.as_str()))) {
            tracing::info!(version = template.version.id, "removing a version that nobody builds any more");
            self.lock().versions.remove(&template.version.id);
            super::remove(&template.folder)?;
        }
        Ok(())
    }
}
