//! A file that is being written.
//!
//! It has a temporary name beside its target and takes its place when it is whole: what breaks off, or fills the disk,
//! leaves what was there. Where the user may write the file but not its folder, it may be written in place.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, OFlags};

use super::metadata::Metadata;
use crate::serve::credentials::as_user;
use crate::serve::open::open;
use crate::users::User;

/// Mode of a new folder; the mask takes what it takes.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Tells the temporary files of this process apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Where bytes may go before they are whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Beside,
    /// Or over what is there, if nothing can be made beside it.
    BesideOrOver,
}

/// Dropped before [`Self::finish`], it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Draft {
    user: User,
    file: File,
    /// Where the bytes are until they are whole; `None` if they go straight to the target.
    temporary: Option<PathBuf>,
    target: PathBuf,
}

impl Draft {
    /// Makes the parent folders and the temporary file. Blocks.
    pub(super) fn create(path: PathBuf, user: User, metadata: &Metadata, place: Place) -> io::Result<Self> {
        let draft = as_user(&user, || {
            let (file, temporary, target) = begin(path, place)?;
            // From here on the temporary file is removed with the draft.
            let draft = Draft { user: user.clone(), file, temporary, target };
            metadata.replace(&draft.file)?;
            Ok(draft)
        });
        draft?
    }

    /// Writes what `source` holds from where it is, at most `limit` bytes, as the user; how many there were. The kernel
    /// copies them, where the file systems can. Blocks.
    pub(super) fn append(&mut self, source: &File, limit: u64) -> io::Result<u64> {
        let mut piece = io::Read::take(source, limit);
        as_user(&self.user, || io::copy(&mut piece, &mut self.file))?
    }

    /// Puts the file in its place. Blocks.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            as_user(&self.user, || fs::rename(temporary, &self.target))??;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        as_user(&self.user, || self.file.write(bytes))?
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Already on the way out of an error, and the folder may be gone with the file.
            let _ = as_user(&self.user, || fs::remove_file(temporary));
        }
    }
}

/// Opens what the bytes of `path` are written to: the file, its temporary name if it has one, and its final one.
fn begin(path: PathBuf, place: Place) -> io::Result<(File, Option<PathBuf>, PathBuf)> {
    // What a link leads to is replaced, not the link.
    let target = match fs::canonicalize(&path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path,
        Err(error) => return Err(error),
    };
    let existing = match open(CWD, &target, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(io::Error::from)
    {
        Ok(file) => Some(File::from(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mode = match &existing {
        Some(file) => {
            let meta = file.metadata()?;
            if !meta.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            meta.permissions().mode() & 0o777
        }
        None => FILE_MODE,
    };
    let folder = target.parent().ok_or(io::ErrorKind::IsADirectory)?;
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let temporary = temporary_name(folder);
    match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
        Ok(file) => {
            // Past the mask, which would narrow the mode of a file that exists.
            file.set_permissions(Permissions::from_mode(mode))?;
            Ok((file, Some(temporary), target))
        }
        Err(error) => match existing {
            Some(file) if error.kind() == io::ErrorKind::PermissionDenied && place == Place::BesideOrOver => {
                file.set_len(0)?;
                Ok((file, None, target))
            }
            _ => Err(error),
        },
    }
}

/// A name in `folder` that is hidden and of no fixed length, so that a long target name is no obstacle.
fn temporary_name(folder: &Path) -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".sandpiper-upload-{}-{number}", std::process::id()))
}
