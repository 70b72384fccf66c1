//! `Remove`: a file, a symbolic link or a whole tree.
//!
//! A tree is removed by descriptors of its folders, each opened by name in the one above and never through a link: who
//! swaps a folder for a link meanwhile does not lead the removal elsewhere.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, OFlags, unlinkat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use sandpiper_protocol::connect::Code;

use super::failed;
use crate::serve::connect::Error;
use crate::serve::open::{open, parent};

/// Levels of a tree; each holds a descriptor while it is emptied.
pub(super) const MAX_DEPTH: u32 = 256;

/// Names that are read of a folder before they are removed.
const BATCH: usize = 256;

/// Removes what is at `path`, if anything is.
pub(super) fn remove(path: &Path) -> std::result::Result<(), Error> {
    let (folder, name) = match parent(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed(path))?,
    };
    match remove_entry(&folder, name, MAX_DEPTH) {
        Err(Errno::MLINK) => {
            let message = format!("{} has more than {MAX_DEPTH} levels: remove the lower ones first", path.display());
            Err(Error::new(Code::ResourceExhausted, message))
        }
        result => result.map_err(failed(path)),
    }
}

/// Removes an entry of a folder. Fails with `MLINK` if it has more than `levels` levels.
fn remove_entry(folder: &OwnedFd, name: impl Arg + Copy, levels: u32) -> Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        other => return gone(other),
    }
    match unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY) => {}
        other => return gone(other),
    }
    let levels = levels.checked_sub(1).ok_or(Errno::MLINK)?;
    let inside = open(folder, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
    loop {
        let names = some_names(&inside)?;
        if names.is_empty() {
            return gone(unlinkat(folder, name, AtFlags::REMOVEDIR));
        }
        for name in &names {
            remove_entry(&inside, name.as_c_str(), levels)?;
        }
    }
}

/// What another has removed meanwhile is removed.
fn gone(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// The first names of a folder.
fn some_names(folder: impl AsFd) -> Result<Vec<std::ffi::CString>> {
    let is_entry = |name: &CStr| name != c"." && name != c"..";
    let names = Dir::read_from(folder)?.map(|item| item.map(|item| item.file_name().to_owned()));
    names.filter(|name| name.as_ref().map_or(true, |name| is_entry(name))).take(BATCH).collect()
}
