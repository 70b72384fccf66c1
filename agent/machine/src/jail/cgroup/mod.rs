//! Limits on what one monitor, and so one guest, may take of the host: CPU time, memory, threads.
//!
//! Each monitor has a cgroup, below one that belongs to this agent:
//!
//! ```text
//!   /sys/fs/cgroup/            version 2: all limits are files in one tree
//!     sandpiper-<agent>/
//!       <id>/                  cpu.max  memory.max  pids.max  cgroup.procs
//!
//!   /sys/fs/cgroup/cpu/        version 1: a tree for each controller, or for a few together
//!     sandpiper-<agent>/<id>/  cpu.cfs_quota_us  cgroup.procs
//!   /sys/fs/cgroup/memory/
//!     sandpiper-<agent>/<id>/  memory.limit_in_bytes  cgroup.procs
//! ```
//!
//! Where both versions are mounted, version 2 is used if the controllers are there. Nothing else is kept of a cgroup
//! but its folder, so an agent that starts finds what an earlier one left ([`Cgroups::list`]).

mod removal;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// `cpu.max`, `cpu.cfs_quota_us`: microseconds of CPU time in each period.
const PERIOD_US: u64 = 100_000;

/// What a monitor may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of its guest; the monitor's own threads have one more between them.
    pub(crate) cpus: u32,
    /// The guest's memory and the monitor's own.
    pub(crate) memory_bytes: u64,
    pub(crate) tasks: u32,
}

/// The agent's own cgroup, in each tree that it needs. Without one, there are no limits, and nothing is done here.
#[derive(Debug)]
pub struct Cgroups {
    trees: Vec<Tree>,
}

/// The cgroup of one monitor.
#[derive(Debug)]
pub(crate) struct Cgroup {
    /// `cgroup.procs` in each tree.
    entries: Vec<File>,
}

impl Cgroup {
    /// Files that the process which is to be in this group writes "0" to.
    pub(crate) fn entry(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.entries.iter().map(AsFd::as_fd)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Cpu,
    Memory,
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Pids];

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }

    fn among(names: &str, separator: char) -> Vec<Self> {
        let has = |controller: &Self| names.split(separator).any(|name| name.trim() == controller.name());
        Self::ALL.into_iter().filter(has).collect()
    }

    /// Files and what is written to them. Those that not every kernel has are optional.
    fn settings(self, version: Version, limits: &Limits) -> Vec<(&'static str, String, Presence)> {
        use Presence::{Always, Optional};
        let quota = (u64::from(limits.cpus) + 1) * PERIOD_US;
        let memory = limits.memory_bytes;
        match (self, version) {
            (Self::Cpu, Version::One) => vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string(), Always),
                ("cpu.cfs_quota_us", quota.to_string(), Always),
            ],
            (Self::Cpu, Version::Two) => vec![("cpu.max", format!("{quota} {PERIOD_US}"), Always)],
            (Self::Memory, Version::One) => vec![
                ("memory.limit_in_bytes", memory.to_string(), Always),
                // Memory and swap together.
                ("memory.memsw.limit_in_bytes", memory.to_string(), Optional),
                ("memory.swappiness", "0".to_owned(), Optional),
            ],
            (Self::Memory, Version::Two) => vec![
                ("memory.max", memory.to_string(), Always),
                ("memory.swap.max", "0".to_owned(), Optional),
                // A monitor without one of its threads is of no use.
                ("memory.oom.group", "1".to_owned(), Optional),
            ],
            (Self::Pids, _) => vec![("pids.max", limits.tasks.to_string(), Always)],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Always,
    Optional,
}

/// A mounted hierarchy, or the agent's cgroup in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree {
    path: PathBuf,
    version: Version,
    controllers: Vec<Controller>,
}

impl Cgroups {
    /// The cgroup of the agent called `name`, created if it is not there. A host without usable cgroups is not an
    /// error, but is warned of. Blocks.
    ///
    /// # Errors
    /// The list of mounts cannot be read, or `name` is no name of a folder.
    pub fn open(name: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let offered = |mount: &Path| fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        Self::below(hierarchies(&mounts, offered), name)
    }

