//! Stopping everything that the data plane has started: cgroup v2's freezer.
//!
//! Not only the group that the data plane's processes begin in is stopped, but every group directly below the root, and
//! with it those within: containers have groups beside it. Left running is what root of the sandbox moves into the root
//! group itself, which cannot be frozen.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Processes;
use crate::cgroups::{self, Cgroups};

/// For all processes to stop. They do so at once, unless the kernel works for them and cannot be interrupted.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Why processes were not stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StopError {
    #[error("The sandbox has no control groups (cgroup2 at /sys/fs/cgroup), so its processes cannot be stopped")]
    NoGroups,
    #[error("The control groups cannot be read: {0}")]
    Read(io::Error),
    #[error("The control group {group} cannot be frozen: {source}")]
    Group { group: String, source: io::Error },
    #[error("Processes in {group} did not stop within {} s: try again once what they read or write is done",
        STOP_LIMIT.as_secs())]
    Busy { group: String },
}

/// Stops and releases groups.
#[derive(Debug)]
pub(crate) struct Stopper {
    groups: Option<Cgroups>,
    stopped: Vec<PathBuf>,
}

impl Stopper {
    pub(crate) fn new(groups: Option<Cgroups>) -> Self {
        Self { groups, stopped: Vec::new() }
    }

    /// Freezes each group that is not, and returns them without waiting.
    fn freeze_all(&mut self, groups: &Cgroups) -> Result<(), StopError> {
        groups.leave_those_below().map_err(StopError::Read)?;
        // So that it is there to be frozen, and whatever is started from now on is stopped before its first
        // instruction.
        groups.user().map_err(StopError::Read)?;
        for group in groups.below().map_err(StopError::Read)? {
            let failed = |source| StopError::Group { group: group.display().to_string(), source };
            match fs::read_to_string(group.join("cgroup.freeze")) {
                // A group that was removed meanwhile.
                Err(error) if is_gone(&error) => continue,
                // Frozen by a program of the sandbox, whose business it stays.
                Ok(present) if present.trim() == "1" => continue,
                Ok(_) => {}
                Err(source) => return Err(failed(source)),
            }
            match cgroups::write(&group, "cgroup.freeze", "1") {
                Ok(()) => self.stopped.push(group),
                Err(error) if is_gone(&error) => {}
                Err(source) => return Err(failed(source)),
            }
        }
        Ok(())
    }
}

impl Processes for Stopper {
    fn stop(&mut self) -> Result<(), StopError> {
        let groups = self.groups.clone().ok_or(StopError::NoGroups)?;
        self.freeze_all(&groups)?;
        let deadline = Instant::now() + STOP_LIMIT;
        for group in &self.stopped {
            let name = || group.display().to_string();
            match wait_until_frozen(group, deadline) {
                Ok(true) => {}
                Ok(false) => return Err(StopError::Busy { group: name() }),
                Err(error) if is_gone(&error) => {}
                Err(source) => return Err(StopError::Group { group: name(), source }),
            }
        }
        Ok(())
    }

    fn release(&mut self) -> io::Result<()> {
        let mut failed = Ok(());
        self.stopped.retain(|group| match cgroups::write(group, "cgroup.freeze", "0") {
            Err(error) if !is_gone(&error) => {
                failed = Err(error);
                true
            }
            _ => false,
        });
        failed
    }
}

/// Whether a group, or a file of it that is open, is no longer there.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Whether everything in a group has stopped by `deadline`.
fn wait_until_frozen(group: &Path, deadline: Instant) -> io::Result<bool> {
    let mut events = File::open(group.join("cgroup.events"))?;
    let mut text = String::new();
    loop {
        text.clear();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if text.lines().any(|line| line == "frozen 1") {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // The kernel reports a change of the file since it was read last. A little late is better than a wait of 0 ms.
        let wait = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::testing::Hierarchy;
    use std::process::{Child, Command, Stdio};

    /// A process in `group` that answers each line with the same line.
    fn echo(group: &Path) -> Child {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cgroups::write(group, "cgroup.procs", &child.id().to_string()).unwrap();
        child
    }

    /// What arrives from the process within `timeout`.
    fn answer(child: &mut Child, timeout: u16) -> Option<u8> {
        let stdout = child.stdout.as_mut().unwrap();
        let ready = poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout).unwrap();
        let mut byte = [0];
        (ready > 0).then(|| stdout.read_exact(&mut byte).map(|()| byte[0]).unwrap())
    }

    #[test]
    fn stopped_processes_do_nothing_until_they_are_released() {
        let groups = Hierarchy::new("stopped");
        groups.user().unwrap();
        let beside = groups.user_folder().with_file_name("user-container");
        fs::create_dir(&beside).unwrap();
        let mut children = [echo(&groups.user_folder()), echo(&beside)];
        let mut stopper = Stopper::new(Some(groups.clone()));

        stopper.stop().unwrap();
        for child in &mut children {
            io::Write::write_all(child.stdin.as_mut().unwrap(), b"x").unwrap();
        }
        let while_stopped = children.each_mut().map(|child| answer(child, 200));
        stopper.release().unwrap();
        let after = children.each_mut().map(|child| answer(child, 30_000));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        fs::remove_dir(beside).unwrap();

        assert_eq!(while_stopped, [None, None]);
        assert_eq!(after, [Some(b'x'), Some(b'x')]);
    }

    #[test]
    fn a_group_that_was_frozen_before_stays_so() {
        let groups = Hierarchy::new("before");
        groups.user().unwrap();
        cgroups::write(&groups.user_folder(), "cgroup.freeze", "1").unwrap();
        let mut stopper = Stopper::new(Some(groups.clone()));

        stopper.stop().unwrap();
        stopper.release().unwrap();

        let state = fs::read_to_string(groups.user_folder().join("cgroup.freeze")).unwrap();
        assert_eq!(state, "1\n");
    }

    #[test]
    fn without_control_groups_the_reason_is_clear() {
        let error = Stopper::new(None).stop().unwrap_err();
        assert!(error.to_string().contains("cgroup2"), "{error}");
    }
}
