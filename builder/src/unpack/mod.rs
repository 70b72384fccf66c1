//! Archives that a tenant sent: read as a stream, within limits, and unpacked where no name in them leads out.

mod bounded;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use tar::{Archive, Entry, EntryType};

use crate::failure::Failure;
use crate::inside::inside;
use bounded::{Bounded, Budget};

/// Files of a context.
const MAX_ENTRIES: u64 = 500_000;

/// Bytes of all its files.
const MAX_BYTES: u64 = 16 << 30;

/// Bytes of what an archive consists of.
const BLOCK: usize = 512;

/// Bytes of nothing behind an archive's end: whole records of tar's, with room to spare.
const MAX_PADDING: u64 = 1 << 20;

/// Bytes between the content of a file and that of the next: headers, and what they have of long names and attributes. The crate
/// reads all of that into memory.
const MAX_HEADERS: u64 = 1 << 20;

/// What begins the attributes of a sparse file in the PAX format, which the crate takes for a file of other content.
const PAX_SPARSE: &str = "GNU.sparse.";

/// Programs that unpack, by the first bytes of what they packed.
const COMPRESSIONS: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    #[error("The archive cannot be read: {0}")]
    Read(io::Error),
    #[error("The archive holds more than {MAX_ENTRIES} files")]
    TooMany,
    #[error("The files of the archive have more than {} GiB", MAX_BYTES >> 30)]
    TooLarge,
    #[error("The archive has more than {} MiB of names and attributes for one file", MAX_HEADERS >> 20)]
    Headers,
    #[error("The archive's {path:?} {reason}")]
    Refused { path: String, reason: &'static str },
    #[error("The archive's {path:?} cannot be unpacked: {source}")]
    Write { path: String, source: io::Error },
    #[error("The archive cannot be uncompressed: it is damaged, or cut off")]
    Damaged,
    #[error("The archive goes on after its end")]
    NoEnd,
}

impl From<UnpackError> for Failure {
    fn from(error: UnpackError) -> Self {
        match &error {
            UnpackError::Write { source, .. } | UnpackError::Read(source) if is_full(source) => {
                Self::DiskFull { step: None, is_cache: false }
            }
            _ => Self::SourceRefused(error.to_string()),
        }
    }
}

/// By the kind: the crate puts its own words around the number.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A tar archive that may be compressed.
#[derive(Debug)]
pub(crate) struct Upload {
    stream: Stream,
}

#[derive(Debug)]
enum Stream {
    Plain(File),
    Compressed { child: Child, stdout: ChildStdout },
}

impl Upload {
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut start = Vec::new();
        File::open(path)?.take(8).read_to_end(&mut start)?;
        let file = File::open(path)?;
        let Some((_, program)) = COMPRESSIONS.iter().find(|(magic, _)| start.starts_with(magic)) else {
            return Ok(Self { stream: Stream::Plain(file) });
        };
        let mut child =
            Command::new(program).arg("-dc").stdin(file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the program has no output"))?;
        Ok(Self { stream: Stream::Compressed { child, stdout } })
    }

    /// Unpacks it into an empty folder, with modes and times, as files of root's.
    ///
    /// # Errors
    ///
    /// Fails at the first entry that is not for a context, or at a limit. What was unpacked before is left.
    pub(crate) fn unpack(mut self, folder: &Path) -> Result<(), UnpackError> {
        let stream = &mut self.stream;
        inside(folder, move || unpack_here(stream)).map_err(UnpackError::Read)??;
        self.finish()
    }

    /// Writes it uncompressed to `target`, up to its end. Returns what is in it.
    ///
    /// # Errors
    ///
    /// Fails at a limit, or if it is no archive.
    pub(crate) fn copy(mut self, target: &Path) -> Result<Contents, UnpackError> {
        let file = File::create(target);
        let file = file.map_err(|source| UnpackError::Write { path: target.display().to_string(), source })?;
        let budget = Budget::new(MAX_HEADERS);
        let mut archive = Archive::new(Bounded::new(Tee { from: &mut self.stream, to: file }, &budget));
        let mut limits = Limits::default();
        let mut contents = Contents { names: Vec::new(), is_plain: true };
        for entry in archive.entries().map_err(UnpackError::Read)? {
            let entry = entry.map_err(|error| unreadable(error, &budget))?;
            limits.count(entry.size())?;
            budget.set(content(&entry)?.saturating_add(MAX_HEADERS));
            let path = entry.path().map_err(UnpackError::Read)?;
            contents.is_plain &= check_name(&path).is_ok() && is_plain(entry.header().entry_type());
            let mut parts = path.components().filter(|part| !matches!(part, Component::CurDir));
            if let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) {
                contents.names.push(name.to_string_lossy().into_owned());
            }
        }
        // The second of the two empty blocks that end an archive, of which the crate reads one.
        archive.into_inner().into_inner().to.write_all(&[0; BLOCK]).map_err(UnpackError::Read)?;
        self.finish()?;
        Ok(contents)
    }

    /// Makes sure that all of it was there, and nothing else.
    fn finish(self) -> Result<(), UnpackError> {
        let Stream::Compressed { mut child, mut stdout } = self.stream else { return Ok(()) };
        let rest = io::copy(&mut (&mut stdout).take(MAX_PADDING + 1), &mut io::sink()).map_err(UnpackError::Read)?;
        // The program ends if there is more.
        drop(stdout);
        let status = child.wait();
        match status.is_ok_and(|status| status.success()) {
            _ if rest > MAX_PADDING => Err(UnpackError::NoEnd),
            true => Ok(()),
            false => Err(UnpackError::Damaged),
        }
    }
}

