//! What a host needs, one check each, every failure with its fix.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::installation::{self, Installation};
use super::{Rung, clock, cores, network, processor, units};

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// Works, with a limit worth knowing.
    Warn,
    /// Sandboxes cannot run until it is mended.
    Fail,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    pub(super) fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), fix: Some(fix.into()) }
    }

    pub(super) fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, found: found.into(), fix: Some(fix.into()) }
    }
}

/// What the checks look at besides the machine.
pub(crate) struct Paths {
    pub(crate) installation: Installation,
    pub(crate) state_dir: PathBuf,
    pub(crate) kernel: Option<PathBuf>,
    pub(crate) template: Option<PathBuf>,
    pub(crate) volume_helper: Option<PathBuf>,
    pub(crate) builder: Option<PathBuf>,
}

pub(crate) fn all(rung: &Rung, paths: &Paths) -> Vec<Check> {
    let mut checks = vec![
        kvm(rung),
        root(),
        memory(),
        disk(&paths.state_dir),
        clock::check(),
        cgroups(Path::new("/sys/fs/cgroup")),
        binaries(),
        file("guest kernel", paths.kernel.as_deref(), "build it with kernel-config/build, or name it with --kernel"),
        file(
            "base template",
            paths.template.as_deref(),
            "build it with scripts/base-template, and name it with --template or import it: sandpiper template import --slug base IMAGE",
        ),
        volume_helper(paths.volume_helper.as_deref()),
        builder(paths.builder.as_deref()),
    ];
    if paths.installation.is_package {
        checks.extend(units::checks());
    }
    checks.extend(installation::checks(&paths.installation, &paths.state_dir));
    // The nested host has a processor of its own.
    if *rung == Rung::Direct {
        checks.extend(processor::checks());
        checks.extend(cores::checks());
    }
    checks.extend(network::checks(rung, paths.installation.agent.as_deref()));
    checks
}

fn kvm(rung: &Rung) -> Check {
    match rung {
        Rung::Direct => Check::ok("kvm", rung.to_string()),
        Rung::Emulated { .. } | Rung::Nested { .. } => {
            let qemu = find_program("qemu-system-x86_64").is_some();
            let found = rung.to_string();
            if qemu {
                Check::warn("kvm", found, "use the nested host, slower but complete: sandpiper up --nested")
            } else {
                Check::fail(
                    "kvm",
                    found,
                    "turn on virtualization (VT-x or AMD-V, nested where this is a virtual machine) and load kvm_intel or kvm_amd; or install qemu-system-x86 for: sandpiper up --nested",
                )
            }
        }
    }
}

fn root() -> Check {
    if nix::unistd::geteuid().is_root() {
        Check::ok("root", "running as root")
    } else {
        Check::warn(
            "root",
            "not running as root",
            "run `sandpiper up` as root: the agent makes namespaces and firewalls",
        )
    }
}

fn memory() -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .map(|kib| kib / 1024);
    match available {
        Some(mib) if mib >= 1024 => Check::ok("memory", format!("{mib} MiB available")),
        Some(mib) => Check::warn(
            "memory",
            format!("{mib} MiB available"),
            "a sandbox of the base template takes up to 512 MiB: free some",
        ),
        None => Check::warn("memory", "/proc/meminfo is not readable", "mount /proc"),
    }
}

fn disk(state_dir: &Path) -> Check {
    // The folder itself may not be there yet: its nearest ancestor is on the same file system.
    let Some(existing) = state_dir.ancestors().find(|path| path.exists()) else {
        return Check::fail(
            "disk",
            format!("{} cannot be created", state_dir.display()),
            "choose another with --state-dir",
        );
    };
    match nix::sys::statvfs::statvfs(existing) {
        Ok(stat) => {
            let free = stat.blocks_available().saturating_mul(stat.fragment_size()) >> 30;
            let found = format!("{free} GiB free for {}", state_dir.display());
            if free >= 5 {
                Check::ok("disk", found)
            } else {
                Check::warn(
                    "disk",
                    found,
                    "sandboxes' disks grow with what is written to them: free some, or choose another --state-dir",
                )
            }
        }
        Err(error) => {
            Check::fail("disk", format!("{}: {error}", existing.display()), "choose another with --state-dir")
        }
    }
}

