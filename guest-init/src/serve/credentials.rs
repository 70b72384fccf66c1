//! Acting as another user, on one thread and for one piece of work.

use std::io;

use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::users::User;

/// Does `work`, in which the kernel checks every access as if `user` made it, and gives new files to that user.
///
/// The effective ids change, not only those of files (`setfsuid(2)`): the kernel goes by them for `/proc/sys`, and takes all
/// capabilities from who is no longer root, where the others would leave those that open other processes' `/proc`. The
/// real and saved ids stay root's, so no process of the user may signal or trace the thread.
///
/// These credentials are a thread's own: they come with the call and go before it returns, so they must not be waited in.
///
/// # Errors
///
/// Fails without doing the work if the thread cannot act as `user`.
pub(super) fn as_user<T>(user: &User, work: impl FnOnce() -> T) -> io::Result<T> {
    if !user.needs_change() {
        return Ok(work());
    }
    // The kernel takes this id for "leave it as it is".
    if !geteuid().is_root() || user.uid == u32::MAX || user.gid == u32::MAX {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<_> = user.groups.iter().filter(|id| **id != u32::MAX).map(|id| Gid::from_raw(*id)).collect();
    let restore = Restore { group: getegid(), groups: getgroups()? };
    set_thread_groups(&groups)?;
    set_thread_res_gid(None, gid, None)?;
    set_thread_res_uid(None, uid, None)?;
    let result = work();
    drop(restore);
    Ok(result)
}

/// Gives the thread back its own credentials, in a panic too.
struct Restore {
    group: Gid,
    groups: Vec<Gid>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        // The user first: with it come back the capabilities that the rest needs. None can fail, as the saved user is root.
        let _ = set_thread_res_uid(None, Uid::ROOT, None);
        let _ = set_thread_res_gid(None, self.group, None);
        let _ = set_thread_groups(&self.groups);
    }
}
