//! Growing the root file system to its device: templates are small, the disk of a sandbox is as large as it asks for.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use nix::sys::statfs::{EXT4_SUPER_MAGIC, statfs};

use super::Problem;

/// `_IOW('f', 16, __u64)` of the kernel's `fs/ext4/ext4.h`: the new size in blocks, never smaller than the present one.
const EXT4_IOC_RESIZE_FS: libc::Ioctl = (1 << 30) | (8 << 16) | (0x66 << 8) | 16;

/// Bytes of the unit that sysfs gives the size of a block device in, whatever the device's own.
pub(super) const SECTOR: u64 = 512;

/// How far the root file system was grown.
#[derive(Debug, Default)]
pub(super) struct RootDisk {
    /// Sectors of its device when it was grown last.
    grown_to: Option<u64>,
}

impl RootDisk {
    /// Grows the file system if its device has another size than last time.
    pub(super) fn grow(&mut self, problems: &mut Vec<Problem>) {
        if let Err(error) = self.try_grow() {
            problems.push(format!("The root file system is not grown to its disk: {error}"));
        }
    }

    fn try_grow(&mut self) -> io::Result<()> {
        let root = File::open("/")?;
        let device = root.metadata()?.dev();
        let size = format!("/sys/dev/block/{}:{}/size", libc::major(device), libc::minor(device));
        let sectors = match fs::read_to_string(size) {
            // Not on a block device.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            size => size?.trim().parse().map_err(io::Error::other)?,
        };
        if self.grown_to == Some(sectors) {
            return Ok(());
        }
        let stat = statfs("/")?;
        if stat.filesystem_type() == EXT4_SUPER_MAGIC {
            let block = u64::try_from(stat.block_size()).unwrap_or(0).max(SECTOR);
            grow_ext4(&root, sectors.saturating_mul(SECTOR) / block)?;
        }
        self.grown_to = Some(sectors);
        Ok(())
    }
}

fn grow_ext4(root: &File, blocks: u64) -> io::Result<()> {
    // SAFETY: the ioctl reads one u64, a live local variable; the kernel checks the size itself, and does nothing if the
    // file system has it already.
    if unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_RESIZE_FS, &raw const blocks) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
