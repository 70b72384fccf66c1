//! Texts and charts in pages.

use std::fmt::Write as _;

pub use sandpiper_web::view::time;

const KIB: u64 = 1 << 10;
const CHART_WIDTH: f64 = 300.0;
const CHART_HEIGHT: f64 = 60.0;

/// So many bytes: `17 B`, `1.5 MiB`.
pub fn bytes(count: &u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power =
        (0..units.len() - 1).take_while(|power| *count >= KIB.pow(u32::try_from(*power).unwrap_or(0) + 1)).count();
    if power == 0 {
        return format!("{count} B");
    }
    // Shown with one decimal place: what a float loses of so many bytes is not seen.
    #[expect(clippy::cast_precision_loss)]
    let value = *count as f64 / KIB.pow(u32::try_from(power).unwrap_or(0)) as f64;
    format!("{value:.1} {}", units[power])
}

/// So many seconds: `45 s`, `5 min`, `2 h 30 min`.
pub fn seconds(count: &u64) -> String {
    match (count / 3600, count % 3600 / 60, count % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, 0, _) => format!("{hours} h"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// A name that anybody may have given to a file, on one line, and in the direction of its page.
pub fn name(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars() {
        // Unicode, section 23.2: what changes the direction of what follows.
        let turns =
            matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let breaks = letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
        if turns || breaks { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

/// A segment of a path: what has a meaning in paths is written otherwise (RFC 3986, 2.1).
pub fn segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            segment.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(segment, "%{byte:02X}");
        }
    }
    segment
}

/// A line over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it shows: `CPU`.
    pub title: &'static str,
    /// Its last value, in words.
    pub now: String,
    /// The value at its upper edge, in words.
    pub top: String,
    /// The points of an SVG polyline, in a box of 300 by 60.
    pub points: String,
}

impl Chart {
    /// Of values at equal distances; `None` where there are fewer than two. `top`: the value at the upper edge, at least;
    /// `words`: a value in words.
    pub fn new(title: &'static str, values: &[f64], top: f64, words: impl Fn(f64) -> String) -> Option<Self> {
        let (last, steps) = (values.last()?, values.len() - 1);
        if steps == 0 {
            return None;
        }
        let top = values.iter().copied().fold(top, f64::max);
        let mut points = String::new();
        for (number, value) in values.iter().enumerate() {
            // A few hundred points.
            #[expect(clippy::cast_precision_loss)]
            let x = CHART_WIDTH * number as f64 / steps as f64;
            let y = CHART_HEIGHT - if top > 0.0 { CHART_HEIGHT * value / top } else { 0.0 };
            // Writing to a string does not fail.
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        Some(Self { title, now: words(*last), top: words(top), points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_at_a_glance() {
        let of_bytes =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (u64::MAX, "16777216.0 TiB")];
        for (count, text) in of_bytes {
            assert_eq!(bytes(&count), text);
        }
        let of_seconds =
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (330, "5 min 30 s"), (3600, "1 h"), (9000, "2 h 30 min")];
        for (count, text) in of_seconds {
            assert_eq!(seconds(&count), text);
        }
    }

    #[test]
    fn a_name_is_one_line_and_turns_nothing_around() {
        assert_eq!(name("Grüße <b>.txt"), "Grüße <b>.txt");
        assert_eq!(name("a\nb\u{202e}txt.exe"), "a\\nb\\u{202e}txt.exe");
    }

    #[test]
    fn a_chart_fills_its_box() {
        let words = |value: f64| format!("{value} %");
        let chart = Chart::new("CPU", &[0.0, 50.0, 100.0], 100.0, words).unwrap();
        assert_eq!(chart.points, "0.0,60.0 150.0,30.0 300.0,0.0 ");
        assert_eq!((chart.now.as_str(), chart.top.as_str()), ("100 %", "100 %"));
        assert_eq!(Chart::new("CPU", &[1.0], 100.0, words), None);
        assert_eq!(Chart::new("CPU", &[0.0, 0.0], 0.0, words).unwrap().points, "0.0,60.0 300.0,60.0 ");
    }
}