/// `mount` is where they are by convention.
fn cgroups(mount: &Path) -> Check {
    if let Ok(controllers) = fs::read_to_string(mount.join("cgroup.controllers")) {
        let missing: Vec<_> = ["cpu", "memory", "pids"]
            .into_iter()
            .filter(|name| !controllers.split_whitespace().any(|has| has == *name))
            .collect();
        if missing.is_empty() {
            return Check::ok("cgroups", "version 2");
        }
        Check::warn(
            "cgroups",
            format!("version 2 without {}: one sandbox can take all of it", missing.join(", ")),
            "boot without cgroup_disable=; in a container, give it these controllers",
        )
    } else if mount.join("memory").exists() {
        Check::ok("cgroups", "version 1")
    } else {
        Check::warn("cgroups", "none mounted", "mount -t cgroup2 none /sys/fs/cgroup")
    }
}

fn binaries() -> Check {
    let missing: Vec<&str> = ["sandpiper-agent", "sandpiper-api", "sandpiper-vmm"]
        .into_iter()
        .filter(|name| sibling(name).is_none())
        .collect();
    if missing.is_empty() {
        Check::ok("programs", "sandpiper-agent, sandpiper-api and sandpiper-vmm are beside this one")
    } else {
        Check::fail(
            "programs",
            format!("missing: {}", missing.join(", ")),
            "build them with scripts/build, and install them in the folder of this program",
        )
    }
}

fn file(name: &'static str, path: Option<&Path>, fix: &str) -> Check {
    match path {
        Some(path) if path.is_file() => Check::ok(name, path.display().to_string()),
        Some(path) => Check::fail(name, format!("{} is not there", path.display()), fix),
        None => Check::fail(name, "none found", fix),
    }
}

/// Sandboxes run without it, only not with volumes.
fn volume_helper(path: Option<&Path>) -> Check {
    const FIX: &str = "sandboxes can have no volumes without it: build it with scripts/volume-helper, or name it with --volume-helper";
    file_worth_having("volume helper", path, FIX)
}

/// Sandboxes run without it, only not of templates that are built here.
fn builder(path: Option<&Path>) -> Check {
    const FIX: &str =
        "no templates can be built without it: make it with scripts/builder-template, or name it with --builder";
    file_worth_having("builder", path, FIX)
}

fn file_worth_having(name: &'static str, path: Option<&Path>, fix: &str) -> Check {
    match file(name, path, fix) {
        check if check.verdict == Verdict::Fail => Check { verdict: Verdict::Warn, ..check },
        check => check,
    }
}

/// The program `name` in the folder of this one.
pub(crate) fn sibling(name: &str) -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name(name);
    path.is_file().then_some(path)
}

fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_version_2_are_of_use_with_all_controllers() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(cgroups(mount.path()).verdict, Verdict::Warn);
        fs::create_dir(mount.path().join("memory")).unwrap();
        assert_eq!(cgroups(mount.path()).found, "version 1");
        for (controllers, verdict) in
            [("cpuset cpu io memory pids\n", Verdict::Ok), ("cpuset io pids\n", Verdict::Warn)]
        {
            fs::write(mount.path().join("cgroup.controllers"), controllers).unwrap();
            assert_eq!(cgroups(mount.path()).verdict, verdict, "{controllers}");
        }
    }

    #[test]
    fn a_host_without_the_agents_own_templates_works_and_is_told_how_to_get_them() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("volume-helper-1.ext4");
        for path in [None, Some(image.as_path())] {
            let check = volume_helper(path);
            assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
            assert!(check.fix.unwrap().contains("scripts/volume-helper"));
            let check = builder(path);
            assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
            assert!(check.fix.unwrap().contains("scripts/builder-template"));
        }

        fs::write(&image, "image").unwrap();

        let check = volume_helper(Some(&image));
        assert_eq!((check.verdict, check.fix), (Verdict::Ok, None));
        assert_eq!(file("base template", None, "build it").verdict, Verdict::Fail, "without that no sandbox runs");
    }
}
