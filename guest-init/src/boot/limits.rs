//! Limits of PID 1, of the processes it starts, and of the kernel.

use std::fs;
use std::io;

use super::Problem;

/// A soft and a hard limit of open files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFiles {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// What processes start with: a soft limit that servers are content with and that programs which close every possible
/// descriptor get through quickly, and a hard one that is the kernel's own default ceiling (`fs.nr_open`).
pub(crate) const CHILD_OPEN_FILES: OpenFiles = OpenFiles { soft: 65_536, hard: 1_048_576 };

/// Kernel settings that differ from the defaults, and why.
const SYSCTLS: [(&str, &str); 6] = [
    // A sandbox is one tenant's: any user of it may serve port 80, and may ping.
    ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
    ("/proc/sys/net/ipv4/ping_group_range", "0 2147483647"),
    // Development servers that watch files; the default of 128 instances is soon used up.
    ("/proc/sys/fs/inotify/max_user_instances", "1024"),
    // Databases and search engines refuse to start with less.
    ("/proc/sys/vm/max_map_count", "262144"),
    // Memory is tidied up when somebody wants much of it in one piece, and not looked at twice a second.
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    // Seconds between two sums of what each processor has counted. Nobody reads them in a guest that does nothing.
    ("/proc/sys/vm/stat_interval", "10"),
];

pub(super) fn raise_open_files(problems: &mut Vec<Problem>) {
    let limit = libc::rlimit { rlim_cur: CHILD_OPEN_FILES.hard, rlim_max: CHILD_OPEN_FILES.hard };
    // SAFETY: `setrlimit` reads one `rlimit`, a live local variable.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } < 0 {
        problems.push(format!("The limit of open files stays low: {}", io::Error::last_os_error()));
    }
}

pub(super) fn tune_kernel(problems: &mut Vec<Problem>) {
    for (path, value) in SYSCTLS {
        match fs::write(path, value) {
            // A kernel without that feature.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                problems.push(format!("{path} keeps its default: {error}"));
            }
            _ => {}
        }
    }
}
