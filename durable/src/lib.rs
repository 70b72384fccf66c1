//! Files that must be whole after a crash or a power cut: written beside their place, synced, then renamed into it.
//!
//! Everything here waits for a disk; async code calls it through [`blocking`].

#![warn(clippy::missing_errors_doc)]

mod blocking;

pub use blocking::{Interrupted, blocking};

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the name of a file that is being written ends in.
const UNFINISHED: &str = ".new";

/// Who may do what with a file that is written here, whatever the umask says.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    mode: u32,
    owner: Option<(u32, u32)>,
}

impl Access {
    /// Mode 0600.
    pub const PRIVATE: Self = Self { mode: 0o600, owner: None };
    /// Mode 0644.
    pub const READABLE: Self = Self { mode: 0o644, owner: None };
    /// Mode 0755.
    pub const EXECUTABLE: Self = Self { mode: 0o755, owner: None };

    /// The same for another user and group than this process's.
    #[must_use]
    pub const fn owned_by(self, uid: u32, gid: u32) -> Self {
        Self { owner: Some((uid, gid)), ..self }
    }

    /// Opens `path` for writing, with nothing in it; what comes into it is seen by no more users than these.
    fn open(self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        let file = options.write(true).mode(0o600).open(path)?;
        if let Some((uid, gid)) = self.owner {
            fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(self.mode))?;
        Ok(file)
    }
}

/// Replaces `path` by a file of mode 0600 with `contents`: after a crash either the old or the new file is there, whole.
///
/// # Errors
/// What the file system reports; `path` is then the old file or the new one, and may not be durable.
pub fn write_atomic(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_atomic_with(path, Access::PRIVATE, |file| file.write_all(contents))
}

/// As [`write_atomic`], with this access and what `fill` writes.
///
/// # Errors
/// What `fill` and the file system report; `path` is then the old file or the new one, and may not be durable.
pub fn write_atomic_with(
    path: &Path,
    access: Access,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    replace(path, access, |file| fill(file).and_then(|()| file.sync_all()))?;
    sync_parent(path)
}

fn replace(path: &Path, access: Access, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let beside = beside(path);
    let mut file = access.open(&beside, OpenOptions::new().create(true).truncate(true))?;
    fill(&mut file)?;
    fs::rename(beside, path)
}

/// As [`write_atomic`], for what only this process's successor needs: after a power cut the file may be there or not, or be
/// empty.
///
/// # Errors
/// What the file system reports; `path` is then the old file.
pub fn write_unsynced(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace(path, Access::PRIVATE, |file| file.write_all(contents))
}

/// A file of JSON that is whole on its disk but for its end, so that it says nothing yet. Dropped, it never does.
///
/// To end it takes a fraction of the time of [`write_atomic`]: the file system has nothing of its own to write down with it.
#[derive(Debug)]
#[must_use]
pub struct Prepared {
    file: File,
    end: u64,
}

/// Makes `path` a file of mode 0600 with `json`, and with something behind it that no parser takes. What was there is lost.
///
/// # Errors
/// What the file system reports; `path` says nothing then.
pub fn prepare(path: &Path, json: &[u8]) -> io::Result<Prepared> {
    // A file of its own: whoever still has one that was prepared earlier ends that, and not this.
    remove_file(path)?;
    let mut file = Access::PRIVATE.open(path, OpenOptions::new().create_new(true))?;
    file.write_all(json)?;
    let end = file.stream_position()?;
    file.write_all(b"#")?;
    file.sync_all()?;
    sync_parent(path)?;
    Ok(Prepared { file, end })
}

impl Prepared {
    /// Ends the file, durably.
    ///
    /// # Errors
    /// What the file system reports; the file may have ended or not.
    pub fn end(self) -> io::Result<()> {
        self.file.write_all_at(b"\n", self.end)?;
        self.file.sync_data()
    }
}

/// Makes `path`, a file with this access and `contents`, unless it is there already; says whether it made it. Whichever it
/// is, the file is there after a crash, whole. Of several callers at the same time, also in several processes, one makes
/// it. Its file system must know hard links.
///
/// A caller that is killed may leave something for [`remove_unfinished`].
///
/// # Errors
/// What the file system reports; `path` is then absent or whole.
pub fn create_atomic(path: &Path, access: Access, contents: &[u8]) -> io::Result<bool> {
    static COUNT: AtomicU64 = AtomicU64::new(0);

    let mut made = false;
    // A link to nowhere is something that is there.
    if path.symlink_metadata().is_err() {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".{}-{count}{UNFINISHED}", std::process::id()));
        let linked = access
            .open(&temporary, OpenOptions::new().create_new(true))
            .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
            .and_then(|()| fs::hard_link(&temporary, path));
        remove_file(&temporary)?;
        made = match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            other => other.map(|()| true)?,
        };
    }
    // Also for one that somebody else has made: it may not be durable yet.
    sync_parent(path)?;
    Ok(made)
}

