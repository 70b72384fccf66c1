//! Packs a [`Context`].

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Context;
use super::ignore::{Ignore, Matches};

/// Bytes that are sent at once, and how many of such pieces wait.
const PIECE: usize = 256 << 10;
const WAITING: usize = 4;
/// Levels of folders: each takes a file descriptor while it is read.
const MAX_DEPTH: usize = 256;
/// Paths that are named; more are counted.
const MAX_NOTES: usize = 20;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What became a pipe meanwhile must not hold the reader up.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// What was packed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Entries of the archive.
    pub(crate) entries: u64,
    /// Sockets, pipes and devices: no part of a context. Some of them by name.
    pub(crate) left_out: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError {
    #[error("Cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{0} is more than {MAX_DEPTH} folders down: leave it out with .dockerignore")]
    TooDeep(PathBuf),
    /// Whoever reads the archive has gone, and knows why.
    #[error("Nobody takes the archive")]
    Gone,
}

/// Packs a context as it is read: the archive, and what became of it. An archive that could not be completed ends with an
/// error.
pub(crate) fn pack(
    context: Context,
) -> (impl Stream<Item = io::Result<Bytes>> + Send + 'static, JoinHandle<Result<Packed, PackError>>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let packing = tokio::task::spawn_blocking(move || {
        let packed = Packer::new(&context, Pieces { sender: sender.clone(), piece: BytesMut::new() }).pack();
        if let Err(error) = &packed {
            // A reader that has gone needs none.
            let _ = sender.blocking_send(Err(io::Error::other(error.to_string())));
        }
        packed
    });
    let archive = futures_util::stream::unfold(receiver, async |mut receiver: mpsc::Receiver<_>| {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    });
    (archive, packing)
}

/// What is written, in pieces to whoever sends them.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: BytesMut,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = self.piece.split().freeze();
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

struct Packer<'c, W: Write> {
    context: &'c Context,
    archive: tar::Builder<W>,
    /// Where files that have several names were first.
    names: HashMap<(u64, u64), PathBuf>,
    /// The folders that are being read, and whether they are in the archive: one that is left out is put there with the
    /// first exception in it.
    above: Vec<(PathBuf, Stat, bool)>,
    packed: Packed,
}

impl<'c, W: Write> Packer<'c, W> {
    fn new(context: &'c Context, to: W) -> Self {
        let (archive, packed) = (tar::Builder::new(to), Packed::default());
        Self { context, archive, names: HashMap::new(), above: Vec::new(), packed }
    }

    fn pack(mut self) -> Result<Packed, PackError> {
        // The folder itself may be reached by links: the person named it.
        let root = openat(CWD, &self.context.folder, FOLDER.difference(OFlags::NOFOLLOW), Mode::empty());
        let root = self.read(Path::new("."), root)?;
        self.folder(root, Path::new(""), &Matches::default())?;
        let mut out = self.archive.into_inner().map_err(|_| PackError::Gone)?;
        out.flush().map_err(|_| PackError::Gone)?;
        Ok(self.packed)
    }

