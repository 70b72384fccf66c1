//! Text from a sandbox on a terminal. A guest chooses names and messages, and a terminal obeys control characters.

use std::borrow::Cow;

use indicatif::BinaryBytes;
use serde_json::Value;

/// `text` with its control characters, and those that turn the direction of writing, as escapes. With `\n` kept if `lines`.
fn escape(text: &str, lines: bool) -> Cow<'_, str> {
    let is_harmless = |c: char| (lines && c == '\n') || !(c.is_control() || is_format(c));
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_harmless(c) { escaped.push(c) } else { escaped.extend(c.escape_default()) }
    }
    Cow::Owned(escaped)
}

/// One line: a name, a path.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escape(text, false)
}

/// A message that may have several lines.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, true)
}

/// Bidirectional controls and line separators: invisible, and they change how what follows is read.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A number of bytes as people read it: `1.50 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    BinaryBytes(count).to_string()
}

/// A field of what the API responds, for a table; `-` where there is none.
pub(crate) fn field(object: &Value, name: &str) -> String {
    match &object[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(printable("naïve.txt"), "naïve.txt");
        assert_eq!(printable("a\u{1b}[2Jb\rc\nd"), "a\\u{1b}[2Jb\\rc\\nd");
        assert_eq!(printable("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
        assert_eq!(printable_lines("one\ntwo\u{7}"), "one\ntwo\\u{7}");
    }
}
