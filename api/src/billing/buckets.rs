//! A range of time in buckets: hours or days of UTC. The first and the last are as long as the range reaches into them.

use std::ops::Range;

use super::{Consumption, HOUR_MS};

/// Most buckets of one range.
pub const MOST: usize = 1000;

/// How long a bucket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    Hour,
    Day,
}

impl Granularity {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    fn ms(self) -> i64 {
        match self {
            Self::Hour => HOUR_MS,
            Self::Day => 24 * HOUR_MS,
        }
    }
}

impl std::str::FromStr for Granularity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Hour, Self::Day].into_iter().find(|one| one.as_str() == text).ok_or(())
    }
}

/// The buckets of a range, and what falls into each. Times are milliseconds since 1970.
#[derive(Debug)]
pub struct Buckets {
    range: Range<i64>,
    step: i64,
    consumed: Vec<Consumption>,
    /// How many vCPUs and MiB run throughout, from each bucket to the next: what begins less what has ended.
    levels: Vec<(i128, i128)>,
}

impl Buckets {
    /// The empty buckets of a range; `None` where it has none, or more than [`MOST`].
    pub fn new(range: Range<i64>, granularity: Granularity) -> Option<Self> {
        let step = granularity.ms();
        let first = range.start.div_euclid(step);
        let last = range.end.checked_sub(1)?.div_euclid(step);
        let count = usize::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?;
        if range.is_empty() || count > MOST {
            return None;
        }
        Some(Self { range, step, consumed: vec![Consumption::default(); count], levels: vec![(0, 0); count] })
    }

    /// The time of a bucket.
    fn span(&self, index: usize) -> Range<i64> {
        // There are no more than `MOST` of them.
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        let start = (self.range.start.div_euclid(self.step) + index) * self.step;
        start.max(self.range.start)..(start + self.step).min(self.range.end)
    }

    /// The bucket that a moment of the range is in.
    fn index(&self, at: i64) -> usize {
        usize::try_from(at.div_euclid(self.step) - self.range.start.div_euclid(self.step)).unwrap_or_default()
    }

    /// Adds a machine that ran for this time, as far as that is within the range.
    pub fn add_run(&mut self, ran: Range<i64>, cpu: u32, memory_mb: u32) {
        let ran = ran.start.max(self.range.start)..ran.end.min(self.range.end);
        if ran.is_empty() {
            return;
        }
        let (first, last) = (self.index(ran.start), self.index(ran.end - 1));
        let (cpu, memory_mb) = (u128::from(cpu), u128::from(memory_mb));
        if first == last {
            return self.add(first, (ran.end - ran.start).unsigned_abs(), cpu, memory_mb);
        }
        let (head, tail) = (self.span(first), self.span(last));
        self.add(first, (head.end - ran.start).unsigned_abs(), cpu, memory_mb);
        self.add(last, (ran.end - tail.start).unsigned_abs(), cpu, memory_mb);
        self.raise(first + 1, cpu.cast_signed(), memory_mb.cast_signed());
        self.raise(last, -cpu.cast_signed(), -memory_mb.cast_signed());
    }

    /// Adds what ran within one bucket.
    fn add(&mut self, index: usize, ms: u64, cpu: u128, memory_mb: u128) {
        if let Some(bucket) = self.consumed.get_mut(index) {
            bucket.cpu_ms += cpu * u128::from(ms);
            bucket.memory_mb_ms += memory_mb * u128::from(ms);
        }
    }

    /// Notes that from this bucket on more runs throughout.
    fn raise(&mut self, index: usize, cpu: i128, memory_mb: i128) {
        if let Some((cpus, megabytes)) = self.levels.get_mut(index) {
            *cpus += cpu;
            *megabytes += memory_mb;
        }
    }

    /// Adds what was stored throughout an hour, which counts where it begins.
    pub fn add_stored(&mut self, hour_ms: i64, bytes: u64) {
        if self.range.contains(&hour_ms) {
            let index = self.index(hour_ms);
            if let Some(bucket) = self.consumed.get_mut(index) {
                bucket.storage_byte_hours += u128::from(bytes);
            }
        }
    }

    /// Adds what went through a network from this moment on, where all of it counts.
    pub fn add_traffic(&mut self, from_ms: i64, egress: u64, ingress: u64) {
        if self.range.contains(&from_ms) {
            let index = self.index(from_ms);
            if let Some(bucket) = self.consumed.get_mut(index) {
                bucket.egress_bytes += u128::from(egress);
                bucket.ingress_bytes += u128::from(ingress);
            }
        }
    }

