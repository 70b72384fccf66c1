//! What inotify says of a folder, and of those below it, as events with names.
//!
//! inotify watches single folders. A folder that comes up below is watched at once and then looked through, so that what was
//! made in it before is told as well; what both the look and the kernel's queue tell is told once.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, Dir, OFlags, fstatfs};
use rustix::io::{Errno, Result};
use sandpiper_protocol::connect::Code;
use sandpiper_protocol::filesystem::{EventType, FilesystemEvent, WatchRequest};

use super::queue::MAX_EVENTS;
use crate::fd::FdStream;
use crate::serve::connect::Error;
use crate::serve::credentials::as_user;
use crate::serve::filesystem::entry::describe;
use crate::serve::filesystem::failed;
use crate::serve::open::{open, path_of};
use crate::users::{Names, User};

/// Folders of one watch, and levels of them.
const MAX_FOLDERS: usize = 8_192;
const MAX_DEPTH: usize = 256;

/// What is watched for.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);

/// Magic numbers of the file systems that others may change: NFS, SMB (three), FUSE and 9P (`linux/magic.h`).
const NETWORK: [u32; 6] = [0x6969, 0xff53_4d42, 0x517b, 0xfe53_4d42, 0x6573_5546, 0x0102_1997];

/// Bytes of an inotify event before its name.
const HEADER: usize = 16;

/// A watched folder.
pub(super) struct Tree {
    inotify: Arc<FdStream>,
    root: OwnedFd,
    /// As the client knows it.
    path: PathBuf,
    user: User,
    is_recursive: bool,
    includes_entries: bool,
    /// The watched folders, relative to the root, by inotify's number.
    folders: BTreeMap<i32, PathBuf>,
    /// What was told because it was found, while the kernel may yet tell it.
    found: HashSet<PathBuf>,
}

/// Takes the names that are found below a folder.
type Tell<'a> = dyn FnMut(&Path) -> Result<()> + 'a;

/// Events were lost.
pub(super) struct Lost;

/// Makes what is to be watched with; without blocking.
pub(super) fn inotify() -> std::io::Result<Arc<FdStream>> {
    Ok(Arc::new(FdStream::new(inotify::init(CreateFlags::CLOEXEC)?)?))
}

impl Tree {
    /// Watches a folder as `user`. Blocks.
    pub(super) fn new(
        inotify: Arc<FdStream>,
        request: &WatchRequest,
        path: PathBuf,
        user: User,
    ) -> std::result::Result<Self, Error> {
        let place = OFlags::PATH | OFlags::DIRECTORY;
        let opened = as_user(&user, || open(CWD, &path, place)).map_err(failed(&path))?;
        let root = opened.map_err(failed(&path))?;
        let kind = u32::try_from(fstatfs(&root).map_err(failed(&path))?.f_type).unwrap_or_default();
        if NETWORK.contains(&kind) && !request.allow_network_mounts {
            let message = format!("{} is on a network, whose other machines' changes are not seen", path.display());
            return Err(Error::invalid(message));
        }
        let (is_recursive, includes_entries) = (request.recursive, request.include_entry);
        let (folders, found) = (BTreeMap::new(), HashSet::new());
        let mut tree = Self { inotify, root, path, user, is_recursive, includes_entries, folders, found };
        match tree.as_its_user(Self::watch_all) {
            Err(Errno::NOSPC) => {
                let message = format!("{} has more folders below than can be watched", tree.path.display());
                Err(Error::new(Code::ResourceExhausted, message))
            }
            result => result.map(|()| tree).map_err(|error| failed(Path::new("the watch"))(error)),
        }
    }

