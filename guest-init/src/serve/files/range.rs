//! The `Range` of a request.

use std::ops::Range;

use hyper::header::{HeaderMap, RANGE};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    Whole,
    Part(Range<u64>),
    Unsatisfiable,
}

/// What of `size` bytes is wanted. Several ranges, or what cannot be understood, is the whole, as HTTP allows.
pub(super) fn requested_range(headers: &HeaderMap, size: u64) -> RequestedRange {
    let spec = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("bytes="));
    let Some((first, last)) = spec.and_then(|spec| spec.trim().split_once('-')) else {
        return RequestedRange::Whole;
    };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return RequestedRange::Whole,
    };
    if range.is_empty() { RequestedRange::Unsatisfiable } else { RequestedRange::Part(range) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn ranges_are_read_as_http_defines_them() {
        let range = |value: &'static str| {
            requested_range(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static(value))]), 10)
        };
        assert_eq!(range("bytes=0-3"), RequestedRange::Part(0..4));
        assert_eq!(range("bytes=8-99"), RequestedRange::Part(8..10));
        assert_eq!(range("bytes=4-"), RequestedRange::Part(4..10));
        assert_eq!(range("bytes=-3"), RequestedRange::Part(7..10));
        assert_eq!(range("bytes=10-"), RequestedRange::Unsatisfiable);
        assert_eq!(range("bytes=-0"), RequestedRange::Unsatisfiable);
        assert_eq!(range("bytes=5-2"), RequestedRange::Whole);
        assert_eq!(range("bytes=0-1,4-5"), RequestedRange::Whole);
        assert_eq!(range("lines=0-1"), RequestedRange::Whole);
        assert_eq!(requested_range(&HeaderMap::new(), 0), RequestedRange::Whole);
    }
}
