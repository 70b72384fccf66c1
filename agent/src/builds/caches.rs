//! What builds of a team can use again: one disk for each team, which only builders' machines read as a file system.
//!
//! ```text
//! <folder>/<hash of the team>.layer     formatted by the first builder's machine; whoever has the team's turn has it
//! <folder>/.new-<hash>.layer            not formatted yet
//! ```
//!
//! A machine that is killed leaves a journal, which the next one's kernel replays. A cache that cannot be mounted is removed:
//! it holds nothing that cannot be made again. So is one that was not used for long.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::layers;
use sandpiper_protocol::ids::TeamId;
use sha2::{Digest, Sha256};

const HIDDEN: &str = ".";
/// How long one is kept that no build uses: much longer than a build may take, which uses it from its beginning.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// The caches of this host.
#[derive(Debug, Clone)]
pub(super) struct Caches {
    folder: PathBuf,
    size_gib: u32,
}

/// A team's cache, opened for a machine.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) file: File,
    pub(super) size: u64,
    /// Nothing is on it yet.
    pub(super) is_new: bool,
    path: PathBuf,
    hidden: PathBuf,
}

impl Caches {
    /// Opens the caches in `folder`, which exists; removes those that were not finished. Blocks.
    pub(super) fn open(folder: PathBuf, size_gib: u32) -> io::Result<Self> {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if is_hidden(&entry) {
                durable::remove_file(&entry.path())?;
            }
        }
        Ok(Self { folder, size_gib })
    }

    /// Removes those that no build has used for long. Blocks.
    pub(super) fn remove_unused(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let unused = SystemTime::now().duration_since(entry.metadata()?.modified()?).unwrap_or_default();
            if unused > KEEP && !is_hidden(&entry) {
                durable::remove_file(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes the one that was not used for longest; false where there is none. A machine that has it keeps it to its end.
    /// Blocks.
    pub(super) fn remove_oldest(&self) -> io::Result<bool> {
        let mut oldest: Option<(SystemTime, PathBuf)> = None;
        for entry in fs::read_dir(&self.folder)?.filter(|entry| entry.as_ref().is_ok_and(|entry| !is_hidden(entry))) {
            let entry = entry?;
            let used = entry.metadata()?.modified()?;
            if oldest.as_ref().is_none_or(|(time, _)| used < *time) {
                oldest = Some((used, entry.path()));
            }
        }
        let Some((_, path)) = oldest else { return Ok(false) };
        tracing::info!(path = %path.display(), "removing a build cache: the disk has no room for what is needed more");
        durable::remove_file(&path)?;
        Ok(true)
    }

    /// Removes the cache of a team, if there is one. Blocks.
    pub(super) fn discard(&self, team: &TeamId) -> io::Result<()> {
        durable::remove_file(&self.paths(team).0)
    }

    /// The cache of a team whose turn the caller has. Blocks.
    pub(super) fn of(&self, team: &TeamId) -> io::Result<Cache> {
        let (path, hidden) = self.paths(team);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                file.set_modified(SystemTime::now())?;
                let size = file.metadata()?.len();
                Ok(Cache { file, size, is_new: false, path, hidden })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                durable::remove_file(&hidden)?;
                let size = layers::disk_size(self.size_gib);
                let file = layers::create(&hidden, size).map_err(io::Error::other)?;
                Ok(Cache { file, size, is_new: true, path, hidden })
            }
            Err(error) => Err(error),
        }
    }

    /// Where the cache of a team is, and where it is before it has a file system.
    fn paths(&self, team: &TeamId) -> (PathBuf, PathBuf) {
        let hash: String = Sha256::digest(team.as_str()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{hash}.layer");
        (self.folder.join(&name), self.folder.join(format!("{HIDDEN}new-{name}")))
    }
}

fn is_hidden(entry: &fs::DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(HIDDEN.as_bytes())
}

impl Cache {
    /// Where it is once a machine has made its file system, and from where to.
    pub(super) fn paths(&self) -> (PathBuf, PathBuf) {
        (self.hidden.clone(), self.path.clone())
    }
}

/// Keeps a new cache, on which there is a file system now. Blocks.
pub(super) fn keep((hidden, path): &(PathBuf, PathBuf)) -> io::Result<()> {
    CrashPoint::CacheFormatted.pass();
    fs::rename(hidden, path)?;
    durable::sync_parent(path)
}

/// Removes a cache that cannot be used. Blocks.
pub(super) fn discard(path: &Path) -> io::Result<()> {
    durable::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_a_teams_own_and_is_kept_once_it_has_a_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let caches = Caches::open(folder.path().to_owned(), 1).unwrap();
        let first = caches.of(&"team_a".into()).unwrap();
        assert!(first.is_new && first.size == 1 << 30);
        assert!(caches.of(&"team_a".into()).unwrap().is_new, "a machine that died made no file system");
        keep(&caches.of(&"team_a".into()).unwrap().paths()).unwrap();

        let caches = Caches::open(folder.path().to_owned(), 2).unwrap();
        let again = caches.of(&"team_a".into()).unwrap();
        assert!(!again.is_new && again.size == 1 << 30 && caches.of(&"../team_b".into()).unwrap().is_new);
        assert!(caches.remove_oldest().unwrap() && !caches.remove_oldest().unwrap());
        keep(&caches.of(&"team_a".into()).unwrap().paths()).unwrap();
        let again = caches.of(&"team_a".into()).unwrap();
        let old = SystemTime::now() - KEEP - Duration::from_secs(60);
        again.file.set_modified(old).unwrap();

        Caches::open(folder.path().to_owned(), 1).unwrap().remove_unused().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
