//! A file of a volume that is being written.
//!
//! It has no name until it is whole and on stable storage, so that whatever ends this guest before leaves neither half a file
//! nor a forgotten one: the file system frees what has no name when it is mounted again.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, fchmod, fchown, fstatvfs, linkat, openat, renameat, statx,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use sandpiper_protocol::volume::VolumeEntry;

use super::root::{Root, path_of, sync};
use super::{Attributes, VolumeError, entry};

/// Tells the temporary names of this process apart, which files have that replace others.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(super) struct Draft {
    folder: OwnedFd,
    name: String,
    path: String,
    file: File,
}

impl Draft {
    /// Begins a file at `path`, of `length` bytes if that is known; makes the folders above it. Blocks.
    pub(super) fn begin(
        root: &Root,
        path: &str,
        attributes: Attributes,
        length: Option<u64>,
    ) -> Result<Self, VolumeError> {
        let failed = VolumeError::at(path);
        let Attributes { mode, uid, gid } = attributes;
        let (folder, name) = root.ensure_parent(path, uid, gid).map_err(&failed)?;
        let present = statx(&folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
        if present.is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory) {
            return Err(VolumeError::Conflict(format!("{path} is a directory: name a file in it, or delete it first")));
        }
        let file = openat(&folder, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let file = file.map_err(&failed)?;
        let space = fstatvfs(&file).map_err(&failed)?;
        if length.is_some_and(|length| length > space.f_bavail.saturating_mul(space.f_frsize)) {
            return Err(failed(Errno::NOSPC));
        }
        fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(&failed)?;
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(&failed)?;
        Ok(Self { folder, name: name.to_owned(), path: path.to_owned(), file: File::from(file) })
    }

    /// Goes on with these bytes. Blocks.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Puts the file in its place, on stable storage. Blocks.
    pub(super) fn finish(self) -> Result<VolumeEntry, VolumeError> {
        let failed = VolumeError::at(&self.path);
        self.file.sync_all().map_err(VolumeError::at(&self.path))?;
        self.place().map_err(&failed)?;
        sync(&self.folder).map_err(VolumeError::at(&self.path))?;
        entry::describe(&self.folder, self.name.as_str(), self.path.clone()).map_err(&failed)
    }

    fn place(&self) -> rustix::io::Result<()> {
        match self.link(&self.name) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
        // Only a file with a name can take the place of another.
        let temporary = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".sandpiper-upload-{number}");
            match self.link(&name) {
                // Of another guest's, which was ended between the two steps.
                Err(Errno::EXIST) => {}
                other => break other.map(|()| name)?,
            }
        };
        let placed = renameat(&self.folder, &temporary, &self.folder, &self.name);
        if placed.is_err() {
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        placed
    }

    fn link(&self, name: &str) -> rustix::io::Result<()> {
        linkat(CWD, path_of(&self.file), &self.folder, name, AtFlags::SYMLINK_FOLLOW)
    }
}
