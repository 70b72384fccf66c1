//! Whether this machine's clock is kept right: deadlines, tokens, signatures of webhooks and certificates go by it.

use super::checks::Check;

const NAME: &str = "clock";

/// `STA_UNSYNC` of linux/timex.h: nobody has told the kernel that the clock is right.
const UNSYNCHRONIZED: libc::c_int = 0x0040;
/// The kernel's estimate of the error, in microseconds, from which deadlines are off by what people notice.
const MOST_ERROR_US: i64 = 1_000_000;

pub(super) fn check() -> Check {
    // SAFETY: all zeroes is a valid `timex`, whose `modes` of 0 changes nothing.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is a whole `timex` that lives through the call, which writes to it alone.
    if unsafe { libc::adjtimex(&raw mut clock) } < 0 {
        return Check::warn(NAME, "the kernel does not say how good it is", "see: timedatectl");
    }
    judge(clock.status, clock.esterror)
}

fn judge(status: libc::c_int, error_us: i64) -> Check {
    if status & UNSYNCHRONIZED != 0 {
        Check::warn(
            NAME,
            "nothing keeps it right, as far as the kernel knows: deadlines and signatures go by it",
            "apt-get install systemd-timesyncd, or chrony; in a virtual machine whose clock its host sets this may be well",
        )
    } else if error_us > MOST_ERROR_US {
        Check::warn(NAME, format!("it may be off by {} s", error_us / 1_000_000), "see: timedatectl timesync-status")
    } else {
        Check::ok(NAME, format!("synchronized, to within {} ms", error_us / 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::Verdict;
    use super::*;

    #[test]
    fn only_a_clock_that_is_kept_right_is_well() {
        assert_eq!(judge(0x2001, 2_500).found, "synchronized, to within 2 ms");
        assert_eq!(judge(0x2001, 2_500).verdict, Verdict::Ok);
        assert_eq!(judge(UNSYNCHRONIZED, 0).verdict, Verdict::Warn);
        assert_eq!(judge(0, 3_000_000).verdict, Verdict::Warn);
        assert!(!check().found.is_empty());
    }
}
