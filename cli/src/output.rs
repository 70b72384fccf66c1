//! What a person sees, or with `--json` what a script reads.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use sandpiper::client::ClientError;
use serde_json::{Value, json};

use crate::text::printable_lines;

/// Where results go: standard output, as text or as one JSON value a line. Progress and errors go to standard error.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// One line of JSON.
    pub(crate) fn value(self, value: &Value) {
        let mut out = std::io::stdout().lock();
        // A reader that went away (`| head`) is no error of ours.
        let _ = writeln!(out, "{value}");
    }

    /// One line of text; nothing with `--json`.
    pub(crate) fn line(self, text: &str) {
        if !self.json {
            let _ = writeln!(std::io::stdout().lock(), "{text}");
        }
    }

    /// A table under `header`; nothing with `--json`.
    pub(crate) fn table(self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        if self.json {
            return;
        }
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(header.to_vec());
        for row in rows {
            table.add_row(row);
        }
        self.line(&table.to_string());
    }

    /// What the API has listed: a table, or a line of JSON for each.
    pub(crate) fn rows(self, header: &[&str], listed: &[Value], row: impl Fn(&Value) -> Vec<String>) {
        if self.json {
            listed.iter().for_each(|value| self.value(value));
        } else {
            self.table(header, listed.iter().map(row));
        }
    }

    /// What the API has made: the one field that a person asked for, or all of it as JSON.
    pub(crate) fn made(self, made: &Value, field: &str) {
        if self.json {
            self.value(made);
        } else {
            self.line(&crate::text::field(made, field));
        }
    }

    /// Says on a terminal that something is under way, from the moment it has taken more than a blink.
    pub(crate) fn progress(self, text: &str) -> Progress {
        self.bar(text, "{spinner} {msg} {elapsed:.dim}")
    }

    /// Says on a terminal how many bytes have moved, of `total` if that is known.
    pub(crate) fn progress_of_bytes(self, text: &str, total: Option<u64>) -> Progress {
        let Some(total) = total else { return self.bar(text, "{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}") };
        let progress =
            self.bar(text, "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}");
        progress.0.set_length(total);
        progress
    }

    fn bar(self, text: &str, template: &str) -> Progress {
        if self.json || !std::io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner().with_message(text.to_owned());
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress(bar)
    }

    /// Reports the error and gives the exit status 125: not one that a command in a sandbox is likely to have, as with
    /// other tools that run commands elsewhere.
    pub(crate) fn fail(self, error: &anyhow::Error) -> ExitCode {
        self.report(error);
        ExitCode::from(125)
    }

    /// Tells of the error once, with its causes.
    pub(crate) fn report(self, error: &anyhow::Error) {
        if self.json {
            let code = error.downcast_ref::<ClientError>().and_then(ClientError::code).unwrap_or("failed");
            self.value(&json!({"error": code, "message": format!("{error:#}")}));
        } else {
            let _ = writeln!(std::io::stderr().lock(), "error: {}", printable_lines(&format!("{error:#}")));
        }
    }
}

/// Ends its line when dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// What another task calls as bytes move.
    pub(crate) fn mover(&self) -> impl Fn(usize) + Send + 'static {
        let bar = self.0.clone();
        move |bytes| bar.inc(bytes as u64)
    }

    /// Says something else from now on.
    pub(crate) fn say(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }

    /// A line above it that stays, on standard error.
    pub(crate) fn print(&self, line: &str) {
        self.0.suspend(|| {
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
