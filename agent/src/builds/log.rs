//! The log of one build: lines in a file, numbered from 1, each an entry of the protocol in JSON.
//!
//! An entry is in the file before anybody is told of it, and on stable storage once [`Log::sync`] returned. What the end of an
//! agent or of the power tore is cut off when the log is opened again. The file is open only while it is read or written: there
//! are many logs, most of them of builds that have ended.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use sandpiper_machine::sanitize_to;
use sandpiper_protocol::template::{BuildLogEntry, LogLevel};

/// One in so many entries is looked for by its number; those behind it are counted.
const STRIDE: u64 = 256;
/// Bytes of an entry's text.
const MAX_LINE: usize = 4096;
/// For the agent's own last words, beyond the limit.
const LAST_WORDS: u64 = 16 * 1024;

/// The log of a build.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// Where entries 1, 1 + [`STRIDE`] and so on begin.
    index: Vec<u64>,
    count: u64,
    /// The same, for who does not want to wait for a disk.
    end: Arc<AtomicU64>,
    bytes: u64,
    limit: u64,
}

/// A line that is to be an entry.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) level: LogLevel,
    pub(super) step: Option<u32>,
    pub(super) text: String,
}

impl Line {
    /// One of the agent's own.
    pub(super) fn of_agent(level: LogLevel, text: impl Into<String>) -> Self {
        Self { level, step: None, text: text.into() }
    }
}

impl Log {
    /// Opens the log in the file `path`, which exists, to have at most `limit` bytes. Blocks.
    pub(super) fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let mut log = Self { path: path.to_owned(), index: Vec::new(), count: 0, end: Arc::default(), bytes: 0, limit };
        let file = log.file()?;
        let mut reader = BufReader::new(&file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            log.note(line.len() as u64);
            line.clear();
        }
        file.set_len(log.bytes)?;
        Ok(log)
    }

    /// Number of the last entry.
    pub(super) fn end(&self) -> u64 {
        self.count
    }

    /// The same, kept up to date.
    pub(super) fn end_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.end)
    }

    /// Adds entries; false where the limit lets no more in. Blocks.
    pub(super) fn push(&mut self, lines: impl IntoIterator<Item = Line>) -> io::Result<bool> {
        self.write(lines, self.limit)
    }

    /// Adds what is said last: also beyond the limit. Blocks.
    pub(super) fn push_last(&mut self, lines: impl IntoIterator<Item = Line>) -> io::Result<bool> {
        self.write(lines, self.limit.saturating_add(LAST_WORDS))
    }

    /// Puts all of it on stable storage. Blocks.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    /// At most `most` entries numbered above `after`, oldest first. Blocks.
    pub(super) fn page(&self, after: u64, most: usize) -> io::Result<Vec<BuildLogEntry>> {
        if after >= self.count {
            return Ok(Vec::new());
        }
        let slot = after / STRIDE;
        let begin = usize::try_from(slot).ok().and_then(|slot| self.index.get(slot)).copied().unwrap_or_default();
        let mut file = self.file()?;
        file.seek(SeekFrom::Start(begin))?;
        let lines = BufReader::new(file.take(self.bytes - begin)).lines();
        let skipped = usize::try_from(after - slot * STRIDE).unwrap_or(usize::MAX);
        lines.skip(skipped).take(most).map(|line| Ok(serde_json::from_str(&line?)?)).collect()
    }

    fn write(&mut self, lines: impl IntoIterator<Item = Line>, limit: u64) -> io::Result<bool> {
        let mut text = Vec::new();
        let mut lengths = Vec::new();
        let mut is_full = false;
        for line in lines {
            let entry = BuildLogEntry {
                number: self.count + lengths.len() as u64 + 1,
                time: Timestamp::now(),
                level: line.level,
                step: line.step,
                text: sanitize_to(&line.text, MAX_LINE),
            };
            let before = text.len();
            serde_json::to_writer(&mut text, &entry)?;
            text.push(b'\n');
            if self.bytes + text.len() as u64 > limit {
                text.truncate(before);
                is_full = true;
                break;
            }
            lengths.push((text.len() - before) as u64);
        }
        let mut file = self.file()?;
        if let Err(error) = file.write_all(&text) {
            // Half of a line must not stand before the next.
            file.set_len(self.bytes)?;
            return Err(error);
        }
        lengths.into_iter().for_each(|length| self.note(length));
        Ok(!is_full)
    }

    fn file(&self) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).open(&self.path)
    }

    fn note(&mut self, length: u64) {
        if self.count.is_multiple_of(STRIDE) {
            self.index.push(self.bytes);
        }
        self.count += 1;
        self.end.store(self.count, Ordering::Relaxed);
        self.bytes += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: impl Into<String>) -> Line {
        Line { level: LogLevel::Info, step: Some(2), text: text.into() }
    }

    #[test]
    fn every_page_of_a_log_is_found_again_also_after_it_was_torn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        File::create(&path).unwrap();
        let mut log = Log::open(&path, 1 << 20).unwrap();
        assert!(log.push((1..=1000).map(|number| line(format!("line {number}")))).unwrap());
        log.sync().unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"number\":1001,\"ti").unwrap();

        let mut log = Log::open(&path, 1 << 20).unwrap();
        assert!(log.push([line("after\u{1b} the tear\n")]).unwrap());

        assert_eq!(log.end(), 1001);
        for after in [0, 1, 255, 256, 257, 700, 999] {
            let page = log.page(after, 3).unwrap();
            assert_eq!(page[0].number, after + 1);
            assert!(page.len() == 3 || after == 999, "{after}");
        }
        let last = log.page(1000, 10).unwrap();
        assert_eq!((last.len(), last[0].step, &*last[0].text), (1, Some(2), "after\u{fffd} the tear"));
        assert!(log.page(1001, 10).unwrap().is_empty() && log.page(u64::MAX, 10).unwrap().is_empty());
    }

    #[test]
    fn a_full_log_takes_the_last_words_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        File::create(&path).unwrap();
        let mut log = Log::open(&path, 1000).unwrap();

        assert!(!log.push((0..100).map(|_| line("x".repeat(80)))).unwrap());
        let count = log.end();
        assert!(!log.push([line("x".repeat(200))]).unwrap());
        assert!(log.push_last([line("the log is full")]).unwrap());

        assert!(count < 10 && std::fs::metadata(&path).unwrap().len() < 1200);
        assert_eq!(log.page(0, 1000).unwrap().last().unwrap().text, "the log is full");
    }
}
