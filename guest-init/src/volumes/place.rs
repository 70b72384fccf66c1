//! Where volumes are mounted.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, XattrFlags, chownat, fchmod, fchown, fgetxattr, fsetxattr, fstat,
    mkdirat, openat2, unlinkat,
};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid};

use super::Owner;

/// Mode of a folder that is made, and of a volume's root at first.
const MODE: Mode = Mode::from_raw_mode(0o755);

/// Set on the root of a volume that was given to its user.
const GIVEN: &str = "trusted.sandpiper.given";

/// Without `O_NOFOLLOW`: with it a link at the end would be opened itself, and called no folder.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Opens the folder at `path` as a place to mount on. It and those above it are made if they are not there, for `owner`.
/// No symbolic link is followed: it would lead elsewhere than what was asked for, and than what was refused.
pub(super) fn ensure(path: &str, owner: Owner) -> Result<OwnedFd> {
    let mut folder = open_in(CWD, "/", PLACE)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        folder = match open_in(&folder, name, PLACE) {
            Err(Errno::NOENT) => make(&folder, name, owner)?,
            other => other?,
        };
    }
    Ok(folder)
}

fn make(folder: &OwnedFd, name: &str, owner: Owner) -> Result<OwnedFd> {
    match mkdirat(folder, name, MODE) {
        // Made by another meanwhile, whose it is.
        Err(Errno::EXIST) => return open_in(folder, name, PLACE),
        other => other?,
    }
    let made = open_in(folder, name, PLACE)?;
    chownat(&made, "", Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)), AtFlags::EMPTY_PATH)?;
    Ok(made)
}

/// Opens the folder that is at `path` now: the root of what is mounted there last.
pub(super) fn open(path: &str) -> Result<OwnedFd> {
    open_in(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn open_in(folder: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The device of the file system that is at `path` now.
pub(super) fn device_at(path: &str) -> Result<u64> {
    Ok(fstat(open_in(CWD, path, PLACE)?)?.st_dev)
}

/// The path by which the kernel names a descriptor, for calls that take paths only.
pub(super) fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Gives a new volume's root to `owner`, once: whatever is done to it later stays so.
pub(super) fn give(root: &OwnedFd, owner: Owner) -> Result<()> {
    match fgetxattr(root, GIVEN, &mut [0_u8; 8][..]) {
        Err(Errno::NODATA) => {}
        // Longer than ours, which only the volume's own root user can have made of it.
        Ok(_) | Err(Errno::RANGE) => return Ok(()),
        Err(error) => return Err(error),
    }
    // What mkfs leaves there keeps databases from taking the volume for an empty folder. It is full only on somebody's disk.
    match unlinkat(root, "lost+found", AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) => {}
        Err(error) => return Err(error),
    }
    fchown(root, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    fchmod(root, MODE)?;
    fsetxattr(root, GIVEN, b"1", XattrFlags::empty())
}

/// Says what keeps `path` from being a place to mount on.
pub(super) fn explain(error: Errno) -> String {
    match error {
        Errno::LOOP => "a symbolic link is in it: name what it leads to".to_owned(),
        Errno::NOTDIR => "something in it is no folder".to_owned(),
        other => io::Error::from(other).to_string(),
    }
}
