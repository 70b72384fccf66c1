//! The end of a cgroup. What is in it is killed first: a cgroup with processes cannot be removed, and a process that is
//! left there runs as a user whose id the next monitor would be given.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::errno::Errno;
use nix::libc::pid_t;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Cgroups, check, in_file, write};

/// How long the kernel may take to end the processes of a group.
const TIMEOUT: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(5);

impl Cgroups {
    /// Kills what is in a cgroup and removes it; content when there is none. Blocks, for a while if the kernel has not
    /// noticed the end of its processes yet.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.try_remove(id) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    thread::sleep(EVERY);
                }
                result => return result,
            }
        }
    }

    /// As [`Self::remove`], without waiting.
    pub(crate) fn try_remove(&self, id: &str) -> io::Result<()> {
        check(id)?;
        let groups: Vec<_> = self.trees.iter().map(|tree| tree.path.join(id)).collect();
        for group in &groups {
            content_without(kill(group))?;
        }
        for group in &groups {
            content_without(fs::remove_dir(group)).map_err(|error| in_file("remove", group, &error))?;
        }
        Ok(())
    }

    /// The users whose processes are in a cgroup. Blocks.
    pub(crate) fn users(&self, id: &str) -> BTreeSet<u32> {
        let members = self.trees.iter().filter_map(|tree| members(&tree.path.join(id)).ok()).flatten();
        members.filter_map(|pid| Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())).collect()
    }
}

/// Kills all processes of a group.
fn kill(group: &Path) -> io::Result<()> {
    match write(&group.join("cgroup.kill"), "1") {
        // Version 1, or a kernel before 5.14.
        Err(error) if error.kind() == ErrorKind::NotFound => members(group)?.into_iter().try_for_each(|pid| {
            let process = match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
                Some(Ok(process)) => process,
                // It has ended.
                Some(Err(_)) | None => return Ok(()),
            };
            // Only what is in the group now that there is a hold of it: until then its id could become another's.
            if members(group)?.contains(&pid) {
                match pidfd_send_signal(&process, Signal::KILL) {
                    Err(error) if error.raw_os_error() != Errno::ESRCH as i32 => return Err(error.into()),
                    _ => {}
                }
            }
            Ok(())
        }),
        result => result,
    }
}

fn members(group: &Path) -> io::Result<Vec<pid_t>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// What is not there need not be removed. A group that goes away while its files are open says ENODEV.
fn content_without(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32) => {
            Ok(())
        }
        result => result,
    }
}
