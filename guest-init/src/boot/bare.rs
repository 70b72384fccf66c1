//! A bare guest: booted, and on no disk. It waits in memory for the root disk of the sandbox that it becomes.
//!
//! ```text
//!   boot from a disk ─▶ leave it for a root in memory, with this program alone ─▶ serve ─▶ written down
//!                                                                                             │
//!     go on as one that has booted from it ◀── enter it ◀── another disk in its place ◀── restored
//! ```

use std::convert::Infallible;
use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{chdir, pivot_root};
use sandpiper_protocol::guest::{BARE, ROOT_OPTIONS};

use super::disk::SECTOR;
use super::{Problem, mounts};
use crate::poll::within;

/// The root disk.
const DISK: &str = "/dev/vda";
/// Its size, in units of [`SECTOR`].
const SIZE: &str = "/sys/class/block/vda/size";
const PROGRAM: &str = "/sbin/sandpiper-init";
/// A folder of the disk that is left, and one of the root in memory: where the next root is mounted.
const NEXT_ROOT: &str = "/run";
/// For the kernel to let go of the disk that was left, and to learn of the one that is there.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// Whether this guest is on no disk.
pub(crate) fn is_bare() -> bool {
    statfs("/").is_ok_and(|root| root.filesystem_type() == TMPFS_MAGIC)
}

/// Makes this guest a bare one if it is to be. The program begins anew then, and this does not return.
pub(crate) fn leave_disk_if_wanted() -> io::Result<()> {
    if env::var_os(BARE).is_none() {
        return Ok(());
    }
    leave_disk().map(|never| match never {})
}

/// This program keeps the disk in use that it is run from, so it goes on as a copy of itself.
fn leave_disk() -> io::Result<Infallible> {
    mount(Some("tmpfs"), NEXT_ROOT, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))?;
    let copy = Path::new(NEXT_ROOT).join(PROGRAM.trim_start_matches('/'));
    let folder = copy.parent().unwrap_or(Path::new(NEXT_ROOT));
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    fs::copy(PROGRAM, &copy)?;
    change_root()?;
    Err(Command::new(PROGRAM).env_remove(BARE).exec())
}

/// Waits until nothing uses the disk that was left: what is mounted from there later would be what it was. Blocks.
pub(super) fn await_release(problems: &mut Vec<Problem>) {
    // A file system has its device for itself.
    let is_free = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(DISK).is_ok();
    if is_bare() && !within(DISK_LIMIT, is_free) {
        problems.push(format!("{DISK} is still in use"));
    }
}

/// Enters the root disk, which has so many bytes. Blocks.
///
/// # Errors
/// The disk does not have this size, is in use, or cannot be mounted.
pub(crate) fn enter_disk(bytes: u64) -> io::Result<Vec<Problem>> {
    let has_size = || {
        let sectors = fs::read_to_string(SIZE).ok().and_then(|sectors| sectors.trim().parse::<u64>().ok());
        sectors == Some(bytes / SECTOR)
    };
    if !within(DISK_LIMIT, has_size) {
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{DISK} is not of {bytes} bytes")));
    }
    // By way of the device of its own: one that is mounted already would be mounted again, as it was.
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(DISK)?;
    mount(Some(DISK), NEXT_ROOT, Some("ext4"), MsFlags::empty(), Some(ROOT_OPTIONS))?;
    change_root()?;
    let mut problems = Vec::new();
    mounts::mount_all(&mut problems);
    Ok(problems)
}

/// Makes what is mounted at [`NEXT_ROOT`] the root of every process, and takes the present one away.
fn change_root() -> io::Result<()> {
    chdir(NEXT_ROOT)?;
    // The old root is on top of the new one then, and off it with the next call.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}
