//! Work in a foreign tree, as if it were all there is.
//!
//! Names in a tree that a tenant made may lead anywhere: `/etc` a symbolic link out of it, a parent that is one. The kernel
//! resolves them all within the tree when it is the root folder of who asks, and that can be one thread's alone.

use std::path::Path;
use std::{io, thread};

use rustix::process::{chdir, chroot};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Does `work` with `folder` as the root folder. Paths in it are absolute, as seen from there.
///
/// # Errors
///
/// Fails without doing the work if the folder cannot be entered.
pub(crate) fn inside<T: Send>(folder: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    in_a_thread(|| chroot(folder).and_then(|()| chdir("/")), work)
}

/// Does `work` with `folder` as the working folder.
///
/// # Errors
///
/// As [`inside`].
pub(crate) fn in_folder<T: Send>(folder: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    in_a_thread(|| chdir(folder), work)
}

/// Does `work` on a thread with a root and a working folder of its own, once that did `enter`.
fn in_a_thread<T: Send>(
    enter: impl FnOnce() -> rustix::io::Result<()> + Send,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let entered = scope.spawn(|| {
            // SAFETY: it takes from the other threads nothing but this one's root and working folder, which no other relies
            // on; no descriptor is closed.
            unsafe { unshare_unsafe(UnshareFlags::FS) }?;
            enter()?;
            Ok(work())
        });
        entered.join().unwrap_or_else(|_| Err(io::Error::other("the work in the folder panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_nowhere_else_and_other_threads_see_everything() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("inner")).unwrap();
        symlink("/inner", tree.path().join("absolute")).unwrap();
        symlink("../../../../inner", tree.path().join("upwards")).unwrap();

        inside(tree.path(), || {
            fs::write("/absolute/one", "").unwrap();
            fs::write("/upwards/two", "").unwrap();
        })
        .unwrap();

        assert!(tree.path().join("inner/one").exists() && tree.path().join("inner/two").exists());
        assert!(inside(&tree.path().join("none"), || ()).is_err());
    }
}
