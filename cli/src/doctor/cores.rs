//! Whether guests of different tenants can meet on one core.

use std::fs;
use std::path::Path;

use nix::errno::Errno;

use super::checks::Check;

const NAME: &str = "cores";

pub(super) fn checks() -> Vec<Check> {
    vec![judge(is_smt_on(Path::new("/sys/devices/system/cpu")), has_core_scheduling())]
}

/// Whether cores run two threads each. `cpus` is `/sys/devices/system/cpu`.
fn is_smt_on(cpus: &Path) -> bool {
    fs::read_to_string(cpus.join("smt/active")).is_ok_and(|active| active.trim() == "1")
}

/// Whether the kernel would keep processes apart that ask for it.
fn has_core_scheduling() -> bool {
    let mut cookie = 0_u64;
    // SAFETY: PR_SCHED_CORE_GET writes eight bytes to the pointer, which is that of a live local variable.
    let asked = Errno::result(unsafe {
        let (get, scope) = (libc::PR_SCHED_CORE_GET, libc::PR_SCHED_CORE_SCOPE_THREAD);
        libc::prctl(libc::PR_SCHED_CORE, get, 0, scope, &raw mut cookie)
    });
    asked.is_ok()
}

fn judge(smt: bool, core_scheduling: bool) -> Check {
    match (smt, core_scheduling) {
        (false, _) => Check::ok(NAME, "SMT is off: no two guests run on one core at the same time"),
        (true, true) => Check::ok(
            NAME,
            "SMT is on, and core scheduling keeps every guest's cores its own: the second thread of a core runs the same guest or nothing",
        ),
        (true, false) => Check::warn(
            NAME,
            "SMT is on and this kernel has no core scheduling: guests of different tenants run on the two threads of a core at the same time, where one may read what the other leaves in its caches and buffers",
            "boot a kernel from 5.14 on with CONFIG_SCHED_CORE=y, or switch SMT off: echo off > /sys/devices/system/cpu/smt/control",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::Verdict;
    use super::*;

    #[test]
    fn smt_is_on_where_the_kernel_says_so() {
        let cpus = tempfile::tempdir().unwrap();
        assert!(!is_smt_on(cpus.path()), "a kernel without SMT says nothing");
        fs::create_dir(cpus.path().join("smt")).unwrap();
        for (active, is_on) in [("0\n", false), ("1\n", true)] {
            fs::write(cpus.path().join("smt/active"), active).unwrap();
            assert_eq!(is_smt_on(cpus.path()), is_on);
        }
    }

    #[test]
    fn only_smt_without_core_scheduling_is_warned_of() {
        for (smt, core_scheduling, warns) in
            [(false, false, false), (false, true, false), (true, true, false), (true, false, true)]
        {
            let check = judge(smt, core_scheduling);
            assert_eq!(check.verdict == Verdict::Warn, warns, "{smt} {core_scheduling}");
        }
    }
}
