//! Instructions of a Dockerfile, as imagebuilder's parser finds them.

/// Where flags are, the rest is without them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// In lower case.
    pub(super) name: String,
    /// Without quotes, and with variables.
    pub(super) flags: Vec<String>,
    pub(super) rest: String,
    /// What a line ends with that goes on, and what makes a character stand for itself.
    pub(super) escape: char,
}

/// All of them, in their order. Those of which nothing is known are there too.
pub(super) fn instructions(text: &str) -> Vec<Instruction> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let escape = escape_of(text);
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let mut found = Vec::new();
    while let Some(first) = lines.next() {
        let (mut line, mut goes_on) = continued(without_comment(first.trim_start()), escape);
        if line.is_empty() && !goes_on {
            continue;
        }
        while goes_on {
            let Some(next) = lines.next() else { break };
            if without_comment(next.trim_start()).is_empty() {
                continue;
            }
            let (more, again) = continued(without_comment(next), escape);
            line.push_str(&more);
            goes_on = again;
        }
        found.extend(instruction(&line, escape));
    }
    found
}

/// The directive's, which only the first line can be.
fn escape_of(text: &str) -> char {
    let directive = text.lines().next().and_then(|line| line.trim_start().strip_prefix('#')?.split_once('='));
    let is_blank = [' ', '\t'];
    let is_grave = directive.is_some_and(|(name, value)| {
        name.trim_matches(is_blank).eq_ignore_ascii_case("escape")
            && value.trim_start_matches(is_blank).starts_with('`')
    });
    if is_grave { '`' } else { '\\' }
}

fn without_comment(line: &str) -> &str {
    if line.starts_with('#') { "" } else { line }
}

/// A line, and whether the next one belongs to it.
fn continued(line: &str, escape: char) -> (String, bool) {
    match line.trim_end_matches([' ', '\t']).strip_suffix(escape) {
        Some(line) => (line.to_owned(), true),
        None => (line.to_owned(), false),
    }
}

fn instruction(line: &str, escape: char) -> Option<Instruction> {
    let line = line.trim();
    let (name, rest) = line.split_once(['\t', '\u{b}', '\u{c}', '\r', ' ']).unwrap_or((line, ""));
    if name.is_empty() {
        return None;
    }
    let (flags, rest) = flags(rest);
    Some(Instruction { name: name.to_lowercase(), flags, rest, escape })
}

/// Words that begin with `--`, before all others.
fn flags(line: &str) -> (Vec<String>, String) {
    let mut flags = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        if !rest.starts_with("--") {
            return (flags, rest.to_owned());
        }
        let (mut word, mut quote) = (String::new(), None);
        let mut characters = rest.char_indices();
        let end = loop {
            let Some((at, character)) = characters.next() else { break rest.len() };
            match (quote, character) {
                (None, character) if character.is_whitespace() => break at,
                (None, '\'' | '"') => quote = Some(character),
                (Some(open), character) if character == open => quote = None,
                (_, '\\') => word.extend(characters.next().map(|(_, character)| character)),
                (_, character) => word.push(character),
            }
        };
        rest = rest.get(end..).unwrap_or_default();
        if word == "--" {
            return (flags, rest.trim().to_owned());
        }
        flags.push(word);
    }
}
