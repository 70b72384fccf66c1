//! Steps, as a Dockerfile: each is an instruction, and here and there one of ours is between them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Component, Path};

use sandpiper_protocol::template::{Credentials, ImageSettings, Step, Steps, StepsBase};

use super::base::{Base, prepare};
use super::build::{Build, build};
use super::{Made, make_folder, open};
use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;

/// A label with another value in every build: what comes after it has no earlier result.
const FORCED: &str = "sandpiper.forced";

/// Bytes behind which a line is broken.
const MAX_PIECE: usize = 32 << 10;

/// Bytes of what has to be on one line.
const MAX_WORD: usize = 4096;

/// Builds the image that steps make.
pub(super) fn image<W: Write>(
    steps: &Steps,
    settings: &ImageSettings,
    buildah: &Buildah,
    events: &mut Events<W>,
) -> Result<Made, Failure> {
    let base = prepare(&steps.from, settings, buildah, events)?;
    // No step needs them: nothing else is asked for.
    buildah.files().forget_credentials()?;
    let context = make_folder("context")?;
    for (number, step) in (1..).zip(&steps.steps) {
        if let Step::Copy { upload, .. } = step {
            open(upload)?.unpack(&make_folder(&format!("context/{}", folder(number)))?)?;
        }
    }
    let text = Text::of(&steps.steps, &base, &nonce())?;
    let of = u32::try_from(steps.steps.len()).unwrap_or(u32::MAX);
    let number = |instruction: u32, _| Some((text.step(instruction)?, of));
    let mut options = vec!["--pull=never".to_owned()];
    if steps.no_cache {
        options.push("--no-cache".into());
    }
    let built = build(
        &Build { text: &text.text, context: &context, options, variables: Vec::new(), number: &number },
        buildah,
        events,
    )?;
    // buildah's parser may take what it does not understand for the end.
    if usize::try_from(built.instructions) != Ok(text.steps.len()) {
        return Err(Failure::Host(
            "buildah has not read all steps, and has built an image without some of them".into(),
        ));
    }
    Ok(Made { image: built.image, digests: base.digests, found: base.found })
}

/// What the order has for the registry of what the steps begin with.
pub(super) fn credentials(steps: &Steps) -> Option<&Credentials> {
    match &steps.from {
        StepsBase::Image { credentials, .. } => credentials.as_ref(),
        StepsBase::Version { .. } => None,
    }
}

/// Where in the context the files of the step with a number are.
fn folder(number: u32) -> String {
    format!("step-{number}")
}

/// Another one at each call.
fn nonce() -> String {
    // The kernel makes it; without one a step that was to be forced may not be, which is no reason to fail.
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default().trim().to_owned()
}

/// A Dockerfile, and of which step each of its instructions is.
#[derive(Debug, Default)]
struct Text {
    text: String,
    steps: Vec<Option<u32>>,
}

impl Text {
    fn of(steps: &[Step], base: &Base, nonce: &str) -> Result<Self, Failure> {
        let mut text = Self::default();
        text.add(None, &format!("FROM {}", base.name));
        let shell = if base.has_bash { "/bin/bash" } else { "/bin/sh" };
        let mut user = base.user.clone();
        for (number, step) in (1..).zip(steps) {
            if let Step::Copy { force: true, .. } | Step::Run { force: true, .. } = step {
                text.add(None, &format!("LABEL {FORCED}={nonce}-{number}"));
            }
            match step {
                Step::Copy { source, target, user: owner, mode, .. } => {
                    let owner = owner.as_deref().unwrap_or(&user);
                    text.add(Some(number), &copy(number, (source, target), owner, mode.as_deref())?);
                }
                Step::Run { command, user: other, .. } => {
                    let command = format!("RUN {}", words(&[shell, "-c", command]));
                    match other.as_deref().filter(|other| *other != user) {
                        Some(other) => {
                            text.add(None, &format!("USER {}", one_line("user", other)?));
                            text.add(Some(number), &command);
                            text.add(None, &format!("USER {}", one_line("user", &user)?));
                        }
                        None => text.add(Some(number), &command),
                    }
                }
                Step::Env { env } if env.is_empty() => {}
                Step::Env { env } => text.add(Some(number), &variables(env)?),
                Step::Workdir { path } => text.add(Some(number), &format!("WORKDIR {}", one_line("folder", path)?)),
                Step::User { name } => {
                    text.add(Some(number), &format!("USER {}", one_line("user", name)?));
                    user.clone_from(name);
                }
            }
        }
        Ok(text)
    }

