//! A part of a series, in no more points than somebody can use.

use sandpiper_protocol::agent::{MetricPoint, Metrics};

use super::Sample;
use jiff::Timestamp;

/// Most points of one response.
const MAX_POINTS: u32 = 720;

/// Seconds from one point to the next: the first that makes few enough points of a window.
const STEPS: [u32; 8] = [5, 10, 15, 30, 60, 120, 180, 300];

/// From one second to another, both included, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Window {
    /// What is asked for; a bound that is left out, or that is beyond what can be, is as far as there is anything.
    pub(crate) fn new(start: Option<i64>, end: Option<i64>) -> Self {
        let bound = |second: i64| u32::try_from(second.max(0)).unwrap_or(u32::MAX);
        Self { start: start.map_or(0, bound), end: end.map_or(u32::MAX, bound) }
    }
}

/// The metrics of `samples`, which are in order. Each point is the mean of those of one step, at the time of the last of them.
pub(crate) fn thin(samples: &[Sample]) -> Metrics {
    let span = match samples {
        [first, .., last] => last.at.saturating_sub(first.at),
        _ => 0,
    };
    let step_seconds = STEPS.into_iter().find(|step| span / step < MAX_POINTS).unwrap_or(STEPS[STEPS.len() - 1]);
    let steps = samples.chunk_by(|one, other| one.at / step_seconds == other.at / step_seconds);
    Metrics { step_seconds, points: steps.filter_map(mean).collect() }
}

fn mean(samples: &[Sample]) -> Option<MetricPoint> {
    let last = samples.last()?;
    let count = u64::try_from(samples.len()).ok()?;
    let mean = |field: fn(&Sample) -> u32| samples.iter().map(|sample| u64::from(field(sample))).sum::<u64>() / count;
    Some(MetricPoint {
        time: Timestamp::from_second(i64::from(last.at)).ok()?,
        cpu_millis: mean(|sample| sample.cpu),
        memory_bytes: mean(|sample| sample.memory_kib) * 1024,
        disk_bytes: mean(|sample| sample.disk_kib) * 1024,
        received_bytes_per_second: mean(|sample| sample.received),
        sent_bytes_per_second: mean(|sample| sample.sent),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: u32, step: u32) -> Vec<Sample> {
        let sample = |index| Sample {
            at: 1_000_000 + index * step,
            cpu: index,
            memory_kib: 8,
            disk_kib: 4,
            received: 100,
            sent: u32::MAX,
        };
        (0..count).map(sample).collect()
    }

    #[test]
    fn a_few_samples_are_points_as_they_are() {
        let metrics = thin(&samples(3, 5));

        assert_eq!(metrics.step_seconds, 5);
        let points: Vec<_> = metrics.points.iter().map(|point| (point.time.as_second(), point.cpu_millis)).collect();
        assert_eq!(points, [(1_000_000, 0), (1_000_005, 1), (1_000_010, 2)]);
        assert_eq!(metrics.points[0].memory_bytes, 8192);
        assert_eq!(metrics.points[0].sent_bytes_per_second, u64::from(u32::MAX));
        assert_eq!(thin(&[]), Metrics { step_seconds: 5, points: Vec::new() });
    }

    #[test]
    fn a_day_and_a_quarter_become_means_in_few_points_within_the_window() {
        let day = samples(30 * 720, 5);

        let metrics = thin(&day);

        assert_eq!(metrics.step_seconds, 180);
        assert!((600..=720).contains(&metrics.points.len()), "{}", metrics.points.len());
        assert_eq!(metrics.points.last().unwrap().time.as_second(), i64::from(day.last().unwrap().at));
        let [_, second, third, ..] = &metrics.points[..] else { panic!("{:?}", metrics.points) };
        assert_eq!(third.cpu_millis - second.cpu_millis, 36);
    }

    #[test]
    fn an_hour_has_every_sample() {
        assert_eq!(thin(&samples(720, 5)).points.len(), 720);
        assert_eq!(thin(&samples(721, 5)).step_seconds, 10);
    }

    #[test]
    fn bounds_that_cannot_be_are_the_farthest_that_can() {
        assert_eq!(Window::new(None, None), Window { start: 0, end: u32::MAX });
        assert_eq!(Window::new(Some(-5), Some(i64::MAX)), Window { start: 0, end: u32::MAX });
        assert_eq!(Window::new(Some(7), Some(9)), Window { start: 7, end: 9 });
    }
}
