//! The file systems that programs expect.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::Problem;

struct Mount {
    kind: &'static str,
    target: &'static str,
    flags: MsFlags,
    options: Option<&'static str>,
    /// Whether its lack is worth a line in the log.
    required: bool,
}

const fn mount_of(kind: &'static str, target: &'static str, flags: MsFlags, options: Option<&'static str>) -> Mount {
    Mount { kind, target, flags, options, required: true }
}

/// In this order, because some lie within others.
const MOUNTS: [Mount; 9] = [
    mount_of("proc", "/proc", QUIET, None),
    mount_of("sysfs", "/sys", QUIET, None),
    // Mounted by the kernel itself if it is configured so; then this finds it there.
    mount_of("devtmpfs", "/dev", MsFlags::MS_NOSUID, Some("mode=0755")),
    // 5 is the group `tty` on Debian and everything like it.
    mount_of("devpts", "/dev/pts", MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC), Some("gid=5,mode=620,ptmxmode=666")),
    mount_of("tmpfs", "/dev/shm", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV), Some("mode=1777")),
    mount_of("tmpfs", "/run", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV), Some("mode=0755")),
    // What the guest is told of itself: a file system of its own, so that a full `/run` is no reason not to resume.
    mount_of("tmpfs", "/run/sandpiper", QUIET, Some("mode=0755,size=64k")),
    mount_of("cgroup2", "/sys/fs/cgroup", QUIET, None),
    Mount { required: false, ..mount_of("mqueue", "/dev/mqueue", QUIET, None) },
];

const QUIET: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Names under `/dev` that shells rely on and devtmpfs does not make.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

pub(super) fn mount_all(problems: &mut Vec<Problem>) {
    make_root_writable(problems);
    for entry in &MOUNTS {
        if let Err(error) = mount_one(entry)
            && entry.required
        {
            problems.push(format!("{} is not mounted: {error}", entry.target));
        }
    }
    for (target, link) in LINKS {
        match symlink(target, link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                problems.push(format!("{link} cannot be made: {error}"));
            }
            _ => {}
        }
    }
    for (folder, mode) in [("/run/lock", 0o1777), ("/tmp", 0o1777)] {
        if let Err(error) = ensure_folder(folder, mode) {
            problems.push(format!("{folder} cannot be made: {error}"));
        }
    }
}

/// The boot arguments may say `ro`, the kernel's default.
fn make_root_writable(problems: &mut Vec<Problem>) {
    let read_only = statvfs("/").is_ok_and(|root| root.flags().contains(FsFlags::ST_RDONLY));
    if read_only && let Err(error) = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REMOUNT, None::<&str>) {
        problems.push(format!("The root file system stays read-only: {error}"));
    }
}

fn mount_one(entry: &Mount) -> io::Result<()> {
    let attempt = || mount(Some(entry.kind), entry.target, Some(entry.kind), entry.flags, entry.options);
    match attempt() {
        // A template made from a bare image may lack the folder; there is no need to look before.
        Err(Errno::ENOENT) => {
            ensure_folder(entry.target, 0o755)?;
            Ok(attempt()?)
        }
        // Mounted already.
        Err(Errno::EBUSY) => Ok(()),
        other => Ok(other?),
    }
}

/// Makes `path` a folder of exactly `mode`.
fn ensure_folder(path: &str, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let path = Path::new(path);
    if fs::metadata(path)?.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}
