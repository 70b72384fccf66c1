//! What the process gives up as a whole.

use std::os::fd::RawFd;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, chdir, pivot_root, setgroups, setresgid, setresuid};

use super::JailError;

/// Most descriptors of a monitor: a thousand connections of its guest, and the machine's own.
const MAX_FILES: u64 = 4096;
/// Below this a monitor would fail its guest's connections.
const MIN_FILES: u64 = 1200;

/// Everything but the filters of system calls. The process has one thread and is root.
pub(super) fn confine(uid: u32, keep: &[RawFd]) -> Result<(), JailError> {
    // The PID namespace is the agent's to make: a process enters a new one only by being started in it.
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(namespaces).map_err(failed("enter new namespaces (is this process root?)"))?;
    empty_root().map_err(failed("enter an empty root"))?;
    close_others(keep).map_err(failed("close inherited descriptors"))?;
    limit()?;
    claim_cores().map_err(failed("keep others off its cores"))?;
    drop_privileges(uid).map_err(failed("drop privileges"))
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> JailError {
    move |errno| JailError::Step { what, source: errno.into() }
}

/// Has all threads allocate from one arena. Further ones, which the C library makes for threads that allocate at the
/// same moment, are given back to the kernel in a way that reads `/proc/sys/vm/overcommit_memory` first, and are
/// limited by a number that older libraries read from `/sys` (glibc, `malloc/arena.c`): in the jail, that would end the
/// process.
pub(super) fn tame_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers; no other thread exists that could be allocating.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Exchanges the root for an empty read-only file system. What the old one held is reachable through descriptors only.
fn empty_root() -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    // Or else what is mounted and unmounted here happens on the host, too.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    // A folder that every Linux host has; what it showed is not needed any more.
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("jail"), "/proc", Some("tmpfs"), flags, Some("mode=555"))?;
    chdir("/proc")?;
    // pivot_root(2): with "." for both, the old root lies on top of the new one, from where it is taken off.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")
}

/// Closes all but the standard streams and `keep`.
fn close_others(keep: &[RawFd]) -> Result<(), Errno> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd.saturating_add(1));
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: the call takes integers. Nobody owns what it closes: this runs before the process has opened anything but
    // what `enter` was told to keep, and the descriptors of the one thread's runtime are the standard ones.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

fn limit() -> Result<(), JailError> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed("read the limit of open files"))?;
    if hard < MIN_FILES {
        return Err(JailError::Files { needed: MIN_FILES, limit: hard });
    }
    let files = hard.min(MAX_FILES);
    setrlimit(Resource::RLIMIT_NOFILE, files, files).map_err(failed("limit open files"))?;
    // A layer is as long as its disk.
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).map_err(failed("read the limit of file sizes"))?;
    setrlimit(Resource::RLIMIT_FSIZE, hard, hard).map_err(failed("raise the limit of file sizes"))?;
    // A core dump would be the guest's memory.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(failed("forbid core dumps"))?;
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0).map_err(failed("forbid locking memory"))
}