    fn add(&mut self, step: Option<u32>, instruction: &str) {
        self.text.push_str(instruction);
        self.text.push('\n');
        self.steps.push(step);
    }

    /// The step that the instruction with a number is, counted from 1.
    fn step(&self, instruction: u32) -> Option<u32> {
        *self.steps.get(usize::try_from(instruction).ok()?.checked_sub(1)?)?
    }
}

fn copy(number: u32, (source, target): (&str, &str), owner: &str, mode: Option<&str>) -> Result<String, Failure> {
    let mut inside = String::new();
    for part in Path::new(source).components() {
        match part {
            Component::Normal(name) => write!(inside, "/{}", name.to_string_lossy()).unwrap_or_default(),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                return Err(refused(&format!("The step {number} copies {source:?}: a source has no `..` in its name")));
            }
        }
    }
    let source = format!("{}{inside}{}", folder(number), if inside.is_empty() { "/." } else { "" });
    // Another word would be an option.
    if owner.contains(char::is_whitespace) {
        return Err(refused(&format!("{owner:?} is no user")));
    }
    let mut instruction = format!("COPY --chown={}", one_line("user", owner)?);
    if let Some(mode) = mode {
        if mode.is_empty() || mode.len() > 4 || !mode.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) {
            return Err(refused(&format!("{mode:?} is no octal mode such as 755")));
        }
        write!(instruction, " --chmod={mode}").unwrap_or_default();
    }
    // Names are meant as they are, and an instruction puts variables in.
    write!(instruction, " {}", words(&[&escaped(&source), &escaped(target)])).unwrap_or_default();
    Ok(instruction)
}

fn variables(env: &BTreeMap<String, String>) -> Result<String, Failure> {
    let mut instruction = Folded::new("ENV ");
    for (index, (name, value)) in env.iter().enumerate() {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || name.len() > MAX_WORD || !name.bytes().all(is_name) {
            return Err(refused(&format!("{name:?} is no name of a variable")));
        }
        if value.contains(NO_LINE) {
            return Err(refused(&format!("The value of {name} has more than one line, and a step's has one")));
        }
        if index > 0 {
            instruction.push(" ", None);
        }
        instruction.push(&format!("{name}=\""), None);
        for character in value.chars() {
            // Quotes end before a line does, and begin after: it begins with nothing that would be left out.
            instruction.push(escape(character, &mut [0; 5]), Some(("\"", "\"")));
        }
        instruction.push("\"", None);
    }
    Ok(instruction.text)
}

/// What ends lines, and texts.
const NO_LINE: [char; 3] = ['\n', '\r', '\0'];

/// An instruction that goes on over as many lines as it needs: buildah's parser leaves out one that begins with `#`, or is empty.
struct Folded {
    text: String,
    /// Bytes of its last line.
    line: usize,
}

impl Folded {
    fn new(start: &str) -> Self {
        Self { text: start.to_owned(), line: start.len() }
    }

    /// Adds a part, with what has to be around a line's end, if there may be one before it.
    fn push(&mut self, part: &str, around: Option<(&str, &str)>) {
        if let (true, Some((before, after))) = (self.line > MAX_PIECE, around) {
            self.text.extend([before, "\\\n", after]);
            self.line = after.len();
        }
        self.text.push_str(part);
        self.line += part.len();
    }
}

/// The form of an instruction in which words are what they are: JSON.
fn words(words: &[&str]) -> String {
    let mut array = Folded::new("[");
    for (index, word) in words.iter().enumerate() {
        array.push(if index > 0 { ",\"" } else { "\"" }, None);
        for character in word.chars() {
            if array.line > MAX_PIECE {
                // Written so, it is never what a line may not begin with.
                let units =
                    character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
                array.push(&units, Some(("", "")));
            } else {
                let quoted = serde_json::Value::from(character.to_string()).to_string();
                array.push(quoted.get(1..quoted.len() - 1).unwrap_or_default(), None);
            }
        }
        array.push("\"", None);
    }
    array.text + "]"
}

/// A text that an instruction takes as it is: no variables are put in, and no quotes taken out.
fn escaped(text: &str) -> String {
    text.chars().map(|character| escape(character, &mut [0; 5]).to_owned()).collect()
}

fn escape(character: char, buffer: &mut [u8; 5]) -> &str {
    let start = usize::from(matches!(character, '\\' | '$' | '"'));
    buffer[0] = b'\\';
    let end = start + character.encode_utf8(&mut buffer[start..]).len();
    std::str::from_utf8(&buffer[..end]).unwrap_or_default()
}

