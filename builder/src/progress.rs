//! What `buildah build` says of how far it is, as steps.
//!
//! ```text
//! [1/2] STEP 1/3: FROM registry.example/a AS tools      a stage of several; without the brackets there is one
//! --> Using cache 5b8223e3…                             of the step before
//! any other line                                        the step printed it
//! ```
//!
//! A step's own program can print the like: it then misleads nobody but its owner.

use sandpiper_protocol::template::LogLevel;

/// A line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    Step(Step<'a>),
    /// The step before was not run: an earlier build's result is used.
    Cached,
    Line(LogLevel, &'a str),
    /// Of interest to nobody.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step<'a> {
    /// In its stage, from 1.
    pub(crate) number: u32,
    pub(crate) of: u32,
    pub(crate) text: &'a str,
}

/// What a line of the standard output says.
pub(crate) fn of_output(line: &str) -> Said<'_> {
    if let Some(step) = step(line) {
        return Said::Step(step);
    }
    match line.strip_prefix("--> ") {
        Some(rest) if rest.starts_with("Using cache ") => Said::Cached,
        Some(rest) if is_hexadecimal(rest) => Said::Nothing,
        None if line == "COMMIT" || line.ends_with("] COMMIT") || line.starts_with("COMMIT ") => Said::Nothing,
        None if line.len() == 64 && is_hexadecimal(line) => Said::Nothing,
        _ => Said::Line(LogLevel::Info, line),
    }
}

/// What a line of standard error says: a step's own words, buildah's log, or how far a download is.
pub(crate) fn of_error(line: &str) -> Said<'_> {
    const DOWNLOADS: [&str; 8] = [
        "Resolving ",
        "Trying to pull ",
        "Getting image source signatures",
        "Copying blob ",
        "Copying config ",
        "Writing manifest to ",
        "Storing signatures",
        "Resolved ",
    ];
    if DOWNLOADS.iter().any(|start| line.starts_with(start)) {
        return Said::Line(LogLevel::Debug, line);
    }
    match logged(line) {
        Some((level, message)) => Said::Line(level, message),
        None => Said::Line(LogLevel::Info, line),
    }
}

fn step(line: &str) -> Option<Step<'_>> {
    let line = match line.strip_prefix('[') {
        Some(rest) => rest.split_once("] ")?.1,
        None => line,
    };
    let (count, text) = line.strip_prefix("STEP ")?.split_once(": ")?;
    let (number, of) = count.split_once('/')?;
    Some(Step { number: number.parse().ok()?, of: of.parse().ok()?, text })
}

/// Level and message of `time="…" level=warning msg="…"`.
fn logged(line: &str) -> Option<(LogLevel, &str)> {
    let (level, message) = line.strip_prefix("time=\"")?.split_once(" level=")?.1.split_once(" msg=")?;
    let level = match level {
        "warning" => LogLevel::Warn,
        "error" | "fatal" | "panic" => LogLevel::Error,
        "info" => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    Some((level, message.trim_matches('"')))
}

fn is_hexadecimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Numbers of steps over all stages. How many there are is known of the stages that have begun.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    before: u32,
    stage: u32,
}

impl Counter {
    /// Number and count of a step that begins.
    pub(crate) fn count(&mut self, step: Step<'_>) -> (u32, u32) {
        if step.number == 1 {
            self.before = self.before.saturating_add(self.stage);
        }
        self.stage = step.of;
        (self.before.saturating_add(step.number), self.before.saturating_add(step.of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buildahs_lines_are_told_from_what_steps_print() {
        let step = Said::Step(Step { number: 2, of: 4, text: "RUN a: b" });
        assert_eq!(of_output("[1/2] STEP 2/4: RUN a: b"), step);
        assert_eq!(of_output("STEP 2/4: RUN a: b"), step);
        assert_eq!(of_output("--> Using cache 5b8223e3"), Said::Cached);
        for nothing in ["--> 5b8223e3", "COMMIT", "[2/2] COMMIT", "COMMIT localhost/a", &"0a".repeat(32)] {
            assert_eq!(of_output(nothing), Said::Nothing, "{nothing}");
        }
        for line in ["--> done", "STEP one", "[x] STEP 1", "deadbeef"] {
            assert_eq!(of_output(line), Said::Line(LogLevel::Info, line));
        }
    }

    #[test]
    fn standard_error_has_levels() {
        let warning = r#"time="2026-11-23T12:40:11Z" level=warning msg="missing \"X\" build argument""#;
        assert_eq!(of_error(warning), Said::Line(LogLevel::Warn, r#"missing \"X\" build argument"#));
        assert_eq!(of_error("Copying blob 12"), Said::Line(LogLevel::Debug, "Copying blob 12"));
        assert_eq!(of_error("warning: x"), Said::Line(LogLevel::Info, "warning: x"));
    }

    #[test]
    fn steps_are_counted_on_over_stages() {
        let mut counter = Counter::default();
        let mut count = |number, of| counter.count(Step { number, of, text: "" });
        assert_eq!([count(1, 2), count(2, 2), count(1, 3), count(3, 3)], [(1, 2), (2, 2), (3, 5), (5, 5)]);
    }
}