/// Has no other process run on a core beside a thread of this one: two threads of a core share its caches and buffers, from
/// which one guest could read another's secrets (the kernel's `admin-guide/hw-vuln/core-scheduling`). Threads that are
/// started later belong to it. Nothing is done where no core runs two threads (ENODEV), or the kernel has no core scheduling
/// (EINVAL), which `sandpiper doctor` warns of.
fn claim_cores() -> Result<(), Errno> {
    let itself = 0;
    // SAFETY: PR_SCHED_CORE_CREATE takes integers, and no address.
    let claimed = Errno::result(unsafe {
        let (create, scope) = (libc::PR_SCHED_CORE_CREATE, libc::PR_SCHED_CORE_SCOPE_THREAD_GROUP);
        libc::prctl(libc::PR_SCHED_CORE, create, itself, scope, 0)
    });
    match claimed {
        Ok(_) | Err(Errno::ENODEV | Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Becomes the user `uid`, in the group of the same number only, without a capability and without a way back to one.
fn drop_privileges(uid: u32) -> Result<(), Errno> {
    // First, for it takes a capability.
    drop_bounding_set()?;
    setgroups(&[])?;
    let gid = Gid::from_raw(uid);
    setresgid(gid, gid, gid)?;
    let uid = Uid::from_raw(uid);
    setresuid(uid, uid, uid)?;
    // The kernel has cleared the effective and permitted sets with the user id, unless it was told not to, but never
    // the inheritable one.
    clear_capabilities()?;
    prctl::set_no_new_privs()?;
    // No process of this user can trace this one or look into its memory.
    prctl::set_dumpable(false)
}

fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..=libc::c_ulong::from(u8::MAX) {
        // SAFETY: PR_CAPBSET_DROP takes an integer.
        match Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            Ok(_) => {}
            // Beyond the last one that this kernel has.
            Err(Errno::EINVAL) if capability > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Empties the effective, permitted and inheritable sets, and with these the ambient one.
fn clear_capabilities() -> Result<(), Errno> {
    /// `struct __user_cap_header_struct` (`include/uapi/linux/capability.h`).
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    // Two `struct __user_cap_data_struct` of three words each.
    let data = [0u32; 6];
    // SAFETY: both pointers are to live values of the layout that version 3 has; the kernel reads the sets, and writes
    // to the header only when it does not know the version, which every Linux since 2.6.26 does.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::FIRST_UID;
    use super::super::ioctls::PAGEMAP_SCAN;
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use sandpiper_skip::skipped;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_the_named_descriptors_stay_open() {
        let [kept, closed] = [(); 2].map(|()| File::open("/dev/null").unwrap());
        let (kept, closed) = (kept.as_raw_fd(), closed.as_raw_fd());
        // Everything the child needs is here before the fork.
        let keep = [kept, kept];

        // SAFETY: the child calls `close_others`, whose one allocation comes from glibc's allocator, which is made to
        // work in the child of a process with threads, and ends.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let closed_all = close_others(&keep).is_ok();
                // SAFETY: F_GETFD takes integers only, and `_exit` ends the child without running anything of the
                // parent.
                unsafe {
                    let is_open = |fd| libc::fcntl(fd, libc::F_GETFD) >= 0;
                    let right = closed_all && is_open(0) && is_open(kept) && !is_open(closed);
                    libc::_exit(i32::from(!right));
                }
            }
        };

        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
    }

    /// Which processes may share a core with this thread: those with the same number, and 0 is everybody's.
    fn core_cookie() -> Result<u64, Errno> {
        let mut cookie = 0_u64;
        // SAFETY: PR_SCHED_CORE_GET writes eight bytes to the pointer, which is that of a live local variable.
        Errno::result(unsafe {
            let (get, scope) = (libc::PR_SCHED_CORE_GET, libc::PR_SCHED_CORE_SCOPE_THREAD);
            libc::prctl(libc::PR_SCHED_CORE, get, 0, scope, &raw mut cookie)
        })?;
        Ok(cookie)
    }

    #[test]
    fn a_process_keeps_others_off_its_cores() {
        let Ok(before) = core_cookie() else {
            skipped("core scheduling", "this needs cores with two threads, and a kernel with CONFIG_SCHED_CORE");
            return claim_cores().unwrap();
        };
        // SAFETY: the child makes system calls only, and ends.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let claimed = claim_cores().is_ok() && core_cookie().is_ok_and(|cookie| cookie != before);
                // SAFETY: ends the child without running anything of the parent.
                unsafe { libc::_exit(i32::from(!claimed)) };
            }
        };
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
    }

    /// `struct pm_scan_arg` (`include/uapi/linux/fs.h`) for one page, of which nothing is asked.
    fn scan(page: u64) -> [u64; 12] {
        const PAGE_IS_PRESENT: u64 = 1 << 3;
        [96, 0, page, page + 4096, 0, 0, 0, 0, 0, 0, PAGE_IS_PRESENT, PAGE_IS_PRESENT]
    }

    #[test]
    fn a_page_map_opened_before_can_be_searched_by_an_unprivileged_user() {
        if !Uid::effective().is_root() {
            return;
        }
        // SAFETY: the child makes system calls only, on memory that it has, and ends.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let pagemap = File::open("/proc/self/pagemap");
                let dropped = drop_privileges(FIRST_UID);
                let page = std::ptr::from_ref(&pagemap) as u64 & !0xfff;
                let mut scan = scan(page);
                let searched = pagemap.is_ok_and(|pagemap| {
                    let request = PAGEMAP_SCAN;
                    // SAFETY: the kernel reads and writes the twelve words that it says it takes.
                    let result = unsafe { libc::ioctl(pagemap.as_raw_fd(), request, scan.as_mut_ptr()) };
                    // The kernel says how far it got.
                    result >= 0 && scan[4] == page + 4096
                });
                // SAFETY: ends the child without running anything of the parent.
                unsafe {
                    libc::_exit(i32::from(!(dropped.is_ok() && searched && Uid::effective().as_raw() == FIRST_UID)))
                };
            }
        };
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
    }
}
