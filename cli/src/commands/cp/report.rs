//! What was copied, what was not, and how far it is.

use std::io::IsTerminal;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::output::Output;
use crate::text::{bytes, printable};

/// Notes that are kept; more are counted. A guest must not fill a terminal, or the memory.
const MAX_NOTES: usize = 100;

pub(super) struct Report {
    output: Output,
    bar: ProgressBar,
    files: u64,
    bytes: u64,
    /// Left out on purpose, such as links.
    skipped: u64,
    /// Should have been copied.
    failed: u64,
    notes: Vec<(String, String)>,
}

impl Report {
    pub(super) fn new(output: Output) -> Self {
        let is_shown = !output.is_json() && std::io::stderr().is_terminal();
        let bar = if is_shown { ProgressBar::no_length() } else { ProgressBar::hidden() };
        bar.set_style(style("{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}"));
        Self { output, bar, files: 0, bytes: 0, skipped: 0, failed: 0, notes: Vec::new() }
    }

    /// Only one file is copied, of this many bytes.
    pub(super) fn expect(&self, total: u64) {
        self.bar.set_length(total);
        self.bar.set_style(style("{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"));
    }

    pub(super) fn begin(&self, name: &str) {
        self.bar.set_message(printable(name).into_owned());
    }

    /// A bar that another task may move.
    pub(super) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    pub(super) fn moved(&self, bytes: usize) {
        self.bar.inc(bytes as u64);
    }

    pub(super) fn copied(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    pub(super) fn skip(&mut self, path: &str, why: &str) {
        self.skipped += 1;
        self.note(path, why);
    }

    pub(super) fn fail(&mut self, path: &str, why: &str) {
        self.failed += 1;
        self.note(path, why);
    }

    fn note(&mut self, path: &str, why: &str) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push((path.to_owned(), why.to_owned()));
        }
    }

    /// Says how it went; fails if something should have been copied and was not. `quiet`: the file itself was printed.
    pub(super) fn finish(self, quiet: bool) -> ExitCode {
        self.bar.finish_and_clear();
        if self.output.is_json() && !quiet {
            let notes: Vec<_> = self.notes.iter().map(|(path, why)| json!({"path": path, "reason": why})).collect();
            self.output.value(&json!({
                "files": self.files, "bytes": self.bytes, "skipped": self.skipped, "failed": self.failed, "notes": notes,
            }));
        } else if !quiet {
            self.output.line(&format!(
                "{} file{}, {}",
                self.files,
                if self.files == 1 { "" } else { "s" },
                bytes(self.bytes)
            ));
        }
        if !self.output.is_json() {
            for (path, why) in &self.notes {
                eprintln!("not copied: {}: {}", printable(path), printable(why));
            }
            let more = (self.skipped + self.failed).saturating_sub(self.notes.len() as u64);
            if more > 0 {
                eprintln!("not copied: {more} more");
            }
        }
        if self.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
