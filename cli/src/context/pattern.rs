//! One pattern of a `.dockerignore`, and the paths that it matches.
//!
//! `*` and `?` stay within one name, `**` goes across folders, `[…]` is one character of several, `\` takes what follows as
//! it is. Paths are relative, with `/` between their names.

use std::iter::Peekable;
use std::str::Chars;

/// What can come next in a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Literal(char),
    /// `?`
    InName,
    /// `*`
    Name,
    /// `**` at the end, or before a text that is not a folder's: whatever.
    Anything,
    /// `**/`: nothing, or folders up to a slash. [`Token::WithinFolders`] follows it.
    Folders,
    WithinFolders,
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    /// As it was written, without `!`.
    pub(super) text: String,
    /// What it matches is part of the context after all.
    pub(super) is_exception: bool,
    tokens: Vec<Token>,
}

impl Pattern {
    /// Reads a line that is cleaned of spaces, `.`, `..` and slashes at its ends.
    ///
    /// # Errors
    ///
    /// Says what is wrong with a pattern that means nothing.
    pub(super) fn parse(line: &str) -> Result<Self, &'static str> {
        let (text, is_exception) = match line.strip_prefix('!') {
            Some("") => return Err("there is nothing after the `!`"),
            Some(text) => (text, true),
            None => (line, false),
        };
        Ok(Self { text: text.to_owned(), is_exception, tokens: tokens(text)? })
    }

    /// Whether it says of no more than one path, and of what is below it.
    pub(super) fn is_plain(&self) -> bool {
        let text = self.prefix();
        !text.contains(['*', '?', '[', ']', '^', '\\'])
    }

    /// The folder that it is about, for one that is plain.
    pub(super) fn prefix(&self) -> &str {
        let text = self.text.strip_suffix("/**").unwrap_or(&self.text);
        text.strip_suffix("/*").unwrap_or(text)
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        // Which tokens may come next, all at once: no pattern takes longer than its length times the path's.
        let mut reached = vec![false; self.tokens.len() + 1];
        self.reach(&mut reached, 0);
        for c in path.chars() {
            let mut next = vec![false; self.tokens.len() + 1];
            for (at, token) in self.tokens.iter().enumerate().filter(|(at, _)| reached[*at]) {
                match token {
                    Token::Literal(literal) if *literal == c => self.reach(&mut next, at + 1),
                    Token::InName if c != '/' => self.reach(&mut next, at + 1),
                    Token::Name if c != '/' => self.reach(&mut next, at),
                    Token::Anything => self.reach(&mut next, at),
                    Token::Folders | Token::WithinFolders => {
                        let within = if *token == Token::Folders { at + 1 } else { at };
                        next[within] = true;
                        if c == '/' {
                            self.reach(&mut next, within + 1);
                        }
                    }
                    Token::Class { is_negated, ranges }
                        if ranges.iter().any(|(low, high)| (low..=high).contains(&&c)) != *is_negated =>
                    {
                        self.reach(&mut next, at + 1);
                    }
                    _ => {}
                }
            }
            reached = next;
        }
        reached[self.tokens.len()]
    }

    /// Marks what may come next at `at`: also what follows a token that may be nothing.
    fn reach(&self, reached: &mut [bool], mut at: usize) {
        loop {
            reached[at] = true;
            at += match self.tokens.get(at) {
                Some(Token::Name | Token::Anything) => 1,
                Some(Token::Folders) => 2,
                _ => return,
            };
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let token = match c {
            '*' if rest.next_if_eq(&'*').is_some() => {
                let is_folders = rest.next_if_eq(&'/').is_some();
                if rest.peek().is_none() {
                    Token::Anything
                } else if tokens.is_empty() && !is_folders && !rest.clone().any(|c| "*?[]\\".contains(c)) {
                    // `**.log`, which Docker takes for the end of a path.
                    Token::Anything
                } else {
                    tokens.push(Token::Folders);
                    Token::WithinFolders
                }
            }
            '*' => Token::Name,
            '?' => Token::InName,
            '[' => class(&mut rest)?,
            '\\' => Token::Literal(rest.next().ok_or("there is nothing after the `\\`")?),
            c => Token::Literal(c),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

/// The characters of a class, whose `[` is read.
fn class(rest: &mut Peekable<Chars<'_>>) -> Result<Token, &'static str> {
    let is_negated = rest.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    while ranges.is_empty() || rest.next_if_eq(&']').is_none() {
        let low = of_class(rest)?;
        let high = if rest.next_if_eq(&'-').is_some() { of_class(rest)? } else { low };
        ranges.push((low, high));
    }
    Ok(Token::Class { is_negated, ranges })
}

fn of_class(rest: &mut Peekable<Chars<'_>>) -> Result<char, &'static str> {
    const OPEN: &str = "a `[` is not closed";
    match rest.next().ok_or(OPEN)? {
        '\\' => rest.next().ok_or(OPEN),
        '-' | ']' => Err("`-` and `]` in `[…]` are written with a `\\` before them"),
        c => Ok(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched<'p>(pattern: &str, paths: &[&'p str]) -> Vec<&'p str> {
        let pattern = Pattern::parse(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        paths.iter().copied().filter(|path| pattern.matches(path)).collect()
    }

    #[test]
    fn a_star_stays_within_a_name() {
        assert_eq!(matched("*.md", &["a.md", ".md", "a/b.md", "amd", "a.mdx"]), ["a.md", ".md"]);
        assert_eq!(matched("*/temp*", &["a/temp", "a/temp.txt", "temp", "a/b/temp"]), ["a/temp", "a/temp.txt"]);
        assert_eq!(matched("te?p", &["temp", "tep", "te/p"]), ["temp"]);
    }

    #[test]
    fn two_stars_go_across_folders() {
        assert_eq!(matched("**/*.go", &["a.go", "a/b/c.go", "a.got"]), ["a.go", "a/b/c.go"]);
        assert_eq!(matched("a/**/z", &["a/z", "a/b/z", "a/b/c/z", "a/bz", "az"]), ["a/z", "a/b/z", "a/b/c/z"]);
        assert_eq!(matched("a**z", &["az", "ab/z", "a/z", "abz"]), ["az", "ab/z", "a/z"]);
        assert_eq!(matched("**", &["a", "a/b"]), ["a", "a/b"]);
        assert_eq!(matched("a/**", &["a", "a/b", "a/b/c", "ab"]), ["a/b", "a/b/c"]);
        assert_eq!(matched("**/node_modules", &["node_modules", "a/node_modules", "xnode_modules"]).len(), 2);
        assert_eq!(matched("**.log", &["a.log", "b/a.log", "a.logs"]), ["a.log", "b/a.log"]);
    }

    #[test]
    fn a_class_is_one_character() {
        assert_eq!(matched("[a-c]x", &["ax", "cx", "dx", "[a-c]x"]), ["ax", "cx"]);
        assert_eq!(matched("[^a-c]x", &["ax", "dx"]), ["dx"]);
        assert_eq!(matched("[\\]\\-]", &["]", "-", "\\"]), ["]", "-"]);
    }

    #[test]
    fn what_a_backslash_precedes_is_itself() {
        assert_eq!(matched("\\*", &["*", "a"]), ["*"]);
        assert_eq!(matched("a+(b)|{c}$.", &["a+(b)|{c}$.", "aab"]), ["a+(b)|{c}$."]);
    }

    #[test]
    fn a_pattern_without_a_meaning_is_refused() {
        for pattern in ["!", "a\\", "[", "[]", "[a", "[a-", "[^", "[-a]"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn a_long_pattern_takes_no_long_time() {
        let pattern = Pattern::parse(&"*a".repeat(500)).unwrap();
        assert!(!pattern.matches(&"a".repeat(499)));
        assert!(pattern.matches(&"a".repeat(2000)));
    }
}
