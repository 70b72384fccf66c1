//! Tools for files.

use std::time::Duration;

use rmcp::schemars::{self, JsonSchema};
use sandpiper_client::Command;
use sandpiper_protocol::filesystem::{EntryInfo, FileType};
use serde::Deserialize;

use crate::conversation::ToolError;
use crate::server::Call;
use crate::text::{Excerpt, lossy};

/// Bytes of a file in one result, and how far into a file lines are looked for.
const MAX_TEXT: usize = 48 << 10;
const MAX_SCAN: u64 = 256 << 20;

/// Bytes that are written in one call.
const MAX_CONTENT: usize = 4 << 20;

/// Entries of one result, and levels.
const MAX_ENTRIES: usize = 500;
const MAX_DEPTH: u32 = 10;

/// For a search.
const SEARCH_LIMIT: Duration = Duration::from_secs(60);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// Relative paths count from the home folder.
    path: String,
    /// The first line to read, from 1.
    first_line: Option<u64>,
    /// How many lines; as many as fit otherwise.
    lines: Option<u64>,
}

impl ReadFile {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let data_plane = call.conversation.data_plane(call.client, Duration::ZERO).await?;
        let mut download = data_plane.download(&self.path, None).await?;
        let mut lines = Lines::new(self.first_line.unwrap_or(1).max(1), self.lines.unwrap_or(u64::MAX));
        let mut scanned = 0;
        while let Some(piece) = download.next().await? {
            if piece.contains(&0) {
                return Err(ToolError(format!(
                    "{} is not text: it has {} bytes, NUL among them",
                    self.path,
                    download.size()
                )));
            }
            scanned += piece.len() as u64;
            if lines.take(&piece) || scanned > MAX_SCAN {
                break;
            }
        }
        Ok(lines.result(download.size()))
    }
}

/// Some lines out of a stream of bytes.
struct Lines {
    first: u64,
    count: u64,
    /// The line that the next byte is in.
    line: u64,
    text: Vec<u8>,
    is_full: bool,
}

impl Lines {
    fn new(first: u64, count: u64) -> Self {
        Self { first, count, line: 1, text: Vec::new(), is_full: false }
    }

    /// Takes in bytes; whether that is enough.
    fn take(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            if self.line >= self.first.saturating_add(self.count) {
                return true;
            }
            if self.line >= self.first {
                if self.text.len() == MAX_TEXT {
                    self.is_full = true;
                    return true;
                }
                self.text.push(*byte);
            }
            self.line += u64::from(*byte == b'\n');
        }
        false
    }

    fn result(self, size: u64) -> String {
        let mut text = lossy(&self.text);
        if self.is_full {
            text.push_str(&format!(
                "\n[... cut here, in line {}: the file has {size} bytes; read on with first_line ...]",
                self.line
            ));
        } else if text.is_empty() && size > 0 {
            text = format!("[there is no line {}: the file ends at line {}]", self.first, self.line);
        } else if text.is_empty() {
            "[the file is empty]".clone_into(&mut text);
        }
        text
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// Relative paths count from the home folder.
    path: String,
    /// The whole content.
    content: String,
}

impl WriteFile {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let size = self.content.len();
        if size > MAX_CONTENT {
            return Err(ToolError(format!("That has {size} bytes; {MAX_CONTENT} are the most in one call")));
        }
        let data_plane = call.conversation.data_plane(call.client, Duration::ZERO).await?;
        let written = data_plane.write_file(&self.path, self.content.into_bytes(), None).await?;
        Ok(format!("{size} bytes written to {}", lossy(written.path.as_bytes())))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// The folder; the home folder otherwise.
    path: Option<String>,
    /// Levels to list: 1 unless said, 10 at most.
    depth: Option<u32>,
}

impl ListFiles {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let data_plane = call.conversation.data_plane(call.client, Duration::ZERO).await?;
        let depth = self.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
        let entries = data_plane.list_dir(self.path.as_deref().unwrap_or("~"), depth, None).await?;
        if entries.is_empty() {
            return Ok("[the folder is empty]".to_owned());
        }
        let mut text: String = entries.iter().take(MAX_ENTRIES).map(line).collect();
        if entries.len() > MAX_ENTRIES {
            text.push_str(&format!("[... {} entries left out ...]\n", entries.len() - MAX_ENTRIES));
        }
        Ok(text)
    }
}

/// `path`, what it is, and how long.
fn line(entry: &EntryInfo) -> String {
    // A name with a line break would look like another entry.
    let path = lossy(entry.path.as_bytes()).replace('\n', "\\n");
    match (&entry.symlink_target, entry.kind) {
        (Some(target), _) => format!("{path} -> {}\n", lossy(target.as_bytes()).replace('\n', "\\n")),
        (None, FileType::Directory) => format!("{path}/\n"),
        (None, FileType::File) => format!("{path} ({} bytes)\n", entry.size),
        (None, _) => format!("{path} (not a file)\n"),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchFiles {
    /// What to search for: an extended regular expression, as grep -E has it.
    pattern: String,
    /// The folder or file to search in; the home folder otherwise.
    path: Option<String>,
    /// Only in files with such names: *.py
    files: Option<String>,
}

impl SearchFiles {
    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let data_plane = call.conversation.data_plane(call.client, SEARCH_LIMIT).await?;
        let mut arguments: Vec<String> = ["-rnIE", "--max-count=100"].map(str::to_owned).into();
        arguments.extend(self.files.map(|files| format!("--include={files}")));
        arguments.extend(["-e".to_owned(), self.pattern, "--".to_owned()]);
        arguments.push(self.path.unwrap_or_else(|| ".".to_owned()));
        let command =
            Command { program: "grep".to_owned(), arguments, timeout: Some(SEARCH_LIMIT), ..Command::default() };
        let mut stream = data_plane.start(&command).await?;
        let (mut found, mut errors) = (Excerpt::default(), Excerpt::default());
        use sandpiper_protocol::process::{DataEvent, ProcessEvent};
        let status = loop {
            match stream.next().await? {
                Some(ProcessEvent::Data(DataEvent::Stderr(text))) => errors.push(&sandpiper_client::decode(&text)?),
                Some(ProcessEvent::Data(DataEvent::Stdout(text) | DataEvent::Pty(text))) => {
                    found.push(&sandpiper_client::decode(&text)?);
                }
                Some(ProcessEvent::End(end)) => break end.exit_code,
                Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => {}
                None => return Err("The sandbox did not say how the search ended".into()),
            }
        };
        match (found.is_empty(), status) {
            (false, _) => Ok(found.text()),
            (true, 1) => Ok("[nothing found]".to_owned()),
            (true, _) => Err(ToolError(errors.text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_are_asked_for_are_read() {
        let read = |first, count| {
            let mut lines = Lines::new(first, count);
            // In pieces that break lines.
            let _ = lines.take(b"one\ntw") || lines.take(b"o\nthree\n");
            lines.result(14)
        };
        assert_eq!(read(1, u64::MAX), "one\ntwo\nthree\n");
        assert_eq!(read(2, 1), "two\n");
        assert_eq!(read(9, 1), "[there is no line 9: the file ends at line 4]");
        let mut lines = Lines::new(1, u64::MAX);
        assert!(lines.take(&[b'x'; MAX_TEXT + 1]));
        assert!(lines.result(1 << 20).contains("read on with first_line"));
    }
}
