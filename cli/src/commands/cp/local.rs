//! Writing on this machine what a sandbox names.
//!
//! A [`Folder`] is a descriptor, and everything below it is reached by one checked name at a time without following links:
//! neither `..`, an absolute path, nor a link that somebody put there leads out of it. A [`Partial`] is a file under a
//! temporary name that takes its own when it is whole, and is removed when it is dropped before.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstatvfs, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Longest name that Linux has, in bytes.
const NAME_MAX: usize = 255;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Tells the temporary files of this process apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The name of one entry of a folder, and nothing else.
///
/// # Errors
///
/// Says what is wrong with another text.
pub(super) fn checked_name(name: &str) -> Result<&str, &'static str> {
    match name {
        "" | "." | ".." => Err("the sandbox gave it a name that is none"),
        _ if name.contains(['/', '\0']) => Err("the sandbox gave it a name with a slash or NUL"),
        _ if name.len() > NAME_MAX => Err("the sandbox gave it a name that is too long"),
        _ => Ok(name),
    }
}

/// A folder that is copied into.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    /// Whether this copy made it.
    pub(super) is_new: bool,
}

impl Folder {
    /// The folder at a path that the person gave: links in it are meant.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: openat(CWD, path, FOLDER, Mode::empty())?, is_new: false })
    }

    /// The folder `name` of this one, made if it is not there.
    pub(super) fn enter(&self, name: &str) -> io::Result<Self> {
        let name = checked_name(name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let is_new = match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let fd = openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { fd, is_new })
    }

    /// Gives a folder that this copy made its permissions. Its owner keeps access, whatever a sandbox says.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        if self.is_new {
            fchmod(&self.fd, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
        }
        Ok(())
    }

    /// Bytes that there is room for.
    pub(super) fn room(&self) -> io::Result<u64> {
        let stat = fstatvfs(&self.fd)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Begins the file `name`.
    pub(super) fn create(&self, name: &str) -> io::Result<Partial> {
        let name = checked_name(name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let temporary = format!(".sandpiper-cp-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let folder = self.fd.try_clone()?;
        Ok(Partial { folder, file: fd.into(), temporary: Some(temporary), name: name.to_owned() })
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Partial {
    folder: OwnedFd,
    file: File,
    temporary: Option<String>,
    name: String,
}

impl Partial {
    /// A handle to write the content with.
    pub(super) fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts the file in its place, in that of a file or a link that is there.
    pub(super) fn finish(mut self, mode: u32) -> io::Result<()> {
        fchmod(self.file.as_fd(), Mode::from_raw_mode(mode & 0o777))?;
        if let Some(temporary) = &self.temporary {
            renameat(&self.folder, temporary, &self.folder, &self.name)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Already on the way out of an error.
            let _ = unlinkat(&self.folder, temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in ["", ".", "..", "/etc/passwd", "a/b", "../a", "a\0b", &"x".repeat(256)] {
            checked_name(name).expect_err(name);
        }
        for name in ["a", "...", "-rf", "\u{1b}[2J", "a\\b"] {
            assert_eq!(checked_name(name), Ok(name));
        }
    }

    #[test]
    fn a_link_below_the_destination_is_not_followed_but_replaced() {
        let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "precious").unwrap();
        symlink(outside.path(), inside.path().join("folder")).unwrap();
        symlink(outside.path().join("file"), inside.path().join("file")).unwrap();
        let folder = Folder::open(inside.path()).unwrap();

        folder.enter("folder").expect_err("a link is no folder");
        let partial = folder.create("file").unwrap();
        partial.writer().unwrap().write_all(b"new").unwrap();
        partial.finish(0o4755).unwrap();

        assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "precious");
        let copied = inside.path().join("file");
        assert_eq!(fs::read_to_string(&copied).unwrap(), "new");
        assert_eq!(fs::symlink_metadata(&copied).unwrap().permissions().mode(), 0o100_755);
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let inside = tempfile::tempdir().unwrap();
        let partial = Folder::open(inside.path()).unwrap().create("file").unwrap();
        partial.writer().unwrap().write_all(b"half").unwrap();

        drop(partial);

        assert_eq!(fs::read_dir(inside.path()).unwrap().count(), 0);
    }
}