    /// Packs what is in a folder, by name.
    fn folder(&mut self, folder: OwnedFd, path: &Path, above: &Matches) -> Result<(), PackError> {
        if self.above.len() >= MAX_DEPTH {
            return Err(PackError::TooDeep(path.to_owned()));
        }
        let ignore: &'c Ignore = &self.context.ignore;
        for name in self.read(path, names(&folder))? {
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            let (is_excluded, matches) = ignore.excludes(&path.to_string_lossy(), above);
            if self.context.leaves_out(&path) {
                continue;
            }
            let stat = self.read(&path, statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory {
                if is_excluded && !ignore.may_except_below(&path.to_string_lossy()) {
                    continue;
                }
                let below = match openat(&folder, &name, FOLDER, Mode::empty()) {
                    // What nobody wants need not be readable.
                    Err(rustix::io::Errno::ACCESS) if is_excluded => continue,
                    below => self.read(&path, below)?,
                };
                self.above.push((path.clone(), stat, false));
                if !is_excluded {
                    self.folders_above()?;
                }
                self.folder(below, &path, &matches)?;
                self.above.pop();
            } else if !is_excluded {
                self.folders_above()?;
                self.entry(&folder, &name, &path, &stat, kind)?;
            }
        }
        Ok(())
    }

    /// Puts the folders that are being read into the archive, if they are not there.
    fn folders_above(&mut self) -> Result<(), PackError> {
        for at in 0..self.above.len() {
            let (path, stat, is_packed) = &mut self.above[at];
            if !std::mem::replace(is_packed, true) {
                let (path, mut header) = (path.clone(), header(stat, tar::EntryType::Directory, 0));
                self.packed.entries += 1;
                self.archive.append_data(&mut header, &path, io::empty()).map_err(|error| failure(&path, error))?;
            }
        }
        Ok(())
    }

    /// Packs what is no folder.
    fn entry(
        &mut self,
        folder: &OwnedFd,
        name: &CString,
        path: &Path,
        stat: &Stat,
        kind: FileType,
    ) -> Result<(), PackError> {
        let failed = |error| failure(path, error);
        match kind {
            FileType::Symlink => {
                let target = self.read(path, readlinkat(folder, name, Vec::new()))?;
                let mut header = header(stat, tar::EntryType::Symlink, 0);
                let target = Path::new(OsStr::from_bytes(target.to_bytes()));
                self.archive.append_link(&mut header, path, target).map_err(failed)?;
            }
            FileType::RegularFile => {
                if let Some(first) = (stat.st_nlink > 1).then(|| self.names.get(&(stat.st_dev, stat.st_ino))).flatten()
                {
                    let mut header = header(stat, tar::EntryType::Link, 0);
                    self.archive.append_link(&mut header, path, first).map_err(failed)?;
                } else {
                    let file = self.read(path, openat(folder, name, FILE, Mode::empty()))?;
                    let stat = self.read(path, fstat(file.as_fd()))?;
                    let size = u64::try_from(stat.st_size).unwrap_or_default();
                    let mut header = header(&stat, tar::EntryType::Regular, size);
                    let content = Whole { source: File::from(file).take(size), left: size };
                    self.archive.append_data(&mut header, path, content).map_err(failed)?;
                    if stat.st_nlink > 1 {
                        self.names.insert((stat.st_dev, stat.st_ino), path.to_owned());
                    }
                }
            }
            _ => {
                if self.packed.left_out.len() < MAX_NOTES {
                    self.packed.left_out.push(path.to_owned());
                }
                return Ok(());
            }
        }
        self.packed.entries += 1;
        Ok(())
    }

    fn read<T>(&self, path: &Path, outcome: rustix::io::Result<T>) -> Result<T, PackError> {
        outcome.map_err(|error| PackError::Read { path: self.context.folder.join(path), source: error.into() })
    }
}

/// What went wrong with a path: the archive's own errors are those of its reader and of its writer.
fn failure(path: &Path, source: io::Error) -> PackError {
    match source.kind() {
        io::ErrorKind::BrokenPipe => PackError::Gone,
        _ => PackError::Read { path: path.to_owned(), source },
    }
}

/// The names in a folder, in an order that is always the same.
fn names(folder: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Of an entry of root's.
fn header(stat: &Stat, kind: tar::EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A file that has the length that was said.
struct Whole<R> {
    source: io::Take<R>,
    left: u64,
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.source.read(into)?;
        if length == 0 && self.left > 0 && !into.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read"));
        }
        self.left -= length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use futures_util::{StreamExt, TryStreamExt};

    use super::*;

    /// One entry as text: its kind and path, and what a link leads to or a file has in it.
    fn described(mut entry: tar::Entry<'_, &[u8]>) -> String {
        let path = entry.path().unwrap().display().to_string();
        let link = entry.link_name().unwrap().map(|target| target.display().to_string());
        assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0), "{path}");
        let mode = entry.header().mode().unwrap();
        let kind = entry.header().entry_type();
        if kind.is_symlink() {
            return format!("{path} -> {}", link.unwrap());
        }
        if kind.is_hard_link() {
            return format!("{path} = {}", link.unwrap());
        }
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        if kind.is_dir() { format!("{path}/") } else { format!("{path} {mode:o} {content}") }
    }

