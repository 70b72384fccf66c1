//! How much a disk does in a second: token buckets, of bytes, of requests and of flushes.
//!
//! Flushes have one of their own: on the host each is a commit of its file system's journal, for which all others that use it
//! wait.

use std::time::Instant;

use sandpiper_protocol::vmm::DiskLimits;

use crate::devices::virtio::bucket::Bucket;

/// Of one disk.
#[derive(Debug)]
pub(super) struct Limits {
    bytes: Option<Bucket>,
    operations: Option<Bucket>,
    flushes: Option<Bucket>,
}

/// What one request takes, besides being one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) bytes: u64,
    pub(super) flush: bool,
}

impl Limits {
    pub(super) fn new(limits: DiskLimits) -> Self {
        let bucket = |rate: Option<u64>| rate.map(Bucket::new);
        Self {
            bytes: bucket(limits.bytes_per_second),
            operations: bucket(limits.operations_per_second),
            flushes: bucket(limits.flushes_per_second),
        }
    }

    /// When a request of this cost may be carried out, if it may not at `now`.
    pub(super) fn closed_until(&self, cost: Cost, now: Instant) -> Option<Instant> {
        let bytes = self.bytes.as_ref().filter(|_| cost.bytes > 0);
        let flushes = self.flushes.as_ref().filter(|_| cost.flush);
        [bytes, flushes, self.operations.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|bucket| bucket.empty_until(now))
            .max()
    }

    /// A request of this cost was carried out.
    pub(super) fn charge(&mut self, cost: Cost, now: Instant) {
        let takes = [(&mut self.bytes, cost.bytes), (&mut self.operations, 1), (&mut self.flushes, cost.flush.into())];
        for (bucket, count) in takes {
            if let Some(bucket) = bucket {
                bucket.take(count, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WRITE: Cost = Cost { bytes: 4096, flush: false };
    const FLUSH: Cost = Cost { bytes: 0, flush: true };

    #[test]
    fn flushes_wait_for_flushes_and_nothing_else_does() {
        let mut limits = Limits::new(DiskLimits { flushes_per_second: Some(10), ..DiskLimits::default() });
        let start = Instant::now();
        for _ in 0..10 {
            assert_eq!(limits.closed_until(FLUSH, start), None);
            limits.charge(FLUSH, start);
        }
        assert!(limits.closed_until(FLUSH, start).is_some());
        assert_eq!(limits.closed_until(WRITE, start), None);
        assert_eq!(limits.closed_until(FLUSH, start + Duration::from_millis(101)), None);
    }

    #[test]
    fn a_request_waits_for_the_bucket_that_opens_last() {
        let rates =
            DiskLimits { bytes_per_second: Some(4096), operations_per_second: Some(1), flushes_per_second: None };
        let mut limits = Limits::new(rates);
        let start = Instant::now();
        limits.charge(Cost { bytes: 3 * 4096, flush: false }, start);
        assert_eq!(limits.closed_until(WRITE, start), Some(start + Duration::from_secs(2)));
        assert!(limits.closed_until(FLUSH, start).is_some_and(|open| open < start + Duration::from_secs(1)));
    }
}
