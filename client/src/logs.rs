//! Logs of sandboxes: what is there, and what comes.

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event_stream::EventStream;
use super::{Client, ClientError};

/// Entries of a page.
const PAGE: usize = 100;

/// Something that was noted about a sandbox.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct LogEntry {
    /// Greater than that of every entry before.
    pub sequence: u64,
    pub time: String,
    /// `host`, `guest`, `console`, `process` and others.
    pub source: String,
    pub message: String,
    /// Whose line it is, of the source `process`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<LogProcess>,
}

/// A process that wrote a line.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct LogProcess {
    pub pid: u32,
    /// The file name of its program.
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// Whether the line was longer.
    pub cut: bool,
}

#[derive(Deserialize)]
struct Page {
    entries: Vec<LogEntry>,
    next_token: Option<String>,
}

/// The log of a sandbox as it grows. A connection that breaks off is made anew, and no entry comes twice.
pub struct SandboxLog {
    events: EventStream,
    last: u64,
    has_ended: bool,
}

impl Client {
    /// All entries of a sandbox's log that are kept, or those of one source, oldest first.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached.
    pub async fn logs(&self, id: &str, source: Option<&str>) -> Result<Vec<LogEntry>, ClientError> {
        let path = format!("/sandboxes/{id}/logs");
        let entries = self.pages(&path, &format!("limit={PAGE}{}", of(source)), "entries").await?;
        self.parse(&path, entries.into())
    }

    /// The last `count` entries of a sandbox's log, or of those of one source, oldest first.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached.
    pub async fn last_logs(&self, id: &str, source: Option<&str>, count: usize) -> Result<Vec<LogEntry>, ClientError> {
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut token = String::new();
        while entries.len() < count {
            let limit = PAGE.min(count - entries.len());
            let path = format!("/sandboxes/{id}/logs?order=desc&limit={limit}{}{token}", of(source));
            let page: Value = self.call(Method::GET, &path, None).await?;
            let page: Page = self.parse(&path, page)?;
            entries.extend(page.entries);
            match page.next_token {
                Some(next) => token = format!("&next_token={next}"),
                None => break,
            }
        }
        entries.reverse();
        Ok(entries)
    }

    /// The entries of a sandbox's log, or those of one source, that follow the one with this sequence, as they come; all that are kept
    /// with 0.
    pub fn follow_logs(&self, id: &str, source: Option<&str>, after: u64) -> SandboxLog {
        let query = source.map(|source| format!("?source={source}")).unwrap_or_default();
        let events = EventStream::new(self, format!("/sandboxes/{id}/logs{query}"), Some(after.to_string()));
        SandboxLog { events, last: after, has_ended: false }
    }
}

/// The parameter that selects a source.
fn of(source: Option<&str>) -> String {
    source.map(|source| format!("&source={source}")).unwrap_or_default()
}

impl SandboxLog {
    /// The next entry; none once the sandbox has ended.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached for long.
    pub async fn next(&mut self) -> Result<Option<LogEntry>, ClientError> {
        while !self.has_ended {
            let event = self.events.next().await?;
            match event.name.as_str() {
                "end" => self.has_ended = true,
                "log" => {
                    let entry: LogEntry = self.events.parse(&event)?;
                    if entry.sequence > self.last {
                        self.last = entry.sequence;
                        return Ok(Some(entry));
                    }
                }
                // `truncated`, which the sequences show too, and those of a later version of the API.
                _ => {}
            }
        }
        Ok(None)
    }
}