    async fn packed(folder: &Path) -> (Vec<String>, Packed) {
        let (archive, packing) = pack(Context::open(folder, None).unwrap());
        let archive: Vec<Bytes> = archive.try_collect().await.unwrap();
        let archive = archive.concat();
        let mut archive = tar::Archive::new(archive.as_slice());
        let entries = archive.entries().unwrap().map(|entry| described(entry.unwrap())).collect();
        (entries, packing.await.unwrap().unwrap())
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("Dockerfile"), "FROM a").unwrap();
        fs::set_permissions(folder.path().join("Dockerfile"), fs::Permissions::from_mode(0o644)).unwrap();
        folder
    }

    #[tokio::test]
    async fn links_stay_links_and_nothing_from_outside_is_packed() {
        let (outside, folder) = (tempfile::tempdir().unwrap(), folder());
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(outside.path(), at("folder")).unwrap();
        symlink("../../etc/passwd", at("up")).unwrap();
        fs::create_dir(at("run")).unwrap();
        fs::write(at("run/tool"), "#!").unwrap();
        fs::set_permissions(at("run/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(at("run/tool"), at("same")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();

        let (entries, packed) = packed(folder.path()).await;

        let to = outside.path().display();
        let expected =
            ["Dockerfile 644 FROM a", &format!("folder -> {to}"), "run/", "run/tool 4755 #!", "same = run/tool"];
        assert_eq!(entries, [&expected[..], &["up -> ../../etc/passwd"]].concat());
        assert_eq!(packed, Packed { entries: 6, left_out: vec!["socket".into()] });
    }

    #[tokio::test]
    async fn a_folder_that_is_left_out_comes_back_with_an_exception_in_it() {
        let folder = folder();
        for path in ["a/b/keep", "a/b/drop", "c/drop", "Dockerfile"] {
            fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
            fs::write(folder.path().join(path), "").unwrap();
            fs::set_permissions(folder.path().join(path), fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::write(folder.path().join(".dockerignore"), "*\n!**/keep\n!Dockerfile").unwrap();

        let (entries, _) = packed(folder.path()).await;

        assert_eq!(entries, ["Dockerfile 600 ", "a/", "a/b/", "a/b/keep 600 "]);
    }

    /// The same folder as the builder's own tests build, where plain buildah copies these.
    #[tokio::test]
    async fn what_is_packed_is_what_others_copy() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../builder/tests/dockerfiles/dockerignore");

        let (archive, packing) = pack(Context::open(&folder, None).unwrap());
        let archive: Vec<Bytes> = archive.try_collect().await.unwrap();
        let archive = archive.concat();
        let mut archive = tar::Archive::new(archive.as_slice());
        let paths = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());

        let expected = [
            ".dockerignore",
            "Dockerfile",
            "a",
            "a/c.log",
            "b.txt",
            "build",
            "build/keep",
            "build/keep/f",
            "docs",
            "docs/README.md",
            "docs/sub",
            "docs/sub/x.rst",
            "node_modules",
            "node_modules/own",
            "node_modules/own/f",
            "temp",
            "temp12",
            "z1.tmp",
        ];
        assert_eq!(paths.collect::<Vec<_>>(), expected);
        packing.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn long_names_and_names_that_are_no_text_are_packed() {
        let folder = folder();
        let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
        fs::create_dir(folder.path().join("d".repeat(200))).unwrap();
        fs::write(folder.path().join(&long), "long").unwrap();
        fs::write(folder.path().join(OsStr::from_bytes(b"z\xff")), "").unwrap();

        let (entries, packed) = packed(folder.path()).await;

        assert!(entries.iter().any(|entry| entry.starts_with(&long) && entry.ends_with("long")), "{entries:?}");
        assert_eq!(packed.entries, 4);
    }

    #[tokio::test]
    async fn a_reader_that_goes_ends_the_packing() {
        let folder = folder();
        fs::write(folder.path().join("big"), vec![0; 8 << 20]).unwrap();
        let (archive, packing) = pack(Context::open(folder.path(), None).unwrap());
        let mut archive = Box::pin(archive);
        archive.next().await.unwrap().unwrap();

        drop(archive);

        assert!(matches!(packing.await.unwrap(), Err(PackError::Gone)));
    }

    #[test]
    fn a_file_that_becomes_shorter_fails() {
        let mut whole = Whole { source: (&b"short"[..]).take(9), left: 9 };
        let error = io::copy(&mut whole, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
    }
}
