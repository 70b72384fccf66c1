//! `MakeDir` and `Move`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, mkdirat, renameat, statx};
use rustix::io::Errno;
use sandpiper_protocol::connect::Code;

use super::failed;
use crate::serve::connect::Error;
use crate::serve::open::{open, parent};

/// Mode of a new folder; the mask takes what it takes.
const FOLDER_MODE: u32 = 0o755;

/// Makes a folder, and those above it that are missing.
pub(super) fn make_folder(path: &Path) -> Result<(), Error> {
    match open(CWD, path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(_) => {
            return Err(Error::new(Code::AlreadyExists, format!("{}: there is this folder already", path.display())));
        }
        Err(Errno::NOENT) => {}
        Err(error) => return Err(failed(path)(error)),
    }
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(Errno::INVAL).map_err(failed(path))?;
    let folder = ensure_folder(folder).map_err(failed(path))?;
    mkdirat(folder, name, Mode::from_raw_mode(FOLDER_MODE)).map_err(failed(path))
}

/// Renames `source`, and makes the folders above `destination` that are missing. What is there is replaced, as
/// `rename(2)` does.
pub(super) fn rename(source: &Path, destination: &Path) -> Result<(), Error> {
    let (from, old_name) = parent(source).map_err(failed(source))?;
    statx(&from, old_name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE).map_err(failed(source))?;
    let into = destination.parent().zip(destination.file_name()).ok_or(Errno::INVAL);
    let (folder, new_name) = into.map_err(failed(destination))?;
    let to = ensure_folder(folder).map_err(failed(folder))?;
    renameat(from, old_name, to, new_name).map_err(failed(destination))
}

/// Opens a folder as a place to look names up from; makes it and those above it if need be.
fn ensure_folder(path: &Path) -> io::Result<OwnedFd> {
    const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
    match open(CWD, path, PLACE) {
        Err(Errno::NOENT) => {}
        other => return Ok(other?),
    }
    let (above, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::NotFound)?;
    let above = ensure_folder(above)?;
    match mkdirat(&above, name, Mode::from_raw_mode(FOLDER_MODE)) {
        // Made by another in between.
        Ok(()) | Err(Errno::EXIST) => Ok(open(&above, name, PLACE)?),
        Err(error) => Err(error.into()),
    }
}
