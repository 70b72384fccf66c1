//! What a monitor takes of the host, as the kernel counts it: the guest is neither asked nor woken.

use std::fs;
use std::io;
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};

use crate::process::{Identity, start_time};

/// What one monitor takes, its guest included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorUsage {
    /// CPU time of all its threads since it was started.
    pub cpu: Duration,
    /// Memory of the host that it holds now: what its guest ever touched, and its own.
    pub memory_bytes: u64,
}

impl MonitorUsage {
    /// Of this very process; `None` when it is gone. Blocks.
    ///
    /// # Errors
    /// The kernel's file cannot be read, or is not in its form (proc_pid_stat(5)).
    pub fn of(identity: &Identity, boot_id: &str) -> io::Result<Option<Self>> {
        if identity.boot_id != boot_id {
            return Ok(None);
        }
        let stat = match fs::read_to_string(format!("/proc/{}/stat", identity.pid)) {
            Ok(stat) => stat,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if start_time(&stat) != Some(identity.start_time) {
            return Ok(None);
        }
        let ticks = unit(SysconfVar::CLK_TCK)?;
        let page = unit(SysconfVar::PAGE_SIZE)?;
        parse(&stat, ticks, page).map(Some).ok_or_else(|| io::Error::other("a process's stat is not in its form"))
    }
}

/// Times are in `ticks` a second, memory is in pages of `page` bytes.
fn parse(stat: &str, ticks: u64, page: u64) -> Option<MonitorUsage> {
    let (_, after_name) = stat.rsplit_once(')')?;
    // From field 3 on: user time is field 14, system time 15, resident memory 24.
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticked = field(14)?.checked_add(field(15)?)?;
    let cpu = Duration::from_millis(ticked.checked_mul(1000)?.checked_div(ticks)?);
    Some(MonitorUsage { cpu, memory_bytes: field(24)?.checked_mul(page)? })
}

/// A process may end between opening and reading its file.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn unit(variable: SysconfVar) -> io::Result<u64> {
    let value = sysconf(variable)?.and_then(|value| u64::try_from(value).ok());
    value.ok_or_else(|| io::Error::other("the C library does not say in which unit the kernel counts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::boot_id;

    #[test]
    fn a_line_of_the_kernels_is_read_whatever_the_process_is_called() {
        let stat = "77 (a) b c) S 1 77 77 0 -1 4194560 9 0 0 0 150 50 7 8 20 0 3 0 4242 1048576 256 1844 1 1 0";

        let usage = parse(stat, 100, 4096).unwrap();

        assert_eq!(usage, MonitorUsage { cpu: Duration::from_secs(2), memory_bytes: 1 << 20 });
        assert_eq!(parse("77 (a) S 1", 100, 4096), None);
        assert_eq!(parse(stat, 0, 4096), None);
    }

    #[test]
    fn a_process_is_measured_and_another_of_its_number_is_not() {
        let boot_id = boot_id().unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut identity = Identity { pid, start_time: start_time(&stat).unwrap(), boot_id: boot_id.clone() };

        let usage = MonitorUsage::of(&identity, &boot_id).unwrap().unwrap();

        assert!(usage.memory_bytes > 64 << 10, "{usage:?}");
        assert_eq!(MonitorUsage::of(&identity, "another boot").unwrap(), None);
        identity.start_time += 1;
        assert_eq!(MonitorUsage::of(&identity, &boot_id).unwrap(), None);
    }
}
