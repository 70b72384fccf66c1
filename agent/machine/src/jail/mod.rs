//! What is around a monitor when it starts: a PID namespace, a cgroup with limits, and a user of its own.
//!
//! The agent makes what a process cannot make for itself. It starts the monitor as the first process of a new PID
//! namespace and in its cgroup ([`launch`]), so that not even its first instruction is outside of these, and tells it
//! which user to become; everything else the monitor gives up itself before it listens to anybody (`sandpiper-vmm
//! --jail`).

pub(crate) mod cgroup;
pub(crate) mod launch;

use self::cgroup::Cgroup;

/// What one monitor is put into.
pub(crate) struct Jail<'a> {
    /// The user and the group that it becomes: no other live process may have it.
    pub(crate) uid: u32,
    pub(crate) cgroup: &'a Cgroup,
}
