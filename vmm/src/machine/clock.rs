//! The clock of [`Timings`](sandpiper_protocol::vmm::Timings).

use std::time::Duration;

/// Microseconds of `CLOCK_MONOTONIC`: the same in every process of the host.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the answer; the call keeps no pointer to it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) } != 0;
    if failed {
        // This clock exists on every Linux; 0 means "not known" in `Timings`.
        return 0;
    }
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    u64::try_from(Duration::new(seconds, nanoseconds).as_micros()).unwrap_or(u64::MAX)
}
