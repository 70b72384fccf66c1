//! Acting on files as another user, on one thread and for one piece of work.

use std::io;

use crate::users::User;

/// Does `work`, in which the kernel checks every access to a file as if `user` made it, and gives new files to that user.
///
/// These credentials are a thread's own (`setfsuid(2)`): they go with the call and come back before it returns, so they
/// must not be waited in. Dropping to a user that is not root also drops the capabilities that override file permissions.
pub(super) fn as_user<T>(user: &User, work: impl FnOnce() -> T) -> io::Result<T> {
    if !user.needs_change() {
        return Ok(work());
    }
    let own = nix::unistd::geteuid();
    if !own.is_root() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let restore = Restore { groups: own_groups()? };
    set_groups(&user.groups)?;
    set_file_ids(user.uid, user.gid);
    // The calls above return no error; asking with an impossible id tells whether they worked.
    let result = if file_ids() == (i64::from(user.uid), i64::from(user.gid)) {
        Ok(work())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    };
    drop(restore);
    result
}

/// Gives the thread back its own credentials, in a panic too.
struct Restore {
    groups: Vec<u32>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        // Neither can fail: both need only capabilities that the thread kept.
        set_file_ids(0, 0);
        let _ = set_groups(&self.groups);
    }
}

fn own_groups() -> io::Result<Vec<u32>> {
    // SAFETY: with a count of 0, `getgroups` writes nothing and returns how many there are.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: `getgroups` writes at most `count` ids, for which there is room.
    let count = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(groups)
}

/// The raw call: libc's changes the groups of every thread.
fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads `len` ids from a live slice, and changes this thread's credentials only.
    if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The group first: once the user is another, the group could still be changed, but the order costs nothing.
fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: neither call takes a pointer; both change this thread's credentials only.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}

fn file_ids() -> (i64, i64) {
    // SAFETY: as above; -1 is no id, so nothing changes and the present one is returned.
    unsafe { (libc::syscall(libc::SYS_setfsuid, u32::MAX), libc::syscall(libc::SYS_setfsgid, u32::MAX)) }
}
