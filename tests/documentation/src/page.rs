//! From a page's text to its examples.

use std::iter::Peekable;
use std::str::Lines;

/// One command that a page shows, or one script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Where it begins, counted from 1.
    pub line: usize,
    pub command: String,
    /// What it prints, where the page shows that.
    pub output: Option<String>,
    /// Why it is not run.
    pub norun: Option<String>,
}

/// A block that cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    pub line: usize,
    pub what: String,
}

/// The shell examples of a page, in its order.
///
/// # Errors
///
/// Fails where a block has no language, or one that would hide a shell example; where it has no end, no command, or a
/// `norun` without a reason.
pub fn examples(page: &str) -> Result<Vec<Example>, Malformed> {
    let mut examples = Vec::new();
    let mut lines = page.lines().zip(1..);
    while let Some((fence, line)) = lines.next() {
        let Some(info) = fence.trim_start().strip_prefix("```") else { continue };
        let malformed = |what: &str| Malformed { line, what: what.to_owned() };
        let mut block = String::new();
        loop {
            let (text, _) = lines.next().ok_or_else(|| malformed("the block has no end"))?;
            if text.trim() == "```" {
                break;
            }
            block.extend([text, "\n"]);
        }
        let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
        let norun = match rest.trim() {
            "" => None,
            rest => {
                let reason = rest.strip_prefix("norun=\"").and_then(|rest| rest.strip_suffix('"'));
                Some(
                    reason
                        .filter(|reason| !reason.trim().is_empty())
                        .ok_or_else(|| malformed("write norun=\"why\""))?,
                )
            }
        };
        let norun = norun.map(str::to_owned);
        match language {
            "sh" => examples.push(Example { line: line + 1, command: block, output: None, norun }),
            "console" => examples.extend(session(&block, line + 1, norun.as_deref())?),
            "" => return Err(malformed("the block has no language; `text` is one")),
            "bash" | "shell" | "zsh" => return Err(malformed("a shell's block is `sh` or `console`")),
            _ => {}
        }
    }
    Ok(examples)
}

/// The commands of a `console` block and what they print.
fn session(block: &str, first: usize, norun: Option<&str>) -> Result<Vec<Example>, Malformed> {
    let mut lines = block.lines().zip(first..).peekable();
    let mut examples = Vec::new();
    while let Some((text, line)) = lines.next() {
        let Some(command) = text.strip_prefix("$ ") else {
            return Err(Malformed { line, what: "a console's first line is `$ ` and a command".to_owned() });
        };
        let mut command = command.to_owned();
        while let Some((next, _)) = lines.next_if(|(next, _)| next.starts_with(' ')) {
            command.extend(["\n", next]);
        }
        let output = output(&mut lines);
        examples.push(Example { line, command, output: Some(output), norun: norun.map(str::to_owned) });
    }
    match examples.is_empty() {
        true => Err(Malformed { line: first, what: "the console has no command".to_owned() }),
        false => Ok(examples),
    }
}

/// The lines up to the next command.
fn output(lines: &mut Peekable<std::iter::Zip<Lines<'_>, std::ops::RangeFrom<usize>>>) -> String {
    let mut output = Vec::new();
    while let Some((text, _)) = lines.next_if(|(text, _)| !text.starts_with("$ ")) {
        output.push(text);
    }
    output.join("\n").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(page: &str) -> String {
        examples(page).unwrap_err().to_string()
    }

    #[test]
    fn a_script_is_one_example_and_a_console_has_one_for_each_command() {
        let page = "# Title\n```sh\na\nb\n```\n```json\n{}\n```\n\n```console\n$ c '\n    d' |\n  e\none\n\ntwo\n\n$ f\n$ g\nthree\n```\n";

        let found = examples(page).unwrap();

        let shown: Vec<_> = found.iter().map(|e| (e.line, e.command.as_str(), e.output.as_deref())).collect();
        let expected = [
            (3, "a\nb\n", None),
            (11, "c '\n    d' |\n  e", Some("one\n\ntwo")),
            (18, "f", Some("")),
            (19, "g", Some("three")),
        ];
        assert_eq!(shown, expected);
        assert!(found.iter().all(|example| example.norun.is_none()));
    }

    #[test]
    fn what_is_not_run_has_a_reason() {
        let found =
            examples("```sh norun=\"needs a second host\"\na\n```\n```console norun=\"takes hours\"\n$ b\n```\n");
        let reasons: Vec<_> = found.unwrap().into_iter().map(|example| example.norun.unwrap()).collect();
        assert_eq!(reasons, ["needs a second host", "takes hours"]);
        for info in ["norun", "norun=\"\"", "norun=\" \"", "norun=why", "no-run=\"why\""] {
            assert_eq!(fault(&format!("\n```sh {info}\na\n```\n")), "line 2: write norun=\"why\"");
        }
    }

    #[test]
    fn a_block_that_could_hide_an_example_is_an_error() {
        assert!(fault("```\n$ a\n```\n").contains("no language"));
        assert!(fault("```bash\na\n```\n").contains("`sh` or `console`"));
        assert!(fault("```sh\na\n").contains("no end"));
        assert!(fault("```console\na\n```\n").contains("first line"));
        assert!(fault("```console\n```\n").contains("no command"));
    }

    #[test]
    fn a_block_in_a_list_is_one_too() {
        assert_eq!(examples("- x\n\n  ```sh\n  a\n  ```\n").unwrap()[0].command, "  a\n");
    }
}
