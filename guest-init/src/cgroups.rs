//! Control groups (cgroup v2): one for everything that the data plane starts, so that it can be stopped as a whole.
//!
//! ```text
//!   /sys/fs/cgroup          PID 1 and the kernel's threads
//!     ├─ user               what the data plane starts, and what that starts
//!     └─ docker, …          groups that programs of the sandbox make themselves, as root
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where the hierarchy is mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The group of what the data plane starts.
const USER: &str = "user";

/// The same, for messages.
pub(crate) const USER_GROUP: &str = "/sys/fs/cgroup/user";

/// A group, and the groups below it.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    folder: PathBuf,
    /// The group's name as `/proc/self/cgroup` has it.
    name: String,
}

impl Cgroups {
    /// The guest's hierarchy with the group of its processes. An error where it is not mounted.
    pub(crate) fn of_guest() -> io::Result<Self> {
        let groups = Self { folder: PathBuf::from(MOUNT), name: "/".to_owned() };
        // In any other file system the group below would be an ordinary folder.
        fs::metadata(groups.folder.join("cgroup.procs"))?;
        groups.user()?;
        Ok(groups)
    }

    /// The group for what the data plane starts. Made if it is not there: root may have removed it while it was empty.
    pub(crate) fn user(&self) -> io::Result<OwnedFd> {
        let path = self.folder.join(USER);
        let open = || OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&path);
        let group = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(&path)?;
                open()?
            }
            other => other?,
        };
        Ok(group.into())
    }

    /// The folders of all groups directly below this one.
    pub(crate) fn below(&self) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
        Ok(folders)
    }

    /// Takes this process out of the groups below: a program that delegates the hierarchy to itself, as those do that
    /// run containers in containers, moves every process of the root group, PID 1 too.
    pub(crate) fn leave_those_below(&self) -> io::Result<()> {
        let present = fs::read_to_string("/proc/self/cgroup")?;
        if is_below(&present, &self.name) {
            fs::write(self.folder.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }
}

/// Whether the process whose `/proc/…/cgroup` says `present` is in a group below `name`.
fn is_below(present: &str, name: &str) -> bool {
    let own = present.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    own.strip_prefix(name).is_some_and(|rest| !rest.is_empty() && (name.ends_with('/') || rest.starts_with('/')))
}

/// Writes to a file of a group, which must exist.
pub(crate) fn write(group: &Path, file: &str, value: &str) -> io::Result<()> {
    use std::io::Write;
    File::options().write(true).open(group.join(file))?.write_all(value.as_bytes())
}

/// Real groups for tests, which need root for them.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use std::ops::Deref;

    /// A group of its own that takes the root's place. Gone when dropped, and so is what still runs in it.
    pub(crate) struct Hierarchy {
        groups: Cgroups,
        mounted: tempfile::TempDir,
    }

    impl Hierarchy {
        /// `name` tells it from those of other tests.
        pub(crate) fn new(name: &str) -> Self {
            let mounted = tempfile::tempdir().unwrap();
            mount(Some("cgroup2"), mounted.path(), Some("cgroup2"), MsFlags::empty(), None::<&str>).unwrap();
            let name = format!("/sandpiper-{name}-{}", std::process::id());
            let folder = mounted.path().join(name.trim_start_matches('/'));
            fs::create_dir(&folder).unwrap();
            Self { groups: Cgroups { folder, name }, mounted }
        }

        /// The folder of the group of what the data plane starts.
        pub(crate) fn user_folder(&self) -> PathBuf {
            self.groups.folder.join(USER)
        }
    }

    impl Deref for Hierarchy {
        type Target = Cgroups;

        fn deref(&self) -> &Cgroups {
            &self.groups
        }
    }

    impl Drop for Hierarchy {
        fn drop(&mut self) {
            let _ = write(&self.groups.folder, "cgroup.kill", "1");
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            // What was killed is in its group until it has ended.
            let is_busy = |error: io::Error| error.raw_os_error() == Some(libc::EBUSY);
            for folder in [self.user_folder(), self.groups.folder.clone()] {
                while fs::remove_dir(&folder).is_err_and(is_busy) && std::time::Instant::now() < deadline {
                    std::thread::yield_now();
                }
            }
            let _ = umount2(self.mounted.path(), MntFlags::MNT_DETACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_group_that_is_really_below_counts() {
        assert!(!is_below("0::/\n", "/"));
        assert!(is_below("4:memory:/\n0::/user\n", "/"));
        assert!(is_below("0::/docker/abc\n", "/docker"));
        assert!(!is_below("0::/docker\n", "/docker"));
        assert!(!is_below("0::/docker2\n", "/docker"));
        assert!(!is_below("4:memory:/user\n", "/"));
    }

    #[test]
    fn the_group_of_processes_is_made_again_when_it_was_removed() {
        let groups = testing::Hierarchy::new("made-again");

        groups.user().unwrap();
        fs::remove_dir(groups.user_folder()).unwrap();
        groups.user().unwrap();

        assert_eq!(groups.below().unwrap(), [groups.user_folder()]);
    }
}
