//! Versions that are imported: an ext4 image on this host, copied into a version's folder.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_protocol::agent::{ImportTemplate, TemplateVersion};
use sandpiper_protocol::id;
use sandpiper_protocol::template::ImageSettings;

use super::stored::{IMAGE, Stored};
use super::{ID_PREFIX, Store, copy};

/// Prefix of the hidden folders that images are copied into.
pub(super) const IMPORTING: &str = ".importing-";

/// Whether an import added something.
#[derive(Debug, PartialEq, Eq)]
pub enum Imported {
    Added(TemplateVersion),
    Existing(TemplateVersion),
}

/// Why an image was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{field}: {problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("Cannot store the template")]
    Storage(#[source] io::Error),
}

impl From<durable::Interrupted> for ImportError {
    fn from(interrupted: durable::Interrupted) -> Self {
        Self::Storage(interrupted.into())
    }
}

impl Store {
    /// Adds an image as the newest version of its slug, unless the slug has that very image already.
    ///
    /// # Errors
    /// [`ImportError::Invalid`] names the field that is wrong, [`ImportError::Storage`] is of the file system.
    pub async fn import(&self, request: ImportTemplate) -> Result<Imported, ImportError> {
        let closed = |_| ImportError::Storage(io::Error::other("The store is closed"));
        let permit = self.importing.clone().acquire_owned().await.map_err(closed)?;
        let store = self.clone();
        let import = durable::blocking(move || {
            // Held by the work, not by the request: a client that goes away does not let a second import in.
            let _permit = permit;
            store.import_blocking(&request)
        });
        import.await
    }

    fn import_blocking(&self, request: &ImportTemplate) -> Result<Imported, ImportError> {
        check(request)?;
        if let Some(key) = &request.key
            && let Some(existing) = self.find_same(&request.slug, |version| version.key.as_ref() == Some(key))
        {
            return Ok(Imported::Existing(existing));
        }
        let mut image = open_image(Path::new(&request.image))?;
        let version_id = id::generate(ID_PREFIX);
        let partial = self.folder.join(format!("{IMPORTING}{version_id}"));
        let result = self.fill(&mut image, &partial, &version_id, request);
        if !matches!(result, Ok(Imported::Added(_)))
            && let Err(error) = durable::remove_tree(&partial)
        {
            tracing::warn!(path = %partial.display(), %error, "cannot remove an unfinished import now; the next start will");
        }
        result
    }

    fn fill(
        &self,
        image: &mut File,
        partial: &Path,
        version_id: &str,
        request: &ImportTemplate,
    ) -> Result<Imported, ImportError> {
        fs::create_dir(partial).map_err(ImportError::Storage)?;
        let mut target = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(partial.join(IMAGE))
            .map_err(ImportError::Storage)?;
        let digest = copy::copy(image, &mut target).map_err(ImportError::Storage)?;
        if let Some(existing) = self.find_same(&request.slug, |version| version.digest == digest) {
            return Ok(Imported::Existing(existing));
        }
        let version = TemplateVersion {
            id: version_id.to_owned(),
            slug: request.slug.clone(),
            digest,
            key: request.key.clone(),
            created_at: Timestamp::now(),
            baseline: request.baseline,
            team: None,
            disk_gib: 0,
            settings: ImageSettings::default(),
            start: None,
            command: None,
            images: BTreeMap::new(),
            retained_bytes: 0,
        };
        let stored = Stored { version: version.clone(), disk: Vec::new(), pending: false };
        let publish = || {
            target.sync_all()?;
            stored.save(partial)?;
            let path = self.folder.join(version_id);
            fs::rename(partial, &path)?;
            durable::sync_parent(&path)
        };
        publish().map_err(ImportError::Storage)?;
        self.lock().versions.insert(version.id.clone(), Arc::new(stored));
        Ok(Imported::Added(version))
    }

    /// One of this slug that was imported, and of which `is_same` is true: what a team built is none.
    fn find_same(&self, slug: &str, is_same: impl Fn(&TemplateVersion) -> bool) -> Option<TemplateVersion> {
        let shelf = self.lock();
        let mut imported =
            shelf.versions.values().filter(|stored| stored.disk.is_empty()).map(|stored| &stored.version);
        imported.find(|version| version.slug == slug && is_same(version)).cloned()
    }
}

fn check(request: &ImportTemplate) -> Result<(), ImportError> {
    let invalid = |field, problem: String| Err(ImportError::Invalid { field, problem });
    let slug_ok = (1..=63).contains(&request.slug.len())
        && request.slug.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.'))
        && request.slug.as_bytes()[0].is_ascii_alphanumeric();
    if !slug_ok {
        return invalid(
            "slug",
            "must be 1 to 63 lower-case letters, digits, `-`, `_` or `.`, a letter or digit first".into(),
        );
    }
    if !Path::new(&request.image).is_absolute() {
        return invalid("image", "must be an absolute path on this host".into());
    }
    if request.key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 255) {
        return invalid("key", "must be 1 to 255 bytes".into());
    }
    if !(1..=64).contains(&request.baseline.cpu) {
        return invalid("baseline.cpu", "must be between 1 and 64".into());
    }
    // The least that a monitor gives a machine.
    if request.baseline.memory_mb < 32 {
        return invalid("baseline.memory_mb", "must be at least 32".into());
    }
    Ok(())
}

fn open_image(path: &Path) -> Result<File, ImportError> {
    let invalid = |problem: String| ImportError::Invalid { field: "image", problem };
    // Non-blocking, so that a path to a pipe does not hang the import.
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let image = open.map_err(|error| invalid(format!("cannot open {}: {error}", path.display())))?;
    let read = |error: io::Error| invalid(format!("cannot read {}: {error}", path.display()));
    if !image.metadata().map_err(read)?.is_file() {
        return Err(invalid(format!("{} is not a regular file", path.display())));
    }
    let length = image.metadata().map_err(read)?.len();
    match copy::ext4_length(&image).map_err(read)? {
        None => Err(invalid(format!("{} does not hold an ext4 file system", path.display()))),
        Some(needed) if needed > length => {
            Err(invalid(format!("{} is cut off: its file system has {needed} bytes, it {length}", path.display())))
        }
        Some(_) => Ok(image),
    }
}