    /// Each bucket's time, and what was consumed in it.
    pub fn finish(self) -> Vec<(Range<i64>, Consumption)> {
        let (mut cpus, mut megabytes) = (0_i128, 0_i128);
        let spans = (0..self.consumed.len()).map(|index| self.span(index));
        let levels = self.levels.iter();
        spans
            .zip(levels)
            .zip(&self.consumed)
            .map(|((span, (cpu, memory_mb)), consumed)| {
                cpus += cpu;
                megabytes += memory_mb;
                let ms = u128::from((span.end - span.start).unsigned_abs());
                // What has ended had begun, so that neither is below zero.
                let throughout = Consumption {
                    cpu_ms: cpus.unsigned_abs() * ms,
                    memory_mb_ms: megabytes.unsigned_abs() * ms,
                    ..Consumption::default()
                };
                (span, *consumed + throughout)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 24 * HOUR_MS;

    fn cpu_ms(buckets: Buckets) -> Vec<u128> {
        buckets.finish().iter().map(|(_, consumed)| consumed.cpu_ms).collect()
    }

    #[test]
    fn a_run_is_split_exactly_at_the_bounds() {
        let mut buckets = Buckets::new(0..4 * HOUR_MS, Granularity::Hour).unwrap();
        buckets.add_run(HOUR_MS - 1..3 * HOUR_MS + 7, 3, 512);
        buckets.add_run(2 * HOUR_MS..3 * HOUR_MS, 1, 0);
        buckets.add_run(HOUR_MS..HOUR_MS, 1000, 0);
        buckets.add_run(-5..1, 1, 0);
        buckets.add_run(4 * HOUR_MS - 2..9 * HOUR_MS, 1, 0);

        let hour = u128::from(HOUR_MS.unsigned_abs());
        assert_eq!(cpu_ms(buckets), [3 + 1, 3 * hour, 4 * hour, 3 * 7 + 2]);
    }

    #[test]
    fn the_first_and_the_last_bucket_reach_as_far_as_the_range() {
        let mut buckets = Buckets::new(HOUR_MS / 2..2 * DAY_MS + 5, Granularity::Day).unwrap();
        buckets.add_run(0..i64::MAX, 1, 1);

        let found = buckets.finish();

        let spans: Vec<_> = found.iter().map(|(span, _)| span.clone()).collect();
        assert_eq!(spans, [HOUR_MS / 2..DAY_MS, DAY_MS..2 * DAY_MS, 2 * DAY_MS..2 * DAY_MS + 5]);
        assert!(found.iter().all(|(span, consumed)| consumed.cpu_ms == (span.end - span.start).unsigned_abs().into()));
    }

    #[test]
    fn an_hour_of_storage_counts_where_it_begins() {
        let mut buckets = Buckets::new(HOUR_MS / 2..DAY_MS + HOUR_MS, Granularity::Day).unwrap();
        for hour in [0, 1, 23, 24, 25] {
            buckets.add_stored(hour * HOUR_MS, 10);
        }
        let stored: Vec<_> = buckets.finish().iter().map(|(_, consumed)| consumed.storage_byte_hours).collect();
        assert_eq!(stored, [20, 10]);
    }

    #[test]
    fn traffic_counts_where_its_part_begins() {
        let mut buckets = Buckets::new(HOUR_MS + 5..3 * HOUR_MS, Granularity::Hour).unwrap();
        for from_ms in [HOUR_MS, HOUR_MS + 5, 2 * HOUR_MS - 1, 2 * HOUR_MS, 3 * HOUR_MS] {
            buckets.add_traffic(from_ms, 10, 3);
        }
        let found = buckets.finish();
        let traffic: Vec<_> =
            found.iter().map(|(_, consumed)| (consumed.egress_bytes, consumed.ingress_bytes)).collect();
        assert_eq!(traffic, [(20, 6), (10, 3)]);
    }

    #[test]
    fn a_range_has_a_bucket_and_not_too_many() {
        let count = |range, granularity| Buckets::new(range, granularity).map(|buckets| buckets.consumed.len());
        assert_eq!(count(0..1, Granularity::Day), Some(1));
        assert_eq!(count(0..1000 * HOUR_MS, Granularity::Hour), Some(1000));
        assert_eq!(count(0..1000 * HOUR_MS + 1, Granularity::Hour), None);
        assert_eq!(count(-1..1000 * HOUR_MS, Granularity::Hour), None);
        assert_eq!(count(5..5, Granularity::Hour), None);
        assert_eq!(count(i64::MIN..i64::MAX, Granularity::Hour), None);
    }

    #[test]
    fn any_runs_have_the_sums_that_counting_each_bucket_by_itself_gives() {
        let range = 7 * HOUR_MS + 13..40 * HOUR_MS - 1;
        let mut buckets = Buckets::new(range.clone(), Granularity::Hour).unwrap();
        let runs: Vec<_> = (0..2000)
            .map(|_| {
                let start = rand::random_range(-HOUR_MS..45 * HOUR_MS);
                let length = rand::random_range(0..[10, HOUR_MS, 40 * HOUR_MS][rand::random_range(0..3)]);
                (start..start + length, rand::random_range(1..=64), rand::random_range(128..=65_536))
            })
            .collect();
        runs.iter().for_each(|(ran, cpu, memory_mb)| buckets.add_run(ran.clone(), *cpu, *memory_mb));

        let found = buckets.finish();

        let overlap = |a: &Range<i64>, b: &Range<i64>| (a.end.min(b.end) - a.start.max(b.start)).max(0).unsigned_abs();
        for (span, consumed) in &found {
            let cpu_ms = runs.iter().map(|(ran, cpu, _)| u128::from(*cpu) * u128::from(overlap(ran, span)));
            let memory_mb_ms = runs.iter().map(|(ran, _, mb)| u128::from(*mb) * u128::from(overlap(ran, span)));
            assert_eq!((consumed.cpu_ms, consumed.memory_mb_ms), (cpu_ms.sum(), memory_mb_ms.sum()), "{span:?}");
        }
        let whole: u128 = runs.iter().map(|(ran, cpu, _)| u128::from(*cpu) * u128::from(overlap(ran, &range))).sum();
        assert_eq!(found.iter().map(|(_, consumed)| consumed.cpu_ms).sum::<u128>(), whole);
    }
}