    fn as_its_user<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let user = self.user.clone();
        as_user(&user, || work(self)).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PERM))?
    }

    fn watch_all(&mut self) -> Result<()> {
        let root = self.root.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        self.watch(&root, Path::new(""), &mut |_| Ok(()), 0)
    }

    /// Watches a folder, and those below if they are to be; tells the names in them.
    fn watch(&mut self, folder: &OwnedFd, name: &Path, tell: &mut Tell<'_>, level: usize) -> Result<()> {
        if self.folders.len() >= MAX_FOLDERS || level > MAX_DEPTH {
            return Err(Errno::NOSPC);
        }
        let number = inotify::add_watch(self.inotify.get_ref(), path_of(folder), CHANGES)?;
        self.folders.insert(number, name.to_owned());
        if !self.is_recursive {
            return Ok(());
        }
        for item in Dir::new(open(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            let item = item?;
            let own = OsStr::from_bytes(item.file_name().to_bytes());
            if own == "." || own == ".." {
                continue;
            }
            let name = name.join(own);
            tell(&name)?;
            self.watch_below(folder.as_fd(), own, &name, tell, level + 1)?;
        }
        Ok(())
    }

    /// Watches `own` of `folder`, if it is a folder that the user may read.
    fn watch_below(
        &mut self,
        folder: impl AsFd,
        own: &OsStr,
        name: &Path,
        tell: &mut Tell<'_>,
        level: usize,
    ) -> Result<()> {
        let Ok(inner) = open(folder, own, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW) else { return Ok(()) };
        match self.watch(&inner, name, tell, level) {
            // Gone meanwhile, or not the user's to read.
            Err(Errno::NOENT | Errno::ACCESS) => Ok(()),
            other => other,
        }
    }

    /// The events in bytes that were read from inotify. Blocks.
    pub(super) fn apply(&mut self, bytes: &[u8]) -> std::result::Result<Vec<FilesystemEvent>, Lost> {
        let applied = self.as_its_user(|tree| {
            let mut changes = Vec::new();
            for record in records(bytes) {
                tree.apply_one(&record, &mut changes)?;
            }
            Ok(tree.events(changes))
        });
        applied.map_err(|_| {
            // What came up meanwhile may not be watched. What cannot be watched now is not missed silently either.
            let _ = self.as_its_user(Self::watch_all);
            Lost
        })
    }

    /// Everything that inotify had to say was applied.
    pub(super) fn catch_up(&mut self) {
        self.found.clear();
    }

    fn apply_one(&mut self, record: &Record<'_>, changes: &mut Vec<(PathBuf, EventType)>) -> Result<()> {
        if record.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(Errno::OVERFLOW);
        }
        if record.flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&record.number);
            return Ok(());
        }
        let Some(folder) = self.folders.get(&record.number) else { return Ok(()) };
        let name = match record.name {
            Some(own) => folder.join(own),
            None if folder.as_os_str().is_empty() => PathBuf::from("."),
            // The folder above tells it.
            None => return Ok(()),
        };
        let Some(kind) = kind(record.flags) else { return Ok(()) };
        let is_folder = record.flags.contains(ReadFlags::ISDIR) && record.name.is_some();
        match kind {
            EventType::Create if self.found.remove(&name) => {}
            EventType::Create => {
                changes.push((name.clone(), kind));
                if is_folder && self.is_recursive {
                    let mut names = Vec::new();
                    let root = self.root.try_clone().map_err(|_| Errno::MFILE)?;
                    let mut tell = |name: &Path| {
                        names.push(name.to_owned());
                        if names.len() > MAX_EVENTS { Err(Errno::OVERFLOW) } else { Ok(()) }
                    };
                    self.watch_below(&root, name.as_os_str(), &name, &mut tell, 0)?;
                    names.retain(|name| self.found.insert(name.clone()));
                    changes.extend(names.into_iter().map(|name| (name, EventType::Create)));
                }
            }
            EventType::Remove | EventType::Rename => {
                self.found.remove(&name);
                if is_folder && kind == EventType::Rename {
                    self.forget(&name);
                }
                changes.push((name, kind));
            }
            EventType::Write | EventType::Chmod => changes.push((name, kind)),
        }
        Ok(())
    }

    /// Ends the watches of a folder that has moved away, and of those below.
    fn forget(&mut self, folder: &Path) {
        let inotify = &self.inotify;
        self.folders.retain(|number, name| {
            let is_kept = !name.starts_with(folder);
            if !is_kept {
                // It fails only if the kernel has ended the watch by itself.
                let _ = inotify::remove_watch(inotify.get_ref(), *number);
            }
            is_kept
        });
    }

    fn events(&self, changes: Vec<(PathBuf, EventType)>) -> Vec<FilesystemEvent> {
        let names = self.includes_entries.then(Names::read).and_then(std::result::Result::ok);
        let event = |(name, kind): (PathBuf, EventType)| {
            let is_there = !matches!(kind, EventType::Remove | EventType::Rename);
            let entry = names.as_ref().filter(|_| is_there).and_then(|names| {
                let path = if name == Path::new(".") { self.path.clone() } else { self.path.join(&name) };
                describe(&self.root, &name, &path, names).ok().map(Box::new)
            });
            FilesystemEvent { name: name.to_string_lossy().into_owned(), kind, entry }
        };
        changes.into_iter().map(event).collect()
    }
}

/// An event as the kernel writes it.
struct Record<'a> {
    number: i32,
    flags: ReadFlags,
    /// In the watched folder; `None` is the folder itself.
    name: Option<&'a OsStr>,
}

/// The events in what was read from inotify (`inotify(7)`): number, flags, cookie, the name's length, the name.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let field = |index: usize| header.get(index..index + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let (name, rest) = rest.split_at_checked(usize::try_from(field(12)?).ok()?)?;
        bytes = rest;
        let name = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty());
        let flags = ReadFlags::from_bits_retain(field(4)?);
        Some(Record { number: field(0)?.cast_signed(), flags, name: name.map(OsStr::from_bytes) })
    })
}

fn kind(flags: ReadFlags) -> Option<EventType> {
    let any = |wanted: ReadFlags| flags.intersects(wanted);
    if any(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(EventType::Create)
    } else if any(ReadFlags::MODIFY) {
        Some(EventType::Write)
    } else if any(ReadFlags::DELETE | ReadFlags::DELETE_SELF) {
        Some(EventType::Remove)
    } else if any(ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF) {
        Some(EventType::Rename)
    } else if any(ReadFlags::ATTRIB) {
        Some(EventType::Chmod)
    } else {
        None
    }
}
