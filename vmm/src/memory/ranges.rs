//! Stretches of RAM: what comes of several.

use std::ops::Range;

/// Ranges in order, between which there are more than `gap` bytes.
pub(super) fn joined(mut ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end.saturating_add(gap) >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// What of `all` is in none of `taken`; both are in order, and apart.
pub(super) fn without(all: &[Range<u64>], taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in all {
        let mut start = range.start;
        let first = taken.partition_point(|other| other.end <= start);
        for other in taken[first..].iter().take_while(|other| other.start < range.end) {
            if start < other.start {
                left.push(start..other.start);
            }
            start = start.max(other.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_ranges_is_in_none_of_the_others() {
        let all = [0..10, 20..30, 40..50];
        assert_eq!(without(&all, &[]), all);
        assert_eq!(without(&all, &[2..4, 8..25, 29..60]), [0..2, 4..8, 25..29]);
    }

    #[test]
    fn ranges_with_less_between_them_become_one() {
        assert_eq!(joined(vec![5..7, 0..3, 3..4, 6..9], 0), [0..4, 5..9]);
        assert_eq!(joined(vec![5..7, 0..3, 3..4, 12..14], 2), [0..7, 12..14]);
    }
}
