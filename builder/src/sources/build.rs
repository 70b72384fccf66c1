//! Running `buildah build`, and telling how it goes.

use std::io::Write;
use std::path::Path;

use sandpiper_protocol::template::LogLevel;

use crate::buildah::{Buildah, Line};
use crate::events::Events;
use crate::failure::Failure;
use crate::progress::{Counter, Said, of_error, of_output};

/// Bytes of a line that buildah's parser reads. It takes a longer one for the end of the Dockerfile, without a word.
const MAX_LINE: usize = (64 << 10) - 2;

/// What is built.
pub(super) struct Build<'a> {
    /// Text of the Dockerfile.
    pub(super) text: &'a str,
    pub(super) context: &'a Path,
    pub(super) options: Vec<String>,
    /// Variables for buildah itself.
    pub(super) variables: Vec<(String, String)>,
    /// The number by which its owner knows the step with a number, and how many there are; `None` for one of ours.
    pub(super) number: &'a dyn Fn(u32, u32) -> Option<(u32, u32)>,
}

/// What came of it.
pub(super) struct Built {
    pub(super) image: String,
    /// Instructions of the first stage, as buildah has read them.
    pub(super) instructions: u32,
}

/// Builds.
///
/// # Errors
///
/// Fails where a step does, and if a line is longer than what is read.
pub(super) fn build<W: Write>(build: &Build<'_>, buildah: &Buildah, events: &mut Events<W>) -> Result<Built, Failure> {
    check_lines(build.text)?;
    let file = buildah.files().put_other("Dockerfile", build.text)?;
    let id = buildah.files().put_other("image", "")?;
    let mut arguments = buildah.build_options();
    arguments.extend_from_slice(&build.options);
    arguments.push(format!("--iidfile={}", id.display()));
    arguments.push(format!("--file={}", file.display()));
    arguments.push(build.context.display().to_string());
    let mut teller =
        Teller { events, number: build.number, counter: Counter::default(), begun: None, at: None, instructions: None };
    buildah.run_with(&arguments, &build.variables, |line| teller.tell(line))?;
    teller.begin(false)?;
    let instructions = teller.instructions.unwrap_or_default();
    let image = std::fs::read_to_string(&id)
        .map_err(|error| Failure::host("buildah does not say what it has built", &error))?;
    Ok(Built { image: image.trim().to_owned(), instructions })
}

fn check_lines(text: &str) -> Result<(), Failure> {
    match (1..).zip(text.split('\n')).find(|(_, line)| line.len() > MAX_LINE) {
        Some((number, line)) => Err(Failure::SourceRefused(format!(
            "Line {number} of the Dockerfile has {} bytes, and at most {MAX_LINE} are read: break it with a backslash at its end",
            line.len()
        ))),
        None => Ok(()),
    }
}

struct Teller<'a, W> {
    events: &'a mut Events<W>,
    number: &'a dyn Fn(u32, u32) -> Option<(u32, u32)>,
    counter: Counter,
    /// A step of which is not known yet whether an earlier result is used.
    begun: Option<Begun>,
    /// The step that goes on.
    at: Option<u32>,
    instructions: Option<u32>,
}

struct Begun {
    number: Option<(u32, u32)>,
    text: String,
}

impl<W: Write> Teller<'_, W> {
    /// Tells a line, or that there has been none for a while. Returns the step that goes on.
    fn tell(&mut self, line: Option<Line>) -> Result<Option<u32>, Failure> {
        match &line {
            None => self.begin(false)?,
            Some(Line::Output(line)) => self.said(of_output(line))?,
            Some(Line::Error(line)) => self.said(of_error(line))?,
        }
        Ok(self.at)
    }

    fn said(&mut self, said: Said<'_>) -> Result<(), Failure> {
        match said {
            Said::Step(step) => {
                self.begin(false)?;
                let (number, of) = self.counter.count(step);
                // Before the first one no program can have printed the like.
                self.instructions.get_or_insert(of);
                let number = (self.number)(number, of);
                self.at = number.map(|(number, _)| number);
                self.begun = Some(Begun { number, text: step.text.to_owned() });
                Ok(())
            }
            Said::Cached => self.begin(true),
            Said::Line(level, text) => {
                self.begin(false)?;
                self.events.log(level, text)
            }
            Said::Nothing => Ok(()),
        }
    }

    /// Tells the step that has begun, if that was not done.
    fn begin(&mut self, cached: bool) -> Result<(), Failure> {
        match self.begun.take() {
            Some(Begun { number: Some((number, of)), text }) => self.events.step(number, of, &text, cached),
            Some(Begun { number: None, text }) => self.events.log(LogLevel::Debug, &text),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_read_to_its_end_is_refused_by_its_number() {
        assert!(check_lines(&format!("FROM a\nRUN {}\nRUN b", "x".repeat(MAX_LINE - 4))).is_ok());
        let refused = check_lines(&format!("FROM a\nRUN {}", "x".repeat(MAX_LINE - 3))).unwrap_err();
        assert!(refused.to_string().starts_with("Line 2 of the Dockerfile has 65535 bytes"), "{refused}");
    }
}
