//! Looking paths up in a volume.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, chownat, mkdirat, openat2, syncfs};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid};

use super::FOLDER_MODE;

/// A descriptor that is only a place to look names up from.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// How often a path is looked up that is being renamed.
const ATTEMPTS: usize = 16;

/// The root of a volume.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

impl Root {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(folder, flags, Mode::empty())?))
    }

    /// Opens what is at `path`, an absolute path of the volume. Symbolic links are followed, the last one too unless `flags`
    /// say otherwise, and none leads out of the volume.
    pub(super) fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let name = match path.trim_start_matches('/') {
            "" => ".",
            name => name,
        };
        in_root(&self.0, name, flags)
    }

    /// Has all that was changed in the volume on stable storage.
    pub(super) fn sync(&self) -> Result<()> {
        syncfs(self.open_at("/", OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// The folder that holds the last name of `path`, and that name; the root has none.
    pub(super) fn parent<'a>(&self, path: &'a str) -> Result<(OwnedFd, &'a str)> {
        let (folder, name) = split(path)?;
        Ok((self.open_at(folder, PLACE)?, name))
    }

    /// The same; folders that are missing are made, for `uid` and `gid`.
    pub(super) fn ensure_parent<'a>(&self, path: &'a str, uid: u32, gid: u32) -> Result<(OwnedFd, &'a str)> {
        let (above, last) = split(path)?;
        match self.open_at(above, PLACE) {
            Err(Errno::NOENT) => {}
            other => return Ok((other?, last)),
        }
        let mut folder = self.open_at("/", PLACE)?;
        let mut length = 0;
        for name in above.split('/').filter(|name| !name.is_empty()) {
            length += 1 + name.len();
            folder = match open_plain(&folder, name) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => make(&folder, name, uid, gid)?,
                // A link, or no folder.
                Err(_) => self.open_at(above.get(..length).unwrap_or(above), PLACE)?,
            };
        }
        Ok((folder, last))
    }
}

/// Opens the folder called `name`, and no link to one.
fn open_plain(folder: impl AsFd, name: &str) -> Result<OwnedFd> {
    in_root(folder, name, PLACE | OFlags::NOFOLLOW)
}

fn in_root(folder: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let attempt = || openat2(&folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    // The kernel does not say where a path leads while something on it is renamed.
    let busy = |result: &Result<OwnedFd>| !matches!(result, Err(Errno::AGAIN));
    (1..ATTEMPTS).map(|_| attempt()).find(busy).unwrap_or_else(attempt)
}

fn make(folder: &OwnedFd, name: &str, uid: u32, gid: u32) -> Result<OwnedFd> {
    match mkdirat(folder, name, Mode::from_raw_mode(FOLDER_MODE)) {
        Ok(()) => {}
        // Made by another in between.
        Err(Errno::EXIST) => return open_plain(folder, name),
        Err(error) => return Err(error),
    }
    let made = open_plain(folder, name)?;
    chownat(&made, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    Ok(made)
}

/// The path above the last name, and that name.
fn split(path: &str) -> Result<(&str, &str)> {
    path.rsplit_once('/').filter(|(_, name)| !name.is_empty()).ok_or(Errno::INVAL)
}

/// The path by which the kernel names a descriptor, for calls that take paths only.
pub(super) fn path_of(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Has the names in `folder` on stable storage, and what was done to them.
pub(super) fn sync(folder: &OwnedFd) -> io::Result<()> {
    File::from(in_root(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY)?).sync_all()
}
