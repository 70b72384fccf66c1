//! What is known of something in a volume.

use std::os::fd::AsFd;

use jiff::Timestamp;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, readlinkat, statx};
use rustix::io::Result;
use rustix::path::Arg;
use sandpiper_protocol::volume::{EntryKind, VolumeEntry};

use super::VolumeError;
use super::root::Root;

/// What there is at a path: of a link, the link.
pub(super) fn at(root: &Root, path: &str) -> std::result::Result<VolumeEntry, VolumeError> {
    let found = root.open_at(path, OFlags::PATH | OFlags::NOFOLLOW).map_err(VolumeError::at(path))?;
    describe(&found, "", path.to_owned()).map_err(VolumeError::at(path))
}

/// What there is at `name` of `folder`, or what `folder` is where the name is empty.
pub(super) fn describe(folder: impl AsFd, name: impl Arg + Copy, path: String) -> Result<VolumeEntry> {
    let stat = statx(&folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let target = match kind {
        EntryKind::Symlink => Some(readlinkat(&folder, name, Vec::new())?.to_string_lossy().into_owned()),
        _ => None,
    };
    let nanoseconds = i32::try_from(stat.stx_mtime.tv_nsec).unwrap_or_default();
    Ok(VolumeEntry {
        path,
        kind,
        size: stat.stx_size,
        mode: format!("{:04o}", stat.stx_mode & 0o7777),
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        // A time of another age is on a disk that somebody has made up.
        modified_at: Timestamp::new(stat.stx_mtime.tv_sec, nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH),
        target,
    })
}
