//! What must exist before the first process of a user: file systems, the loopback device, limits.
//!
//! Start time is what a sandbox is judged by, so this starts no process, waits for nothing, and does only what cannot
//! wait; [`Rest`] is done once the data plane responds. Nothing here is fatal: a machine that lacks, say,
//! `/dev/mqueue` still runs programs, so what goes wrong is reported and left.

mod bare;
mod disk;
mod limits;
mod mounts;
mod network;
mod users;

pub(crate) use bare::{enter_disk, is_bare, leave_disk_if_wanted};
pub(crate) use limits::CHILD_OPEN_FILES;
pub use users::ensure as ensure_users;
pub(crate) use users::replace as replace_file;

/// Something that did not work, as a line for the log.
pub(crate) type Problem = String;

/// Everything that must come first. Returns what did not work.
pub(crate) fn prepare() -> Vec<Problem> {
    let mut problems = Vec::new();
    // The mode bits that files are created with are given in full; children start with the usual mask.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    mounts::mount_all(&mut problems);
    bare::await_release(&mut problems);
    network::bring_up_loopback(&mut problems);
    limits::raise_open_files(&mut problems);
    problems
}

/// What may come after the data plane is up.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    is_tuned: bool,
    root: disk::RootDisk,
}

impl Rest {
    /// Does what is left to do: all of it at first, later what has changed. Blocks. Returns what did not work.
    pub(crate) fn finish(&mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !self.is_tuned {
            limits::tune_kernel(&mut problems);
            self.is_tuned = true;
        }
        self.root.grow(&mut problems);
        problems
    }
}
