//! Removing a file, or whatever is at a path with all that is in it. However much that is, nobody waits for it in silence: after
//! some time the rest is left to the next request, which goes on where this one stopped.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat};
use rustix::io::{Errno, Result};

use super::VolumeError;
use super::root::{Root, sync};

/// Levels of a tree that are open at the same time. What lies deeper is moved up first.
const LEVELS: usize = 64;

/// Names that are read of a folder before they are removed.
const BATCH: usize = 256;

/// Tells the names apart that folders are moved up by.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Removes a file, or whatever is no folder.
pub(super) fn file(root: &Root, path: &str) -> std::result::Result<(), VolumeError> {
    let failed = VolumeError::at(path);
    let (folder, name) = root.parent(path).map_err(&failed)?;
    unlinkat(&folder, name, AtFlags::empty()).map_err(&failed)?;
    sync(&folder).map_err(VolumeError::at(path))
}

/// Removes what is at `path`, and if it is a folder all that is in it, as far as it gets before `deadline`; something in any
/// case. False if there is more. Links are removed, not followed.
pub(super) fn tree(root: &Root, path: &str, deadline: Instant) -> std::result::Result<bool, VolumeError> {
    let failed = VolumeError::at(path);
    if path == "/" {
        return Err(VolumeError::Invalid("The volume's root cannot be deleted: delete what is in it".to_owned()));
    }
    let (folder, name) = root.parent(path).map_err(&failed)?;
    let name = CString::new(name).map_err(|_| failed(Errno::INVAL))?;
    if let Some(top) = remove(&folder, &name).map_err(&failed)? {
        if !empty(top, deadline).map_err(&failed)? {
            return Ok(false);
        }
        unlinkat(&folder, &name, AtFlags::REMOVEDIR).map_err(&failed)?;
    }
    sync(&folder).map_err(VolumeError::at(path))?;
    Ok(true)
}

/// Removes one entry of a folder; opens it if it is a folder with something in it.
fn remove(folder: impl AsFd, name: &CStr) -> Result<Option<OwnedFd>> {
    match unlinkat(&folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        other => return other.map(|()| None),
    }
    match unlinkat(&folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY) => {}
        other => return other.map(|()| None),
    }
    openat(&folder, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map(Some)
}

/// Removes all that is in a folder, however deep: in a loop, with a fixed number of descriptors. False if the deadline passed
/// before that was done.
fn empty(top: OwnedFd, deadline: Instant) -> Result<bool> {
    // Each but the first with its name in the one before.
    let mut open = vec![(top, CString::default())];
    while let Some((folder, _)) = open.last() {
        match clear(folder, deadline)? {
            Cleared::Late => return Ok(false),
            Cleared::Folder(inner, name) if open.len() < LEVELS => open.push((inner, name)),
            Cleared::Folder(inner, name) => move_up(&open, inner, &name)?,
            Cleared::All => {
                let Some((_, name)) = open.pop() else { break };
                if let Some((above, _)) = open.last() {
                    gone(unlinkat(above, &name, AtFlags::REMOVEDIR))?;
                }
            }
        }
    }
    Ok(true)
}

/// How far a folder was cleared.
enum Cleared {
    All,
    /// Up to this one in it, which is a folder with something in it.
    Folder(OwnedFd, CString),
    /// The deadline has passed.
    Late,
}

/// Removes what is in a folder, up to the first folder that is not empty.
fn clear(folder: &OwnedFd, deadline: Instant) -> Result<Cleared> {
    loop {
        let names = some_names(folder)?;
        if names.is_empty() {
            return Ok(Cleared::All);
        }
        for name in names {
            match remove(folder, &name) {
                Ok(None) | Err(Errno::NOENT) => {}
                Ok(Some(inner)) => return Ok(Cleared::Folder(inner, name)),
                Err(error) => return Err(error),
            }
        }
        // After a batch, so that every request gets somewhere: one that finds only folders goes down, where there is an end.
        if Instant::now() >= deadline {
            return Ok(Cleared::Late);
        }
    }
}

/// Moves the folder `name` of the lowest open one to the top, where it is found again.
fn move_up(open: &[(OwnedFd, CString)], inner: OwnedFd, name: &CStr) -> Result<()> {
    // The kernel refuses to move what is in use as a folder of another mount, not what is merely open.
    drop(inner);
    let (Some((top, _)), Some((lowest, _))) = (open.first(), open.last()) else { return Ok(()) };
    loop {
        let new = format!(".sandpiper-removed-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        match renameat_with(lowest, name, top, new, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return gone(other),
        }
    }
}

/// What another has removed meanwhile is removed; a folder that another has put something into is looked into again.
fn gone(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        other => other,
    }
}

/// The first names of a folder.
fn some_names(folder: &OwnedFd) -> Result<Vec<CString>> {
    let is_entry = |name: &CStr| name != c"." && name != c"..";
    let names = Dir::read_from(folder)?.map(|item| item.map(|item| item.file_name().to_owned()));
    names.filter(|name| name.as_ref().map_or(true, |name| is_entry(name))).take(BATCH).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_tree_that_takes_long_is_removed_in_several_requests() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        for name in ["tree/a/b", "tree/a/c", "tree/d"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            for number in 0..BATCH {
                fs::write(folder.path().join(format!("{name}/{number}")), "").unwrap();
            }
        }
        let count = || fs::read_dir(folder.path()).unwrap().count();

        let requests = (1..).find(|_| tree(&root, "/tree", Instant::now()).unwrap()).unwrap();

        assert!((3..20).contains(&requests), "{requests}");
        assert_eq!(count(), 0);
        assert!(matches!(tree(&root, "/tree", Instant::now()), Err(VolumeError::Path { .. })));
    }
}