fn one_line<'a>(what: &str, text: &'a str) -> Result<&'a str, Failure> {
    if text.is_empty() || text.contains(NO_LINE) {
        return Err(refused(&format!("A {what} of a step is one line of text, not {text:?}")));
    }
    if text.len() > MAX_WORD {
        return Err(refused(&format!("A {what} of a step has at most {MAX_WORD} bytes, and this has {}", text.len())));
    }
    // The next instruction would be part of it.
    if text.trim_end().ends_with('\\') {
        return Err(refused(&format!("A {what} of a step does not end with a backslash: {text:?}")));
    }
    Ok(text)
}

fn refused(why: &str) -> Failure {
    Failure::SourceRefused(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(steps: serde_json::Value) -> Result<Text, Failure> {
        let steps: Vec<Step> = serde_json::from_value(steps).unwrap();
        let base =
            Base { name: "base".into(), user: "user".into(), has_bash: false, digests: BTreeMap::new(), found: None };
        Text::of(&steps, &base, "nonce")
    }

    #[test]
    fn each_step_is_an_instruction_that_is_known_by_its_number() {
        let text = text(json!([
            {"step": "user", "name": "root"},
            {"step": "run", "command": "echo \"$A\"\ntrue", "user": "user"},
            {"step": "env", "env": {"A": "a \"b\" $c \\", "B": "1"}},
            {"step": "workdir", "path": "/my app"},
            {"step": "run", "command": "make", "force": true},
            {"step": "copy", "upload": "upl_1", "source": "./src/*.py", "target": "/app dir/", "user": "app:web", "mode": "0644"},
            {"step": "copy", "upload": "upl_1", "source": ".", "target": "$HOME"},
        ]))
        .unwrap();

        assert_eq!(
            text.text.lines().collect::<Vec<_>>(),
            [
                "FROM base",
                "USER root",
                "USER user",
                r#"RUN ["/bin/sh","-c","echo \"$A\"\ntrue"]"#,
                "USER root",
                r#"ENV A="a \"b\" \$c \\" B="1""#,
                "WORKDIR /my app",
                "LABEL sandpiper.forced=nonce-5",
                r#"RUN ["/bin/sh","-c","make"]"#,
                r#"COPY --chown=app:web --chmod=0644 ["step-6/src/*.py","/app dir/"]"#,
                r#"COPY --chown=root ["step-7/.","\\$HOME"]"#,
            ]
        );
        let steps: Vec<_> = (1..=12).map(|instruction| text.step(instruction)).collect();
        let (none, some) = (None, Some);
        assert_eq!(
            steps,
            [none, some(1), none, some(2), none, some(3), some(4), none, some(5), some(6), some(7), none]
        );
        assert_eq!(text.step(0), None);
    }

    #[test]
    fn long_steps_go_on_over_lines_that_are_read() {
        let long = "# \\$\"é😀\t".repeat(6000);
        let text = text(json!([
            {"step": "run", "command": long},
            {"step": "env", "env": {"A": long.replace('\t', " "), "B": "#".repeat(200_000)}},
        ]))
        .unwrap();
        for line in text.text.lines() {
            assert!(line.len() < 65_535 && !line.starts_with(['#', ' ', '\t']), "{:?}", line.get(..9));
        }
        let joined = text.text.replace("\\\n", "");
        let run = joined.lines().find_map(|line| line.strip_prefix("RUN ")).unwrap();
        let words: Vec<String> = serde_json::from_str(run).unwrap();
        assert_eq!(words, ["/bin/sh", "-c", &long]);
        assert_eq!(text.steps.len(), 3);
    }

    #[test]
    fn what_would_be_another_instruction_is_refused() {
        for step in [
            json!({"step": "user", "name": "a\nRUN b"}),
            json!({"step": "workdir", "path": ""}),
            json!({"step": "env", "env": {"A": "1\nRUN b"}}),
            json!({"step": "env", "env": {"A B": "1"}}),
            json!({"step": "workdir", "path": "/a\\"}),
            json!({"step": "user", "name": "a\\ "}),
            json!({"step": "workdir", "path": "x".repeat(5000)}),
            json!({"step": "copy", "upload": "upl_1", "source": "a", "target": "/", "user": "a --from=b"}),
            json!({"step": "copy", "upload": "upl_1", "source": "../a", "target": "/"}),
            json!({"step": "copy", "upload": "upl_1", "source": "a", "target": "/", "mode": "u+x"}),
            json!({"step": "copy", "upload": "upl_1", "source": "a", "target": "/", "user": "a\nb"}),
        ] {
            assert!(matches!(text(json!([step])), Err(Failure::SourceRefused(_))), "{step}");
        }
    }
}
