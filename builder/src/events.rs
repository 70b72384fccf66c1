//! What the agent is told, a line each.

use std::io::{self, Write};

use sandpiper_protocol::builder::Event;
use sandpiper_protocol::template::LogLevel;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Bytes of a line, and of a step's text.
const MAX_TEXT: usize = 4096;

/// What stands for what is left out of a message.
const CUT: &str = " … ";

/// Shorter ones are in too many words to be taken out of them.
const MIN_HIDDEN: usize = 4;

const HIDDEN: &str = "***";

/// Where events go.
pub(crate) struct Events<W> {
    out: W,
    hidden: Vec<String>,
    steps: Vec<Told>,
}

/// A step as it was told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) number: u32,
    pub(crate) of: u32,
    pub(crate) text: String,
}

impl<W: Write> Events<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, hidden: Vec::new(), steps: Vec::new() }
    }

    /// Has each line of these texts taken out of whatever is told.
    pub(crate) fn hide(&mut self, secrets: &[String]) {
        let lines = secrets.iter().flat_map(|text| text.split(['\n', '\r'])).map(str::trim);
        // As they are, and as they look where they are told.
        let looks = lines.flat_map(|line| [line.to_owned(), plain(line).trim().to_owned()]);
        self.hidden.extend(looks.filter(|line| line.len() >= MIN_HIDDEN));
        // A secret that is part of another is taken out after it.
        self.hidden.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        self.hidden.dedup();
    }

    pub(crate) fn info(&mut self, text: &str) -> Result<(), Failure> {
        self.log(LogLevel::Info, text)
    }

    /// Tells a line. Nothing is told of one that has no text.
    pub(crate) fn log(&mut self, level: LogLevel, text: &str) -> Result<(), Failure> {
        let text = self.clean(text);
        if text.is_empty() { Ok(()) } else { self.tell(&Event::Log { level, text }) }
    }

    pub(crate) fn step(&mut self, number: u32, of: u32, text: &str, cached: bool) -> Result<(), Failure> {
        let text = self.clean(text);
        self.steps.push(Told { number, of, text: text.clone() });
        self.tell(&Event::Step { number, of, text, cached })
    }

    /// The steps that were told.
    pub(crate) fn steps(&self) -> &[Told] {
        &self.steps
    }

    fn tell(&mut self, event: &Event) -> Result<(), Failure> {
        self.send(event).map_err(|error| Failure::host("The agent does not hear this build any more", &error))
    }

    /// Sends an event. What the last one says is hidden here, as it quotes the tenant's programs too.
    ///
    /// # Errors
    ///
    /// Fails if nobody reads them.
    pub(crate) fn send(&mut self, event: &Event) -> io::Result<()> {
        let mut line = match event {
            Event::Failed(error) => {
                let mut error = error.clone();
                error.message = shortened(self.without_secrets(error.message));
                serde_json::to_vec(&Event::Failed(error))?
            }
            other => serde_json::to_vec(other)?,
        };
        line.push(b'\n');
        self.out.write_all(&line)?;
        self.out.flush()
    }

    fn clean(&self, text: &str) -> String {
        // Before too: what a terminal shows may be without a part of it.
        let mut text = self.without_secrets(plain(&self.without_secrets(text.to_owned())));
        if text.len() > MAX_TEXT {
            text.truncate(text.floor_char_boundary(MAX_TEXT));
        }
        text
    }

    fn without_secrets(&self, text: String) -> String {
        self.hidden
            .iter()
            .fold(text, |text, secret| if text.contains(secret) { text.replace(secret, HIDDEN) } else { text })
    }
}

/// The start and the end of a message that is too long for an event: a step comes first in it, and what was wrong with that last.
fn shortened(message: String) -> String {
    if message.len() <= MAX_TEXT {
        return message;
    }
    let half = (MAX_TEXT - CUT.len()) / 2;
    let (start, end) = (message.floor_char_boundary(half), message.ceil_char_boundary(message.len() - half));
    format!("{}{CUT}{}", message.get(..start).unwrap_or_default(), message.get(end..).unwrap_or_default())
}

/// What a terminal would show of a line in the end: without colours and what was overwritten.
fn plain(line: &str) -> String {
    let shown = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    let mut text = String::with_capacity(shown.len());
    let mut characters = shown.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            // A control sequence (ECMA-48): it ends with a character from `@` to `~`.
            '\x1b' if characters.next_if_eq(&'[').is_some() => {
                characters.by_ref().find(|character| ('@'..='~').contains(character));
            }
            '\t' => text.push(' '),
            other if other.is_control() => {}
            other => text.push(other),
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::template::BuildError;

    fn told(tell: impl FnOnce(&mut Events<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        let mut events = Events::new(&mut out);
        events.hide(&["hunter2 is\nlong\nab".to_owned()]);
        tell(&mut events);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_is_what_a_terminal_shows_in_the_end() {
        assert_eq!(plain("10 %\r\x1b[1;31mdone\x1b[0m\tnow \x07"), "done now");
        assert_eq!(plain("text\r"), "text");
        assert_eq!(plain("\x1b[31"), "");
    }

    #[test]
    fn secrets_are_in_no_event() {
        let said = told(|events| {
            events.info("it is hunter2 is, ab, and long").unwrap();
            let error = BuildError { code: "step_failed".into(), message: "a long way".into(), step: None };
            events.send(&Event::Failed(error)).unwrap();
        });
        assert!(said.contains(r#""it is ***, ab, and ***""#) && said.contains("a *** way"), "{said}");
    }

    #[test]
    fn secrets_with_tabs_and_colours_and_long_ones_are_in_no_event() {
        let long = "0123456789".repeat(1000);
        let said = {
            let mut out = Vec::new();
            let mut events = Events::new(&mut out);
            events.hide(&["pass\tword\x1b[0m\rover".to_owned(), long.clone()]);
            events.info("one pass\tword\x1b[0m\rover").unwrap();
            events.info("two pass word").unwrap();
            events.info(&format!("three {long} end")).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(said.contains("three *** end"), "{said}");
        assert!(!said.contains("over") && !said.contains("pass") && !said.contains("0123"), "{said}");
    }

    #[test]
    fn a_long_message_keeps_its_start_and_its_end() {
        let message = format!("The step `{}é` failed: exit status 1", "x".repeat(300_000));
        let said = told(|events| {
            let error = BuildError { code: "step_failed".into(), message, step: None };
            events.send(&Event::Failed(error)).unwrap();
        });
        assert!(
            said.len() < 5000 && said.contains("The step `xxx") && said.contains("` failed: exit status 1"),
            "{said}"
        );
    }

    #[test]
    fn lines_without_text_are_not_told_and_long_ones_are_cut_between_characters() {
        let said = told(|events| {
            events.info("\x1b[0m").unwrap();
            events.info(&"é".repeat(MAX_TEXT)).unwrap();
        });
        let Event::Log { text, .. } = serde_json::from_str(said.trim()).unwrap() else { panic!("{said}") };
        assert_eq!(text.chars().count(), MAX_TEXT / 2);
    }
}
