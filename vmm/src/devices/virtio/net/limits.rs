//! How much may pass in one direction: token buckets, of bytes and of frames.
//!
//! They are charged after a frame, when its length is known, and may owe up to one.

use std::time::Instant;

use sandpiper_protocol::vmm::NetLimits;

use crate::devices::virtio::bucket::Bucket;

/// Of one direction.
#[derive(Debug)]
pub(super) struct Limits {
    bytes: Option<Bucket>,
    frames: Option<Bucket>,
}

impl Limits {
    pub(super) fn new(limits: NetLimits) -> Self {
        let bucket = |rate: Option<u64>| rate.map(Bucket::new);
        Self { bytes: bucket(limits.bytes_per_second), frames: bucket(limits.packets_per_second) }
    }

    /// When the next frame may pass, if it may not at `now`.
    pub(super) fn closed_until(&self, now: Instant) -> Option<Instant> {
        [&self.bytes, &self.frames].into_iter().flatten().filter_map(|bucket| bucket.empty_until(now)).max()
    }

    /// A frame of `bytes` has passed at `now`.
    pub(super) fn charge(&mut self, bytes: usize, now: Instant) {
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes as u64, now);
        }
        if let Some(bucket) = &mut self.frames {
            bucket.take(1, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn limits(bytes: Option<u64>, frames: Option<u64>) -> Limits {
        Limits::new(NetLimits { bytes_per_second: bytes, packets_per_second: frames })
    }

    #[test]
    fn without_limits_nothing_waits() {
        let mut limits = limits(None, None);
        let now = Instant::now();
        limits.charge(usize::MAX, now);
        assert_eq!(limits.closed_until(now), None);
    }

    #[test]
    fn a_seconds_worth_passes_at_once_and_then_as_much_as_comes_in() {
        let mut limits = limits(None, Some(100));
        let start = Instant::now();
        for _ in 0..99 {
            limits.charge(1000, start);
            assert_eq!(limits.closed_until(start), None);
        }
        limits.charge(1000, start);
        assert!(limits.closed_until(start).is_some());

        let later = start + Duration::from_millis(15);
        assert_eq!(limits.closed_until(later), None);
        limits.charge(1000, later);
        assert_eq!(limits.closed_until(later), None);
        limits.charge(1000, later);
        assert_eq!(limits.closed_until(later), Some(later + Duration::from_millis(5)));
    }

    #[test]
    fn a_frame_may_be_owed_and_the_next_one_waits_for_it() {
        let mut limits = limits(Some(1000), Some(1_000_000));
        let start = Instant::now();
        limits.charge(3000, start);
        assert_eq!(limits.closed_until(start), Some(start + Duration::from_secs(2)));
        assert_eq!(limits.closed_until(start + Duration::from_millis(2001)), None);
    }

    #[test]
    fn a_limit_of_nothing_lets_hardly_anything_pass_and_ends() {
        let mut limits = limits(Some(0), Some(0));
        let start = Instant::now();
        limits.charge(65_549, start);
        assert!(limits.closed_until(start).is_some_and(|until| until < start + Duration::from_secs(100_000)));
    }

    proptest! {
        /// Whatever the frames are, in a long time no more passes than the rate and one second's worth and one frame.
        #[test]
        fn no_more_passes_than_the_rate(rate in 1_000u64..10_000_000, frames in proptest::collection::vec(14usize..65_549, 50..200)) {
            let mut limits = limits(Some(rate), None);
            let start = Instant::now();
            let (mut now, mut passed) = (start, 0u64);
            for frame in frames {
                if let Some(until) = limits.closed_until(now) {
                    prop_assert!(until > now);
                    now = until;
                }
                limits.charge(frame, now);
                passed += frame as u64;
                let allowed = rate as f64 * (1.0 + (now - start).as_secs_f64()) + 65_549.0;
                prop_assert!(passed as f64 <= allowed * 1.001, "{passed} of {allowed}");
            }
        }
    }
}
