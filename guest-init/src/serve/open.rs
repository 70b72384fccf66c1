//! Descriptors of what paths lead to.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::path::Arg;

/// Opens `path` below `folder`, following symbolic links but none of the magic ones.
pub(super) fn open(folder: impl AsFd, path: impl Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// The folder that holds the last name of `path`, as a place to look names up from, and that name.
pub(super) fn parent(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((open(CWD, folder, OFlags::PATH | OFlags::DIRECTORY)?, name))
}

/// The path by which the kernel names a descriptor, for calls that take paths only and for asking where it leads.
pub(super) fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
