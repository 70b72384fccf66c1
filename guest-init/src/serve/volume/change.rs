//! Making directories, and changing what is there.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, StatxFlags, chmodat, chownat, mkdirat, renameat_with, statx,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use sandpiper_protocol::volume::{ChangePath, VolumeEntry};

use super::root::{Root, path_of, sync};
use super::{Attributes, VolumeError, checked, entry, mode_of, owner_of};

/// Makes a directory, and those above it that are missing. Whether it is new: one that is there stays as it is.
pub(super) fn make_folder(root: &Root, path: &str, attributes: Attributes) -> Result<(VolumeEntry, bool), VolumeError> {
    let failed = VolumeError::at(path);
    let Attributes { mode, uid, gid } = attributes;
    match root.open_at(path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(folder) => return Ok((entry::describe(&folder, "", path.to_owned()).map_err(&failed)?, false)),
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR) => {
            return Err(VolumeError::Conflict(format!("{path}: something else than a directory is there")));
        }
        Err(error) => return Err(failed(error)),
    }
    let (above, name) = root.ensure_parent(path, uid, gid).map_err(&failed)?;
    mkdirat(&above, name, Mode::from_raw_mode(0o700)).map_err(&failed)?;
    let made = root.open_at(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW).map_err(&failed)?;
    set_owner(&made, Some(uid), Some(gid)).map_err(&failed)?;
    set_mode(&made, mode).map_err(&failed)?;
    sync(&above).map_err(VolumeError::at(path))?;
    Ok((entry::describe(&made, "", path.to_owned()).map_err(&failed)?, true))
}

/// Changes the owner, the mode and the path of what is at `path`, in this order.
pub(super) fn change(root: &Root, path: &str, change: &ChangePath) -> Result<VolumeEntry, VolumeError> {
    let failed = VolumeError::at(path);
    // Before anything is changed.
    let mode = change.mode.as_deref().map(mode_of).transpose()?;
    let uid = change.uid.map(owner_of).transpose()?;
    let gid = change.gid.map(owner_of).transpose()?;
    let target = change.move_to.clone().map(|target| checked("move_to", target)).transpose()?;
    let found = root.open_at(path, OFlags::PATH | OFlags::NOFOLLOW).map_err(&failed)?;
    let stat = statx(&found, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).map_err(&failed)?;
    if mode.is_some() && FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink {
        return Err(VolumeError::Invalid(format!("{path} is a symbolic link, which has no `mode` of its own")));
    }
    if uid.is_some() || gid.is_some() {
        set_owner(&found, uid, gid).map_err(&failed)?;
    }
    if let Some(mode) = mode {
        set_mode(&found, mode).map_err(&failed)?;
    }
    match target.filter(|target| target != path) {
        Some(target) => rename(root, path, &target),
        None => {
            // A link, or a device, is nothing that could be written down by itself.
            root.sync().map_err(VolumeError::at(path))?;
            entry::describe(&found, "", path.to_owned()).map_err(&failed)
        }
    }
}

fn rename(root: &Root, path: &str, target: &str) -> Result<VolumeEntry, VolumeError> {
    let (from, old) = root.parent(path).map_err(VolumeError::at(path))?;
    let (to, new) = root.parent(target).map_err(VolumeError::at(target))?;
    renameat_with(&from, old, &to, new, RenameFlags::NOREPLACE).map_err(|error| match error {
        Errno::EXIST => VolumeError::Conflict(format!("Something is at {target} already: delete it first")),
        Errno::INVAL => VolumeError::Invalid(format!("{path} cannot be moved into itself")),
        error => VolumeError::at(path)(error),
    })?;
    sync(&to).and_then(|()| sync(&from)).map_err(VolumeError::at(target))?;
    entry::describe(&to, new, target.to_owned()).map_err(VolumeError::at(target))
}

fn set_owner(found: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> rustix::io::Result<()> {
    chownat(found, "", uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::EMPTY_PATH)
}

fn set_mode(found: &OwnedFd, mode: u32) -> rustix::io::Result<()> {
    // The call on descriptors refuses one that is only a place.
    chmodat(CWD, path_of(found), Mode::from_raw_mode(mode), AtFlags::empty())
}
