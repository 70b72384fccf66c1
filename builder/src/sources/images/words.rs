//! Words of a Dockerfile with quotes and variables, as imagebuilder's shell parser takes them.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// Variables in the values of variables, one in the other: deeper ones mean nothing to anybody.
const MAX_DEPTH: u32 = 32;

/// Bytes of a value: more than any image's name has. What is longer is not known, as values may be made of values.
const MAX_VALUE: usize = 512;

/// Values by name; nothing for one that is there and whose value is not known.
#[derive(Debug, Default)]
pub(super) struct Variables(BTreeMap<String, Option<String>>);

impl Variables {
    pub(super) fn set(&mut self, name: &str, value: Option<String>) {
        self.0.insert(name.to_owned(), value);
    }

    pub(super) fn value(&self, name: &str) -> Option<Option<String>> {
        self.0.get(name).cloned()
    }
}

/// Splits at spaces that are not in quotes. Quotes stay.
pub(super) fn words(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (String::new(), None);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match quote {
            None if character.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if matches!(character, '\'' | '"') => quote = Some(character),
            Some(open) if character == open => quote = None,
            _ => {}
        }
        word.push(character);
        if character == escape && quote != Some('\'') {
            word.extend(characters.next());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A word without its quotes and with the values of its variables. One that does not exist is empty if all are known that can be
/// meant. `None` where a value is not known, or the word is no word.
pub(super) fn expand(word: &str, variables: &Variables, is_known: bool) -> Option<String> {
    let text = Expansion { characters: word.chars().peekable(), variables, is_known }.until(None, 0)?;
    (text.len() <= MAX_VALUE).then_some(text)
}

struct Expansion<'a> {
    characters: Peekable<Chars<'a>>,
    variables: &'a Variables,
    is_known: bool,
}

impl Expansion<'_> {
    fn until(&mut self, stop: Option<char>, depth: u32) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut text = String::new();
        while let Some(character) = self.characters.next() {
            match character {
                character if Some(character) == stop => return Some(text),
                '\'' => loop {
                    match self.characters.next()? {
                        '\'' => break,
                        other => text.push(other),
                    }
                },
                '"' => self.in_quotes(&mut text, depth)?,
                '$' => text.push_str(&self.variable(depth)?),
                '\\' => text.extend(self.characters.next()),
                other => text.push(other),
            }
        }
        if stop.is_none() { Some(text) } else { None }
    }

    fn in_quotes(&mut self, text: &mut String, depth: u32) -> Option<()> {
        loop {
            match self.characters.next()? {
                '"' => return Some(()),
                '$' => text.push_str(&self.variable(depth)?),
                '\\' => {
                    let next = self.characters.next_if(|next| matches!(next, '"' | '$' | '\\'));
                    text.push(next.unwrap_or('\\'));
                }
                other => text.push(other),
            }
        }
    }

    /// What is behind a `$`.
    fn variable(&mut self, depth: u32) -> Option<String> {
        if self.characters.next_if_eq(&'{').is_none() {
            let name = self.name();
            return if name.is_empty() { Some("$".into()) } else { self.value(&name) };
        }
        let name = self.name();
        match self.characters.next()? {
            '}' => self.value(&name),
            ':' => {
                let modifier = self.characters.next()?;
                let word = self.until(Some('}'), depth + 1)?;
                let value = self.value(&name)?;
                match (modifier, value.is_empty()) {
                    ('+', false) | ('-', true) => Some(word),
                    ('+' | '-', _) => Some(value),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn name(&mut self) -> String {
        if let Some(digit) = self.characters.next_if(|first| first.is_ascii_digit()) {
            return digit.to_string();
        }
        let mut name = String::new();
        while let Some(next) = self.characters.next_if(|next| next.is_alphanumeric() || *next == '_') {
            name.push(next);
        }
        name
    }

    fn value(&self, name: &str) -> Option<String> {
        match self.variables.value(name) {
            Some(value) => value,
            None => self.is_known.then(String::new),
        }
    }
}