/// Bytes that an entry has in the archive: of a sparse file fewer than it becomes.
fn content<R: Read>(entry: &Entry<'_, R>) -> Result<u64, UnpackError> {
    match entry.header().entry_type() {
        EntryType::GNUSparse => entry.header().entry_size().map_err(UnpackError::Read),
        _ => Ok(entry.size()),
    }
}

/// Why there is no next entry.
fn unreadable(error: io::Error, budget: &Budget) -> UnpackError {
    if budget.is_spent() { UnpackError::Headers } else { UnpackError::Read(error) }
}

/// What is in an archive.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The files in its uppermost folder.
    pub(crate) names: Vec<String>,
    /// Whether there is nothing but files and folders, none of which leads elsewhere.
    pub(crate) is_plain: bool,
}

fn is_plain(kind: EntryType) -> bool {
    matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::Directory | EntryType::XGlobalHeader)
}

/// Writes down what is read.
struct Tee<'a> {
    from: &'a mut Stream,
    to: File,
}

impl Read for Tee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(buffer.get(..count).unwrap_or_default())?;
        Ok(count)
    }
}

/// How much of an archive was seen.
#[derive(Debug, Default)]
struct Limits {
    entries: u64,
    bytes: u64,
}

impl Limits {
    /// Counts an entry of a size: of a sparse file too this is what it becomes.
    fn count(&mut self, size: u64) -> Result<(), UnpackError> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(size);
        match (self.entries > MAX_ENTRIES, self.bytes > MAX_BYTES) {
            (true, _) => Err(UnpackError::TooMany),
            (_, true) => Err(UnpackError::TooLarge),
            _ => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Compressed { stdout, .. } => stdout.read(buffer),
        }
    }
}

/// Unpacks into the root folder, which is the context's.
fn unpack_here(stream: &mut Stream) -> Result<(), UnpackError> {
    let budget = Budget::new(MAX_HEADERS);
    let mut archive = Archive::new(Bounded::new(stream, &budget));
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.set_preserve_ownerships(false);
    let mut limits = Limits::default();
    let mut folders = Vec::new();
    for entry in archive.entries().map_err(UnpackError::Read)? {
        let mut entry = entry.map_err(|error| unreadable(error, &budget))?;
        limits.count(entry.size())?;
        budget.set(content(&entry)?.saturating_add(MAX_HEADERS));
        unpack_entry(&mut entry)?;
        if entry.header().entry_type() == EntryType::Directory {
            let path = Path::new("/").join(entry.path().map_err(UnpackError::Read)?);
            folders.push((path, entry.header().mtime().unwrap_or_default()));
        }
    }
    // What was unpacked into them has changed it.
    for (path, time) in folders {
        set_time(&path, time).map_err(|source| UnpackError::Write { path: path.display().to_string(), source })?;
    }
    Ok(())
}

fn set_time(folder: &Path, seconds: u64) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX), tv_nsec: 0 },
    };
    match utimensat(CWD, folder, &times, AtFlags::SYMLINK_NOFOLLOW) {
        // A later entry is in its place.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(()),
        set => Ok(set?),
    }
}

fn unpack_entry<R: Read>(entry: &mut Entry<'_, R>) -> Result<(), UnpackError> {
    let path = entry.path().map_err(UnpackError::Read)?.into_owned();
    let refused = |reason| UnpackError::Refused { path: path.display().to_string(), reason };
    check_name(&path).map_err(refused)?;
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Directory => {}
        EntryType::Symlink => {}
        EntryType::Link => {
            let target =
                entry.link_name().map_err(UnpackError::Read)?.ok_or_else(|| refused("is a link to nothing"))?;
            check_name(&target).map_err(|_| refused("is a hard link out of the archive"))?;
        }
        EntryType::XGlobalHeader => return Ok(()),
        EntryType::Char | EntryType::Block => return Err(refused("is a device, which contexts may not hold")),
        EntryType::Fifo => return Err(refused("is a named pipe, which contexts may not hold")),
        _ => return Err(refused("is of a kind that contexts may not hold")),
    }
    let attributes = entry.pax_extensions().map_err(UnpackError::Read)?;
    let is_sparse = |key: &[u8]| key.starts_with(PAX_SPARSE.as_bytes());
    if attributes.into_iter().flatten().any(|one| one.is_ok_and(|one| is_sparse(one.key_bytes()))) {
        return Err(refused(
            "is a sparse file in the PAX format: make the archive without --sparse, or with --format=gnu",
        ));
    }
    let failed = |source| UnpackError::Write { path: path.display().to_string(), source };
    if path.components().all(|part| matches!(part, Component::CurDir)) {
        return Ok(());
    }
    // The crate finds folders by their names, which lead nowhere else in here.
    entry.unpack_in("/").map_err(failed)?;
    Ok(())
}

/// Refuses names that mean something outside: whoever wrote them did not make them by accident.
fn check_name(path: &Path) -> Result<(), &'static str> {
    for part in path.components() {
        match part {
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => return Err("has `..` in its name, which could lead out of the context"),
            Component::RootDir | Component::Prefix(_) => return Err("has an absolute name, and names are relative"),
        }
    }
    Ok(())
}

/// Reads a file in the tree at `folder`, wherever links in it lead within. `None` if there is none.
///
/// # Errors
///
/// Fails if it cannot be read, or has more than `limit` bytes.
pub(crate) fn read_within(folder: &Path, path: &str, limit: u64) -> io::Result<Option<String>> {
    inside(folder, || {
        let file = match fs::metadata(path_from_root(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            // A pipe would have nothing for ever.
            Ok(meta) if !meta.is_file() => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
            Ok(_) => File::open(path_from_root(path))?,
        };
        let mut text = String::new();
        file.take(limit + 1).read_to_string(&mut text)?;
        if text.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes")));
        }
        Ok(Some(text))
    })?
}

fn path_from_root(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests;
