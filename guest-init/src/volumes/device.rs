//! The extra disks, as the kernel has them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpiper_protocol::vmm::EXTRA_DISKS;

use super::VolumeError;
use crate::poll::within;

/// For a disk to get its size. The host has it attached before it asks for a mount, so that only the interrupt is waited for.
const SIZE_LIMIT: Duration = Duration::from_secs(10);

/// For what the kernel does after the last user of a file system has gone.
const RELEASE_LIMIT: Duration = Duration::from_millis(200);

/// `_IO(0x12, 97)` of `linux/fs.h`.
const BLKFLSBUF: libc::Ioctl = 0x1261;

/// The device nodes of the extra disks, by slot.
#[derive(Debug, Clone)]
pub(crate) struct Slots(Vec<PathBuf>);

impl Slots {
    /// Those of this machine: the root disk is the first one, `vda`.
    pub(crate) fn of_guest() -> Self {
        Self((0..EXTRA_DISKS).map(|slot| format!("/dev/vd{}", char::from(b'b' + slot)).into()).collect())
    }

    #[cfg(test)]
    pub(super) fn of_nodes(nodes: Vec<PathBuf>) -> Self {
        Self(nodes)
    }

    pub(crate) fn disk(&self, slot: u8) -> Result<Disk, VolumeError> {
        let node = self.0.get(usize::from(slot)).ok_or(VolumeError::NoSlot(slot))?.clone();
        Ok(Disk { slot, node })
    }
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(super) slot: u8,
    pub(super) node: PathBuf,
}

impl Disk {
    /// Waits until the disk has a size. Blocks.
    pub(crate) fn appears(&self) -> Result<(), VolumeError> {
        let name = self.node.file_name().unwrap_or_default();
        let size = Path::new("/sys/class/block").join(name).join("size");
        let has_size = || fs::read_to_string(&size).is_ok_and(|sectors| sectors.trim() != "0");
        if within(SIZE_LIMIT, has_size) { Ok(()) } else { Err(VolumeError::NoDisk(self.slot, SIZE_LIMIT.as_secs())) }
    }

    /// Whether no file system has the disk, or none has it any more in a moment. Blocks.
    pub(super) fn is_released(&self) -> bool {
        // A file system has its device for itself, in whatever namespace it is mounted, and until its last file is closed.
        let is_free =
            || OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(&self.node).is_ok();
        within(RELEASE_LIMIT, is_free)
    }

    /// Forgets what was read of the disk that was here before. A program of the sandbox's root may have kept it.
    pub(super) fn forget(&self) -> io::Result<()> {
        let disk = File::open(&self.node)?;
        // SAFETY: the request takes no argument.
        if unsafe { libc::ioctl(disk.as_raw_fd(), BLKFLSBUF, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The number that files of its file system have.
    pub(super) fn number(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.node)?.rdev())
    }
}
