//! What this machine is and has: memory, processors, disk space.

use std::io;
use std::path::Path;

/// Memory of the machine in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total_mb: u64,
    /// What can be handed out without swapping, as the kernel estimates it.
    pub(crate) available_mb: u64,
}

/// Reads `/proc/meminfo`, which never waits for a disk.
pub(crate) fn memory() -> io::Result<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let field = |name: &str| {
        meminfo_kib(&text, name).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("No {name} in it")))
    };
    Ok(Memory { total_mb: field("MemTotal")? / 1024, available_mb: field("MemAvailable")? / 1024 })
}

fn meminfo_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Processors that this process may use.
pub(crate) fn cpus() -> u32 {
    std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok()).unwrap_or(1)
}

/// Free space of the file system that holds `path`, in MiB.
pub(crate) fn free_disk_mb(path: &Path) -> io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()) / (1024 * 1024))
}

/// Size of the file system that holds `path`, in MiB.
pub(crate) fn disk_size_mb(path: &Path) -> io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    Ok(stat.blocks().saturating_mul(stat.fragment_size()) / (1024 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_memory_report_is_understood() {
        let text = "MemTotal:       24612340 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(meminfo_kib(text, "MemTotal"), Some(24_612_340));
        assert_eq!(meminfo_kib(text, "MemAvailable"), Some(20_000_000));
        assert_eq!(meminfo_kib(text, "Swap"), None);
        let memory = memory().unwrap();
        assert!(memory.available_mb <= memory.total_mb);
    }
}
