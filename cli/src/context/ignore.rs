//! What a `.dockerignore` leaves out of a build's context.
//!
//! The last pattern that matches a path, or a folder that it is in, decides; `!` before a pattern takes the path in again. A
//! folder that is left out is still looked into where an exception may be about something in it.

use std::path::Path;

use super::pattern::Pattern;

#[derive(Debug, Default)]
pub(crate) struct Ignore {
    patterns: Vec<Pattern>,
}

/// Which patterns matched a path: what is in it goes by that too.
#[derive(Debug, Clone, Default)]
pub(super) struct Matches(Vec<bool>);

/// A line that is no pattern.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {why}: {text}")]
pub(crate) struct BadPattern {
    line: usize,
    text: String,
    why: &'static str,
}

impl Ignore {
    /// Reads the text of a `.dockerignore`.
    ///
    /// # Errors
    ///
    /// Fails on the first line that is no pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, BadPattern> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut patterns = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let (mark, path) = line.strip_prefix('!').map_or(("", line), |path| ("!", path.trim()));
            let cleaned = if path.is_empty() { String::new() } else { clean(path) };
            let bad = |why| BadPattern { line: number + 1, text: line.to_owned(), why };
            patterns.push(Pattern::parse(&format!("{mark}{cleaned}")).map_err(bad)?);
        }
        Ok(Self { patterns })
    }

    /// Whether a path is left out. `above` is what this said of the folder that it is in, and nothing for the context's own.
    pub(super) fn excludes(&self, path: &str, above: &Matches) -> (bool, Matches) {
        let (mut is_excluded, mut matches) = (false, Vec::with_capacity(self.patterns.len()));
        for (number, pattern) in self.patterns.iter().enumerate() {
            let may_change = pattern.is_exception == is_excluded;
            let matched = above.0.get(number) == Some(&true) || (may_change && pattern.matches(path));
            if matched {
                is_excluded = !pattern.is_exception;
            }
            matches.push(matched);
        }
        (is_excluded, Matches(matches))
    }

    /// Whether an exception may be about something in a folder that is left out.
    pub(super) fn may_except_below(&self, folder: &str) -> bool {
        self.patterns
            .iter()
            .filter(|pattern| pattern.is_exception)
            .any(|pattern| !pattern.is_plain() || Path::new(pattern.prefix()).starts_with(folder))
    }
}

/// A path without `.`, `..` and needless slashes, relative to the context, above which nothing is.
fn clean(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if names.last().is_some_and(|last| *last != "..") => drop(names.pop()),
            // Above `/` is `/`; a path that leads out of the context matches nothing in it.
            ".." if path.starts_with('/') => {}
            name => names.push(name),
        }
    }
    if names.is_empty() { ".".to_owned() } else { names.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these paths stay, each asked for after the folders that it is in.
    fn kept<'p>(text: &str, paths: &[&'p str]) -> Vec<&'p str> {
        let ignore = Ignore::parse(text).unwrap();
        let is_kept = |path: &&&str| {
            let mut above = Matches::default();
            let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
            let mut is_excluded = false;
            for end in ends {
                (is_excluded, above) = ignore.excludes(&path[..end], &above);
            }
            !is_excluded
        };
        paths.iter().filter(is_kept).copied().collect()
    }

    #[test]
    fn comments_blanks_slashes_and_dots_mean_nothing() {
        let text = "\u{feff}# a comment\n\n  /docs/  \n./x/../y\n \t\r\n";
        assert_eq!(kept(text, &["docs", "docs/a", "y", "x", "# a comment", "a/docs"]), ["x", "# a comment", "a/docs"]);
    }

    #[test]
    fn a_folder_that_is_left_out_takes_all_in_it_along() {
        assert_eq!(kept("target", &["target", "target/a/b", "targets", "a/target"]), ["targets", "a/target"]);
        assert_eq!(kept("*", &["a", "a/b"]), [""; 0]);
    }

    #[test]
    fn the_last_that_matches_decides() {
        let paths = ["README.md", "README-secret.md", "a.md", "a.txt"];
        assert_eq!(kept("*.md\n!README*.md\nREADME-secret.md", &paths), ["README.md", "a.txt"]);
        assert_eq!(kept("*.md\nREADME-secret.md\n!README*.md", &paths), ["README.md", "README-secret.md", "a.txt"]);
    }

    #[test]
    fn an_exception_reaches_into_a_folder_that_is_left_out() {
        let paths = ["src", "src/main.c", "src/lib/a.c", "doc", "doc/index"];
        assert_eq!(kept("*\n!src", &paths), ["src", "src/main.c", "src/lib/a.c"]);
        assert_eq!(kept("*\n!src/lib/**", &paths), ["src/lib/a.c"]);
        assert_eq!(kept("*\n! src/main.c ", &paths), ["src/main.c"]);
        assert_eq!(kept("*\n!src\nsrc/lib", &paths), ["src", "src/main.c"]);
        let ignore = Ignore::parse("*\n!src/lib/**").unwrap();
        assert!(ignore.may_except_below("src") && ignore.may_except_below("src/lib"));
        assert!(!ignore.may_except_below("doc") && !ignore.may_except_below("sr"));
        assert!(Ignore::parse("*\n!**/keep").unwrap().may_except_below("doc"), "it may be anywhere");
    }

    #[test]
    fn a_line_that_is_no_pattern_is_named() {
        let error = Ignore::parse("a\n\n[b").unwrap_err();
        assert_eq!(error.to_string(), "line 3: a `[` is not closed: [b");
        assert_eq!(Ignore::parse("!").unwrap_err().line, 1);
    }
}
