//! Who uses a volume, for the sentence that says why it cannot be unmounted.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::pid_t;

use crate::mountinfo;

/// Processes that are named; one more is counted.
const NAMED: usize = 4;

/// Processes that are looked at, and descriptors of each.
const MAX_PROCESSES: usize = 8192;
const MAX_FILES: usize = 4096;

/// Names some processes that use what is mounted at `place`, whose file system is on `device` (major and minor number).
///
/// Nothing here asks a file system for anything, and so nothing waits: what the kernel says of descriptors and mounts is enough.
pub(super) fn describe(place: &str, device: (u32, u32)) -> String {
    let own = fs::read_link("/proc/thread-self/ns/mnt").ok();
    let mut found = Vec::new();
    for pid in processes().take(MAX_PROCESSES) {
        let folder = Path::new("/proc").join(pid.to_string());
        let is_elsewhere = fs::read_link(folder.join("ns/mnt")).ok() != own;
        if uses(&folder, place) || is_elsewhere && has_mounted(&folder, device) {
            let name = fs::read(folder.join("comm")).unwrap_or_default();
            found.push(format!("{} (process {pid})", String::from_utf8_lossy(name.trim_ascii_end()).escape_debug()));
        }
        if found.len() > NAMED {
            found.truncate(NAMED);
            found.push("others".to_owned());
            break;
        }
    }
    if found.is_empty() {
        return "something that has no open file there: a mapped file, or a mount within it".to_owned();
    }
    found.join(", ")
}

fn processes() -> impl Iterator<Item = pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process is in a folder at or below `place`, or has a file there open.
fn uses(process: &Path, place: &str) -> bool {
    let is_there = |link: &Path| {
        let Ok(target) = fs::read_link(link) else { return false };
        let rest = target.as_os_str().as_bytes().strip_prefix(place.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().take(MAX_FILES);
    ["cwd", "root", "exe"].iter().any(|name| is_there(&process.join(name)))
        || files.into_iter().any(|file| is_there(&file.path()))
}

/// Whether a process of another mount namespace, a container's for instance, has the file system mounted.
fn has_mounted(process: &Path, device: (u32, u32)) -> bool {
    let Ok(list) = fs::read(process.join("mountinfo")) else { return false };
    mountinfo::parse(&String::from_utf8_lossy(&list)).any(|line| line.device == device)
}
