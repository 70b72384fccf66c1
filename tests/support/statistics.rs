//! Percentiles, only where the samples bear them.

/// Samples of one thing, ascending.
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn new(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The median by nearest rank, of one sample or more.
    pub fn median(&self) -> Option<f64> {
        self.nearest_rank(50)
    }

    /// A percentile above the median by nearest rank. None of so few samples that it would be little else than the largest: the
    /// 95th needs 20, the 99th 100.
    pub fn percentile(&self, percent: usize) -> Option<f64> {
        if self.0.len() * 100_usize.saturating_sub(percent) < 100 {
            return None;
        }
        self.nearest_rank(percent)
    }

    fn nearest_rank(&self, percent: usize) -> Option<f64> {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0.get(rank.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(last: u32) -> Samples {
        // Not ascending.
        Samples::new(&(1..=last).rev().map(f64::from).collect::<Vec<_>>())
    }

    #[test]
    fn percentiles_are_samples_of_the_nearest_rank() {
        let samples = up_to(100);
        assert_eq!(
            (samples.median(), samples.percentile(95), samples.percentile(99)),
            (Some(50.0), Some(95.0), Some(99.0))
        );
        assert_eq!(up_to(3).median(), Some(2.0));
        assert_eq!(up_to(1).median(), Some(1.0));
    }

    #[test]
    fn the_95th_percentile_needs_20_samples_and_the_99th_100() {
        assert_eq!((up_to(19).percentile(95), up_to(20).percentile(95)), (None, Some(19.0)));
        assert_eq!((up_to(99).percentile(99), up_to(100).percentile(99)), (None, Some(99.0)));
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(up_to(0).median(), None);
    }
}
