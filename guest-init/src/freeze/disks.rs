//! Freezing the file systems that are on disks: `FIFREEZE`, which writes out what is left, and stops every writer.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Disk;
use crate::mountinfo::{self, Line};

/// `_IOWR('X', 119, int)` and `_IOWR('X', 120, int)` of `linux/fs.h`.
const FIFREEZE: libc::Ioctl = 0xC004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xC004_5878_u32 as libc::Ioctl;

/// Major number of loop devices, whose contents are in files of other file systems.
const LOOP: u32 = 7;

/// Why the file systems are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error("The mounted file systems cannot be listed: {0}")]
    List(io::Error),
    #[error("The file system at {0} cannot be reached, because another is mounted over it: unmount that one")]
    Covered(String),
    #[error("The file system at {place} cannot be written out: {source}")]
    Sync { place: String, source: io::Error },
}

/// A mounted file system, held open.
#[derive(Debug)]
pub(crate) struct Mounted {
    root: File,
    place: PathBuf,
}

/// Every writable file system on a disk, written out, in the order in which they can be frozen. Blocks until what was
/// written before is on the disks; freezing writes the little that comes after.
pub(crate) fn find() -> Result<Vec<Mounted>, FindError> {
    let mountinfo = fs::read("/proc/self/mountinfo").map_err(FindError::List)?;
    let mut found = Vec::new();
    for disk in disks(&String::from_utf8_lossy(&mountinfo)) {
        found.push(open(&disk)?);
    }
    for disk in &found {
        disk.write_out().map_err(|source| FindError::Sync { place: disk.place(), source })?;
    }
    Ok(found)
}

impl Disk for Mounted {
    fn write_out(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(&self.root)?)
    }

    fn freeze(&self) -> io::Result<bool> {
        match self.ioctl(FIFREEZE) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EBUSY) => Ok(false),
                // One that knows no freezing, such as FAT: it was written out, and has nothing better to offer.
                Some(libc::EOPNOTSUPP) => Ok(false),
                _ => Err(error),
            },
        }
    }

    fn thaw(&self) -> io::Result<()> {
        match self.ioctl(FITHAW) {
            // Thawed already, by somebody else.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    fn place(&self) -> String {
        self.place.display().to_string()
    }
}

impl Mounted {
    fn ioctl(&self, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: neither request reads or writes what its argument points to.
        if unsafe { libc::ioctl(self.root.as_raw_fd(), request, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// One of the places where a file system is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    place: PathBuf,
}

/// A file system and where it is mounted: at least once.
#[derive(Debug, PartialEq, Eq)]
struct DiskMounts {
    device: (u32, u32),
    mounts: Vec<Mount>,
}

/// The disks' writable file systems in the order in which they can be frozen: one whose contents are in a file of
/// another must come before that other. A file system is mounted later than the one that it depends on, and the list is
/// in the order of mounting; a file system may be mounted again elsewhere, so loop devices come first whatever the
/// order.
fn disks(mountinfo: &str) -> Vec<DiskMounts> {
    let mut disks: Vec<DiskMounts> = Vec::new();
    for (device, mount) in mountinfo::parse(mountinfo).filter_map(writable_disk) {
        match disks.iter_mut().find(|disk| disk.device == device) {
            Some(disk) => disk.mounts.push(mount),
            None => disks.push(DiskMounts { device, mounts: vec![mount] }),
        }
    }
    disks.reverse();
    disks.sort_by_key(|disk| disk.device.0 != LOOP);
    disks
}

/// A mount, if its file system is one to freeze.
fn writable_disk(line: Line<'_>) -> Option<((u32, u32), Mount)> {
    // Those without a device of their own have no disk, but for btrfs, which may have several.
    let is_on_disk = line.device.0 != 0 || line.kind == "btrfs";
    // A program of the sandbox writes to the disk of such a one, and is stopped itself.
    let is_program = line.kind.starts_with("fuse");
    let is_writable = line.options.split(',').any(|option| option == "rw");
    let mount = Mount { id: line.id, place: line.place };
    (is_on_disk && !is_program && is_writable).then_some((line.device, mount))
}

/// Opens a file system at the first of its places that is not covered by another mount.
fn open(disk: &DiskMounts) -> Result<Mounted, FindError> {
    for mount in &disk.mounts {
        // A place may be any kind of file; none is to be waited for or to become our terminal.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let Ok(root) = OpenOptions::new().read(true).custom_flags(flags).open(&mount.place) else { continue };
        if mount_id(&root) == Some(mount.id) {
            return Ok(Mounted { root, place: mount.place.clone() });
        }
    }
    let place = disk.mounts.first().map_or(Path::new("?"), |mount| &mount.place);
    Err(FindError::Covered(place.display().to_string()))
}

/// The id, as mountinfo has it, of the mount that a file was opened through.
fn mount_id(file: &File) -> Option<u64> {
    // SAFETY: `statx` is plain data for which all zeros is a valid value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a null-terminated string, and the kernel writes one `statx` to a live local variable.
    let result =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_MNT_ID, &raw mut stat) };
    (result == 0 && stat.stx_mask & libc::STATX_MNT_ID != 0).then_some(stat.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
22 21 0:20 / /proc rw,nosuid - proc proc rw
23 21 0:21 / /run rw - tmpfs tmpfs rw,mode=755
24 21 254:16 / /data rw - xfs /dev/vdb rw
25 24 7:0 / /data/an\\040image rw - ext4 /dev/loop0 rw
26 21 254:32 / /cdrom ro - ext4 /dev/vdc ro
27 21 254:0 /home /srv ro master:2 propagate_from:1 - ext4 /dev/root rw,errors=remount-ro
28 21 0:40 / /pool rw - btrfs /dev/vdd rw,subvol=/
29 21 254:48 / /windows rw - fuseblk /dev/vde rw
30 21 254:16 / /data-again rw - xfs /dev/vdb rw
a line of another kind
";

    #[test]
    fn each_writable_disk_comes_once_and_before_what_it_lies_on() {
        let places = |disk: DiskMounts| disk.mounts.into_iter().map(|mount| mount.place).collect::<Vec<_>>();
        let found: Vec<_> = disks(MOUNTINFO).into_iter().map(places).collect();
        let expected: [Vec<PathBuf>; 4] = [
            vec!["/data/an image".into()],
            vec!["/pool".into()],
            vec!["/data".into(), "/data-again".into()],
            vec!["/".into(), "/srv".into()],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_place_under_another_mount_is_not_taken_for_its_file_system() {
        let root = File::open("/proc/self").unwrap();
        let proc_id = mount_id(&root).unwrap();
        let disk = |id| DiskMounts { device: (254, 0), mounts: vec![Mount { id, place: "/proc".into() }] };

        assert!(open(&disk(proc_id)).is_ok());
        let error = open(&disk(proc_id + 1_000_000)).unwrap_err();
        assert!(error.to_string().contains("/proc cannot be reached"), "{error}");
    }
}
