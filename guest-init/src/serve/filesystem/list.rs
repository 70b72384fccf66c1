//! `ListDir`: a folder's entries and those below, each folder before what is in it, names in the order of their bytes.
//!
//! Symbolic links are listed, not followed. What vanishes meanwhile is left out, and so is what is in a folder below that
//! the user may not read.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, OFlags};
use sandpiper_protocol::connect::Code;
use sandpiper_protocol::filesystem::{EntryInfo, FileType};

use super::entry::describe;
use super::failed;
use crate::serve::connect::Error;
use crate::serve::open::open;
use crate::users::Names;

/// Entries of one response, and bytes of what is in them that has no fixed length.
pub(super) const MAX_ENTRIES: usize = 20_000;
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Levels below the folder; each holds a descriptor while it is listed.
pub(super) const MAX_DEPTH: u32 = 256;

/// Lists `path` down to `depth` levels, where 0 means 1.
pub(super) fn list(path: &Path, depth: u32, names: &Names) -> Result<Vec<EntryInfo>, Error> {
    let folder = open(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed(path))?;
    let mut list = List { names, depth: depth.max(1), entries: Vec::new(), bytes: 0 };
    list.add(&folder, path, 1)?;
    Ok(list.entries)
}

struct List<'a> {
    names: &'a Names,
    depth: u32,
    entries: Vec<EntryInfo>,
    bytes: usize,
}

impl List<'_> {
    /// Adds what is in `folder`, whose entries are on `level`.
    fn add(&mut self, folder: &OwnedFd, path: &Path, level: u32) -> Result<(), Error> {
        if level > MAX_DEPTH {
            return Err(too_much(path, &format!("has more than {MAX_DEPTH} levels")));
        }
        for name in self.names_in(folder, path)? {
            let path = path.join(&name);
            let Ok(entry) = describe(folder, name.as_ref(), &path, self.names) else { continue };
            let is_folder = entry.kind == FileType::Directory && entry.symlink_target.is_none();
            self.push(entry, &path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            if is_folder
                && level < self.depth
                && let Ok(folder) = open(folder, &name, flags)
            {
                self.add(&folder, &path, level + 1)?;
            }
        }
        Ok(())
    }

    fn names_in(&self, folder: &OwnedFd, path: &Path) -> Result<Vec<OsString>, Error> {
        let mut names = Vec::new();
        for item in Dir::read_from(folder).map_err(failed(path))? {
            let item = item.map_err(failed(path))?;
            let name = item.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(std::ffi::OsStr::from_bytes(name).to_owned());
            }
            if self.entries.len() + names.len() > MAX_ENTRIES {
                return Err(too_much(path, &format!("brings the list over {MAX_ENTRIES} entries")));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn push(&mut self, entry: EntryInfo, path: &Path) -> Result<(), Error> {
        let metadata: usize = entry.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        let target = entry.symlink_target.as_ref().map_or(0, String::len);
        self.bytes += entry.name.len() + entry.path.len() + target + metadata;
        if self.bytes > MAX_BYTES {
            return Err(too_much(path, &format!("brings the list over {MAX_BYTES} bytes")));
        }
        self.entries.push(entry);
        Ok(())
    }
}

fn too_much(path: &Path, what: &str) -> Error {
    let message = format!("{} {what}: list fewer levels, or the folders below one by one", path.display());
    Error::new(Code::ResourceExhausted, message)
}