    fn below(hierarchies: Vec<Tree>, name: &str) -> io::Result<Self> {
        check(name)?;
        let mut trees = Vec::with_capacity(hierarchies.len());
        for hierarchy in hierarchies {
            let mount = hierarchy.path.clone();
            match hierarchy.descend(&format!("sandpiper-{name}")) {
                Ok(tree) => trees.push(tree),
                Err(error) => tracing::warn!(mount = %mount.display(), %error, "a cgroup hierarchy cannot be used"),
            }
        }
        let has = |controller: &Controller| trees.iter().any(|tree| tree.controllers.contains(controller));
        let missing: Vec<_> = Controller::ALL.into_iter().filter(|controller| !has(controller)).collect();
        if !missing.is_empty() {
            let missing = missing.iter().map(|controller| controller.name()).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                missing,
                "SANDBOXES ARE NOT LIMITED in what these cgroup controllers limit: one of them can starve this host; \
                 mount cgroup2 with them at /sys/fs/cgroup and let the agent write there"
            );
        }
        Ok(Self { trees })
    }

    /// A new cgroup with these limits. `id` is none that exists. Blocks.
    pub(crate) fn create(&self, id: &str, limits: &Limits) -> io::Result<Cgroup> {
        check(id)?;
        let mut entries = Vec::with_capacity(self.trees.len());
        for (done, tree) in self.trees.iter().enumerate() {
            match tree.create(id, limits) {
                Ok(entry) => entries.push(entry),
                Err(error) => {
                    for tree in &self.trees[..done] {
                        // What stays is found by `list`.
                        let _ = fs::remove_dir(tree.path.join(id));
                    }
                    return Err(error);
                }
            }
        }
        Ok(Cgroup { entries })
    }

    /// The ids of all cgroups that exist, also those of earlier agents of this name. Blocks.
    pub(crate) fn list(&self) -> io::Result<Vec<String>> {
        let mut ids = BTreeSet::new();
        for tree in &self.trees {
            for entry in fs::read_dir(&tree.path)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    ids.extend(entry.file_name().into_string());
                }
            }
        }
        Ok(ids.into_iter().collect())
    }
}

impl Tree {
    /// The cgroup `name` in this hierarchy, made if need be, whose children may have limits. Only what can be used of
    /// the controllers is left.
    fn descend(self, name: &str) -> io::Result<Self> {
        let path = self.path.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut controllers = self.controllers;
        if self.version == Version::Two {
            controllers.retain(|controller| {
                let enable =
                    |group: &Path| write(&group.join("cgroup.subtree_control"), &format!("+{}", controller.name()));
                let enabled = enable(&self.path).and_then(|()| enable(&path));
                if let Err(error) = &enabled {
                    tracing::warn!(controller = controller.name(), %error, "a cgroup controller cannot be enabled");
                }
                enabled.is_ok()
            });
        }
        Ok(Self { path, version: self.version, controllers })
    }

    /// The group `id` below this one, with its limits. Leaves nothing behind when it fails.
    fn create(&self, id: &str, limits: &Limits) -> io::Result<File> {
        let path = self.path.join(id);
        fs::create_dir(&path).map_err(|error| in_file("create", &path, &error))?;
        let made = self.limit(&path, limits).and_then(|()| {
            let procs = path.join("cgroup.procs");
            OpenOptions::new().write(true).open(&procs).map_err(|error| in_file("open", &procs, &error))
        });
        if made.is_err() {
            let _ = fs::remove_dir(&path);
        }
        made
    }

    fn limit(&self, group: &Path, limits: &Limits) -> io::Result<()> {
        for controller in &self.controllers {
            for (file, value, presence) in controller.settings(self.version, limits) {
                match write(&group.join(file), &value) {
                    Err(error) if presence == Presence::Optional && error.kind() == io::ErrorKind::NotFound => {}
                    result => result?,
                }
            }
        }
        Ok(())
    }
}

/// Writes to a file that exists; the kernel takes a value in one piece.
fn write(path: &Path, value: &str) -> io::Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    written.map_err(|error| in_file("write", path, &error))
}

fn in_file(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("Cannot {what} {}: {error}", path.display()))
}

/// A name becomes one folder.
fn check(name: &str) -> io::Result<()> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot be the name of a cgroup")));
    }
    Ok(())
}

/// The trees to use: version 2 if it offers limits on CPU time and memory (`offered` tells what a mounted one offers),
/// else those of version 1, the first for each controller.
fn hierarchies(mountinfo: &str, offered: impl Fn(&Path) -> String) -> Vec<Tree> {
    let mut first: Vec<Tree> = Vec::new();
    for line in mountinfo.lines() {
        let Some(Mount { path, kind, options }) = Mount::parse(line) else { continue };
        match kind {
            "cgroup2" => {
                let controllers = Controller::among(&offered(&path), ' ');
                if [Controller::Cpu, Controller::Memory].iter().all(|needed| controllers.contains(needed)) {
                    return vec![Tree { path, version: Version::Two, controllers }];
                }
            }
            "cgroup" => {
                let mut controllers = Controller::among(options, ',');
                controllers.retain(|controller| !first.iter().any(|tree| tree.controllers.contains(controller)));
                if !controllers.is_empty() {
                    first.push(Tree { path, version: Version::One, controllers });
                }
            }
            _ => {}
        }
    }
    first
}

/// A line of `mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'l> {
    path: PathBuf,
    kind: &'l str,
    /// Of the file system, not of the mount.
    options: &'l str,
}

impl<'l> Mount<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let path = mount.split(' ').nth(4)?;
        let mut file_system = file_system.split(' ');
        let (kind, _source, options) = (file_system.next()?, file_system.next()?, file_system.next()?);
        // A space in a path is written as four characters; nobody mounts cgroups there.
        (!path.contains('\\')).then(|| Self { path: PathBuf::from(path), kind, options })
    }
}
