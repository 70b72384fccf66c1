//! The control group of everything that buildah runs: a build that takes all memory, or starts processes without end, takes
//! them from itself, and this program and the guest's first process go on to say so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the hierarchy is mounted (cgroup v2).
const HIERARCHY: &str = "/sys/fs/cgroup";

const NAME: &str = "sandpiper-build";

/// Processes and threads of a build at a time: more than compilers need, and few enough for a machine to end them soon.
pub(crate) const MAX_TASKS: u32 = 4096;

/// What a build leaves of the machine's memory: a part of it, and this at least.
const LEFT_SHARE: u64 = 16;
const LEFT_KIB: u64 = 48 * 1024;

pub(crate) struct Group {
    folder: PathBuf,
}

impl Group {
    /// A group with the limits of this machine.
    ///
    /// # Errors
    ///
    /// Fails where the hierarchy is not that of a guest.
    pub(crate) fn make() -> io::Result<Self> {
        let hierarchy = Path::new(HIERARCHY);
        let group = Self { folder: hierarchy.join(NAME) };
        // In a hierarchy that has the controllers already this changes nothing.
        for controller in ["+memory", "+pids"] {
            fs::write(hierarchy.join("cgroup.subtree_control"), controller)?;
        }
        match fs::create_dir(&group.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let limit = memory_limit(&fs::read_to_string("/proc/meminfo")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal"))?;
        fs::write(group.folder.join("memory.max"), limit.to_string())?;
        // All of it ends then: a step without one of its processes would go on for as long as it may, and fail with other words.
        fs::write(group.folder.join("memory.oom.group"), "1")?;
        fs::write(group.folder.join("pids.max"), MAX_TASKS.to_string())?;
        Ok(group)
    }

    /// The file that a process writes 0 to, to be in the group.
    pub(crate) fn entrance(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// How many processes of it the kernel has ended for want of memory.
    pub(crate) fn killed(&self) -> u64 {
        self.count("memory.events", "oom_kill ")
    }

    /// How many processes and threads were not begun in it, as there were [`MAX_TASKS`].
    pub(crate) fn refused(&self) -> u64 {
        self.count("pids.events", "max ")
    }

    fn count(&self, file: &str, of: &str) -> u64 {
        let events = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        events.lines().find_map(|line| line.strip_prefix(of)?.parse().ok()).unwrap_or_default()
    }

    /// Ends what is left in it.
    pub(crate) fn end(&self) {
        // It fails where the group is gone, and so is what was in it.
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
    }
}

/// Bytes, of a machine whose `/proc/meminfo` this is.
fn memory_limit(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(total.saturating_sub((total / LEFT_SHARE).max(LEFT_KIB)) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_leaves_some_memory_to_the_machine() {
        let limit = |kib: u64| memory_limit(&format!("MemFree: 1 kB\nMemTotal:   {kib} kB\n")).unwrap();
        assert_eq!(limit(512 * 1024), 464 << 20);
        assert_eq!(limit(4096 * 1024), 3840 << 20);
        assert_eq!(memory_limit("MemFree: 1 kB\n"), None);
    }
}
