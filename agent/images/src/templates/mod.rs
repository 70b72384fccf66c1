//! The templates on this host: root file system images that sandboxes start from.
//!
//! A **template** has a slug and any number of **versions**; the newest is the one that new sandboxes get. A version is a
//! folder named by its id, with `root.ext4` (read-only, never changed again) and `template.json`. [`Store::import`] is the
//! only way in, whatever made the image: it copies into a hidden folder beside the versions, syncs, and renames, so a
//! crash leaves no half version; what it leaves is removed when the store is opened.

mod copy;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_protocol::agent::{ImportTemplate, TemplateVersion};
use sandpiper_protocol::id;
use tokio::sync::Semaphore;

/// Prefix of a version's id.
const ID_PREFIX: &str = "ver";
/// Prefix of folders that are not a version yet.
const PARTIAL_PREFIX: &str = ".importing-";

/// All versions on this host. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
    versions: Arc<Mutex<BTreeMap<String, TemplateVersion>>>,
    /// One import at a time: so the same image sent twice is one version, and the disk is read by one copy only.
    importing: Arc<Semaphore>,
}

/// A version and its image.
#[derive(Debug, Clone)]
pub struct Template {
    pub version: TemplateVersion,
    pub image: PathBuf,
}

/// Whether an import added something.
#[derive(Debug, PartialEq, Eq)]
pub enum Imported {
    Added(TemplateVersion),
    Existing(TemplateVersion),
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("Cannot read the templates in {}", path.display())]
    Read { path: PathBuf, source: io::Error },
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
    /// Opens the store in `folder`, which exists; removes what an interrupted import left. Blocks.
    ///
    /// # Errors
    /// [`OpenError`] where the folder cannot be read. A version that cannot be read is left out, and logged.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Read { path: folder.to_owned(), source };
        let mut versions = BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(PARTIAL_PREFIX) {
                durable::remove_tree(&entry.path()).map_err(failed)?;
            } else if id::is_valid(ID_PREFIX, name) {
                match read_version(&entry.path(), name) {
                    Ok(version) => {
                        versions.insert(version.id.clone(), version);
                    }
                    Err(error) => tracing::error!(template = name, %error, "template left out: it cannot be read"),
                }
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            versions: Arc::new(Mutex::new(versions)),
            importing: Arc::new(Semaphore::new(1)),
        })
    }

    /// Every version, oldest first within its slug.
    pub fn list(&self) -> Vec<TemplateVersion> {
        let mut versions: Vec<_> = self.lock().values().cloned().collect();
        versions.sort_by(|a, b| (&a.slug, a.created_at, &a.id).cmp(&(&b.slug, b.created_at, &b.id)));
        versions
    }

    /// A version by its id.
    pub fn find(&self, version: &str) -> Option<Template> {
        let version = self.lock().get(version)?.clone();
        Some(Template { image: self.folder.join(&version.id).join("root.ext4"), version })
    }

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
        let partial = self.folder.join(format!("{PARTIAL_PREFIX}{version_id}"));
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
            .open(partial.join("root.ext4"))
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
        };
        let publish = || {
            target.sync_all()?;
            durable::write_atomic(&partial.join("template.json"), &serde_json::to_vec_pretty(&version)?)?;
            let path = self.folder.join(version_id);
            fs::rename(partial, &path)?;
            durable::sync_parent(&path)
        };
        publish().map_err(ImportError::Storage)?;
        self.lock().insert(version.id.clone(), version.clone());
        Ok(Imported::Added(version))
    }

    fn find_same(&self, slug: &str, is_same: impl Fn(&TemplateVersion) -> bool) -> Option<TemplateVersion> {
        self.lock().values().find(|version| version.slug == slug && is_same(version)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TemplateVersion>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
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

fn read_version(folder: &Path, name: &str) -> io::Result<TemplateVersion> {
    let version: TemplateVersion = serde_json::from_slice(&fs::read(folder.join("template.json"))?)?;
    if version.id != name {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its id is not its folder's name"));
    }
    let image = File::open(folder.join("root.ext4"))?;
    let length = image.metadata()?.len();
    if copy::ext4_length(&image)?.is_none_or(|needed| needed > length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "root.ext4 is damaged; import the image again"));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::agent::RuntimeBaseline;
    use std::io::{Seek, SeekFrom, Write};
    use std::os::unix::fs::FileExt;

    fn image(folder: &Path, name: &str, content: &[u8]) -> ImportTemplate {
        let path = folder.join(name);
        let mut file = File::create(&path).unwrap();
        file.set_len(1024 * 1024).unwrap();
        file.seek(SeekFrom::Start(1024 + 0x38)).unwrap();
        file.write_all(&[0x53, 0xef]).unwrap();
        file.seek(SeekFrom::Start(500_000)).unwrap();
        file.write_all(content).unwrap();
        ImportTemplate {
            slug: "base".into(),
            image: path.to_str().unwrap().into(),
            key: None,
            baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
        }
    }

    #[tokio::test]
    async fn an_imported_image_is_found_again_by_the_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let sources = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();

        let Imported::Added(version) = store.import(image(sources.path(), "a", b"one")).await.unwrap() else {
            panic!("not added")
        };

        let reopened = Store::open(folder.path()).unwrap();
        assert_eq!(reopened.list(), std::slice::from_ref(&version));
        let template = reopened.find(&version.id).unwrap();
        assert_eq!(fs::read(template.image).unwrap(), fs::read(sources.path().join("a")).unwrap());
    }

    #[tokio::test]
    async fn the_same_image_is_one_version_and_another_one_is_newer() {
        let folder = tempfile::tempdir().unwrap();
        let sources = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();

        let Imported::Added(first) = store.import(image(sources.path(), "a", b"one")).await.unwrap() else {
            panic!("not added")
        };
        let again = store.import(image(sources.path(), "b", b"one")).await.unwrap();
        let Imported::Added(second) = store.import(image(sources.path(), "c", b"two")).await.unwrap() else {
            panic!("not added")
        };

        assert_eq!(again, Imported::Existing(first.clone()));
        assert_eq!(store.list(), [first, second]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[tokio::test]
    async fn an_image_of_a_known_key_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let sources = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let request = ImportTemplate { key: Some("build-1".into()), ..image(sources.path(), "a", b"one") };
        let Imported::Added(first) = store.import(request.clone()).await.unwrap() else { panic!("not added") };
        fs::remove_file(&request.image).unwrap();

        let again = store.import(request).await.unwrap();

        assert_eq!(again, Imported::Existing(first));
    }

    #[tokio::test]
    async fn what_is_not_an_ext4_image_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let sources = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut request = image(sources.path(), "a", b"one");
        fs::write(&request.image, b"tiny").unwrap();

        let not_ext4 = store.import(request.clone()).await.unwrap_err();
        request = image(sources.path(), "a", b"one");
        request.slug = "../up".into();
        let bad_slug = store.import(request).await.unwrap_err();

        assert!(not_ext4.to_string().contains("ext4"), "{not_ext4}");
        assert!(matches!(bad_slug, ImportError::Invalid { field: "slug", .. }));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_image_shorter_than_its_file_system_is_neither_imported_nor_used() {
        let folder = tempfile::tempdir().unwrap();
        let sources = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let whole = image(sources.path(), "whole", b"one");
        let cut = image(sources.path(), "cut", b"two");
        for request in [&whole, &cut] {
            // 1,024 blocks of 1 KiB.
            File::options().write(true).open(&request.image).unwrap().write_all_at(&[0, 4, 0, 0], 1024 + 4).unwrap();
        }
        File::options().write(true).open(&cut.image).unwrap().set_len(1024 * 1024 - 1).unwrap();

        let refused = store.import(cut).await.unwrap_err();
        let Imported::Added(version) = store.import(whole).await.unwrap() else { panic!("not added") };
        let stored = File::options().write(true).open(store.find(&version.id).unwrap().image).unwrap();
        assert_eq!(Store::open(folder.path()).unwrap().list().len(), 1);
        stored.set_len(512 * 1024).unwrap();

        assert!(refused.to_string().contains("is cut off"), "{refused}");
        assert!(Store::open(folder.path()).unwrap().list().is_empty());
        let error = read_version(&folder.path().join(&version.id), &version.id).unwrap_err();
        assert!(error.to_string().contains("root.ext4 is damaged; import"), "{error}");
    }

    #[test]
    fn an_interrupted_import_is_gone_after_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let half = folder.path().join(format!("{PARTIAL_PREFIX}{}", id::generate(ID_PREFIX)));
        fs::create_dir(&half).unwrap();
        fs::write(half.join("root.ext4"), b"half").unwrap();

        let store = Store::open(folder.path()).unwrap();

        assert!(store.list().is_empty());
        assert!(!half.exists());
    }
}
