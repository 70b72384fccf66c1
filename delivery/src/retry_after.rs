//! `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date in one of the three forms that recipients must take.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use crate::schedule::LONGEST_DELAY;

/// The time to wait that the header's value asks for, cut to an hour. `None` for anything that is no valid value, and for a
/// date that has passed.
pub fn parse(value: &str, now: Timestamp) -> Option<Duration> {
    let asked = seconds(value).or_else(|| until(value, now))?;
    Some(asked.min(LONGEST_DELAY))
}

/// `1*DIGIT`, of any length: no sign, no fraction, no word such as `inf`.
fn seconds(value: &str) -> Option<Duration> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    // What does not fit is more than an hour in any case.
    is_number.then(|| value.parse().map_or(Duration::MAX, Duration::from_secs))
}

fn until(value: &str, now: Timestamp) -> Option<Duration> {
    let date = httpdate::parse_http_date(value).ok()?;
    date.duration_since(SystemTime::from(now)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT, the example of the RFC.
    const EXAMPLE: i64 = 784_111_777;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn parsed(value: &str) -> Option<u64> {
        parse(value, at(EXAMPLE - 30)).map(|delay| delay.as_secs())
    }

    #[test]
    fn numbers_are_seconds_up_to_an_hour() {
        assert_eq!(parsed("0"), Some(0));
        assert_eq!(parsed("007"), Some(7));
        assert_eq!(parsed("3600"), Some(3600));
        assert_eq!(parsed("7200"), Some(3600));
        assert_eq!(parsed("99999999999999999999"), Some(3600));
    }

    #[test]
    fn dates_are_taken_in_all_three_forms() {
        for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parsed(date), Some(30), "{date}");
            assert_eq!(parse(date, at(EXAMPLE + 1)), None, "{date}");
            assert_eq!(parse(date, at(EXAMPLE - 90_000)), Some(LONGEST_DELAY), "{date}");
        }
    }

    #[test]
    fn anything_else_is_ignored() {
        for value in ["", " ", "-5", "+5", "1.5", "1e3", "0x10", "inf", "NaN", "soon", "5 seconds", "٣", "1994-11-06"]
        {
            assert_eq!(parsed(value), None, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_value_asks_for_more_than_an_hour_or_panics(value in ".{0,64}", now in -1_000_000_000_000i64..100_000_000_000) {
            // As wide as times go here.
            let now = Timestamp::from_second(now.max(-100_000_000_000)).unwrap();
            prop_assert!(parse(&value, now).is_none_or(|delay| delay <= LONGEST_DELAY));
        }

        #[test]
        fn every_number_means_itself_or_an_hour(value in any::<u128>()) {
            let expected = u64::try_from(value.min(3600)).unwrap();
            prop_assert_eq!(parse(&value.to_string(), at(0)), Some(Duration::from_secs(expected)));
        }
    }
}