/// Removes from `folder` what callers of [`create_atomic`] that were killed left there.
///
/// # Errors
/// What the file system reports; some of them may be left.
pub fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") && name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes()) {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// The bytes of a secret file of mode 0600, made with `generate` when it does not exist yet.
///
/// # Errors
/// `InvalidData` for a file of another length than `N` bytes, otherwise what the file system reports.
pub fn read_or_create<const N: usize>(path: &Path, generate: impl FnOnce() -> [u8; N]) -> io::Result<[u8; N]> {
    match File::open(path) {
        Ok(file) => {
            let mut bytes = Vec::with_capacity(N + 1);
            file.take(N as u64 + 1).read_to_end(&mut bytes)?;
            <[u8; N]>::try_from(bytes).map_err(|bytes| {
                let found = bytes.len();
                io::Error::new(io::ErrorKind::InvalidData, format!("Expected {N} bytes, found {found} or more"))
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = generate();
            write_atomic(path, &bytes)?;
            Ok(bytes)
        }
        Err(error) => Err(error),
    }
}

/// Makes the entry of `path` in its folder durable.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Like `remove_dir_all`, and content when there is nothing to remove.
///
/// # Errors
/// What the file system reports, but for `NotFound`; a part of the tree may be left.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_dir_all(path))
}

/// Like `remove_file`, and content when there is nothing to remove.
///
/// # Errors
/// What the file system reports, but for `NotFound`.
pub fn remove_file(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_file(path))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(UNFINISHED);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_private_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");

        write_unsynced(&path, b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write_atomic(&path, b"two").unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_prepared_is_no_json_until_it_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let says = || serde_json::from_slice::<u32>(&fs::read(&path).unwrap()).ok();

        let earlier = prepare(&path, b"1234").unwrap();
        assert_eq!(says(), None);

        let prepared = prepare(&path, b"56").unwrap();
        earlier.end().unwrap();
        assert_eq!(says(), None);
        prepared.end().unwrap();
        assert_eq!(says(), Some(56));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_has_the_access_that_was_asked_for_whatever_was_left_of_an_earlier_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (shared, private) = (folder.path().join("shared"), folder.path().join("private"));
        fs::write(beside(&private), b"half of what was to be written").unwrap();
        fs::set_permissions(beside(&private), Permissions::from_mode(0o666)).unwrap();

        create_atomic(&shared, Access::READABLE, b"for all").unwrap();
        write_atomic(&private, b"for one").unwrap();

        assert_eq!((mode(&shared), mode(&private)), (0o644, 0o600));
        assert_eq!(fs::read(&private).unwrap(), b"for one");
    }

    #[test]
    fn a_link_to_nowhere_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        std::os::unix::fs::symlink("nowhere", &path).unwrap();

        assert!(!create_atomic(&path, Access::PRIVATE, b"contents").unwrap());

        assert_eq!(fs::read_link(&path).unwrap(), Path::new("nowhere"));
    }

    #[test]
    fn of_many_who_create_a_file_one_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");

        let makers: Vec<u8> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16u8)
                .map(|number| {
                    let path = &path;
                    scope
                        .spawn(move || create_atomic(path, Access::PRIVATE, &[number; 4096]).unwrap().then_some(number))
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });

        assert_eq!(makers.len(), 1);
        assert_eq!(fs::read(&path).unwrap(), [makers[0]; 4096]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_created_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let name_too_long = folder.path().join("x".repeat(300));

        create_atomic(&name_too_long, Access::PRIVATE, b"contents").unwrap_err();

        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_left_unfinished_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".1-0.new"), b"half").unwrap();
        create_atomic(&folder.path().join("somebodys.new"), Access::PRIVATE, b"whole").unwrap();

        remove_unfinished(folder.path()).unwrap();

        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["somebodys.new"]);
    }

    #[test]
    fn a_secret_is_made_once_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");

        let first = read_or_create(&path, || [7u8; 32]).unwrap();
        let second = read_or_create(&path, || [8u8; 32]).unwrap();
        fs::write(&path, [1; 31]).unwrap();

        assert_eq!(first, second);
        assert_eq!(read_or_create(&path, || [8u8; 32]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
