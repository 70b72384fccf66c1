//! The files of one log.
//!
//! `log-<sequence>`, with twenty digits, is a **segment**: entries of the protocol in JSON, one a line, from the one with this
//! sequence on. The last segment grows; when it is a fourth of what the log may have, another begins and the oldest goes.
//!
//! A file is open only while it is read or written: there are many logs, most of them of sandboxes that are stopped. Nothing is
//! looked at before a log is first read or written by this agent. Then its last segment is read: what the end of an agent or of
//! the power tore is cut off, and the log says so; and sequences go on at the next multiple of [`STEP`], so that none is given
//! twice even where the power took entries that somebody had read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sandpiper_durable as durable;
use sandpiper_protocol::agent::{LogEntry, LogPage, LogQuery};

use super::intake::Line;
use super::recent::Recent;
use super::selection::Selection;

/// Segments of a log.
const SEGMENTS: usize = 4;
/// What sequences are raised to a multiple of: more than are given while the kernel holds back writes.
const STEP: u64 = 1_000_000;
/// What names of segments begin with.
const PREFIX: &str = "log-";
/// Lines that wait for the sandbox's folder, of a start that has just begun.
const WAITING: usize = 64;

/// Whether a file of this name is a segment.
pub(crate) fn is_segment(name: &str) -> bool {
    first_of(name).is_some()
}

/// Sequence of the first entry of a segment.
fn first_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX).filter(|digits| digits.len() == 20)?.parse().ok()
}

/// A log on the disk. All that is done with it blocks.
#[derive(Debug)]
pub(super) struct LogFile {
    folder: PathBuf,
    /// Bytes of a segment at most.
    most: u64,
    state: State,
    /// Lines for which the folder is not there yet.
    waiting: Vec<Line>,
    /// Lines that could not be written, of which the log does not say yet.
    lost: u64,
    recent: Recent,
    last: u64,
}

#[derive(Debug)]
enum State {
    Unopened,
    Open(Open),
    Closed,
}

#[derive(Debug)]
struct Open {
    /// Of each segment the first sequence, oldest first.
    segments: Vec<u64>,
    /// Bytes of the last segment.
    length: u64,
    next: u64,
}

impl LogFile {
    /// The log in `folder`, of at most so many bytes.
    pub(super) fn new(folder: PathBuf, bytes: u64) -> Self {
        let most = bytes / SEGMENTS as u64;
        let (waiting, recent) = (Vec::new(), Recent::default());
        Self { folder, most, state: State::Unopened, waiting, lost: 0, recent, last: 0 }
    }

    /// Sequence of the last entry; 0 before the log is opened, and while it is empty.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Adds entries. What cannot be written is lost; the log says so when it can be written again.
    pub(super) fn append(&mut self, lines: Vec<Line>) {
        self.waiting.extend(lines);
        match self.open() {
            Ok(()) => {}
            // The sandbox has no folder yet. It is not long until it has, and there is not much to say.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.lost += self.waiting.drain(..self.waiting.len().saturating_sub(WAITING)).len() as u64;
                return;
            }
            Err(error) => {
                let count = self.waiting.drain(..).len();
                return self.lose(count, &error);
            }
        }
        if self.waiting.is_empty() {
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            let said = format!("{lost} lines were lost: the host could not write them");
            self.waiting.insert(0, Line::of_host(said));
        }
        let first = self.next();
        let entries = (first..).zip(self.waiting.drain(..)).map(|(sequence, line)| {
            let Line { time, source, message } = line;
            LogEntry { sequence, time, source, message }
        });
        let entries: Vec<_> = entries.collect();
        let State::Open(open) = &mut self.state else { return self.keep(entries) };
        let (count, written) = open.write(&self.folder, self.most, &entries);
        let unwritten = entries.len() - count;
        self.keep(entries.into_iter().take(count));
        if let Err(error) = written {
            // What was to be said first is said again.
            let of_them = if count == 0 && lost > 0 { unwritten - 1 } else { unwritten };
            self.lost = if count == 0 { lost } else { 0 };
            self.lose(of_them, &error);
        }
    }

    /// What `query` selects.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn page(&mut self, query: &LogQuery) -> io::Result<LogPage> {
        match self.open() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut selection = Selection::new(query);
        if let State::Open(open) = &self.state {
            open.read(&self.folder, query, &mut selection)?;
            let first = open.segments.first().copied().unwrap_or_default();
            return Ok(selection.page(first, self.last, false));
        }
        let mut entries: Vec<_> = self.recent.entries().cloned().collect();
        let first = entries.first().map_or(0, |entry| entry.sequence);
        if query.newest_first {
            entries.reverse();
        }
        let _ = entries.into_iter().try_for_each(|entry| selection.look_at(entry));
        Ok(selection.page(first, self.last, matches!(self.state, State::Closed)))
    }

    /// Entries go to memory alone from now on.
    pub(super) fn close(&mut self) {
        // What waits for a folder that never came is all that there is of a sandbox that was not started.
        if matches!(self.state, State::Unopened) {
            self.state = State::Closed;
            self.append(Vec::new());
        }
        self.state = State::Closed;
    }

    fn next(&self) -> u64 {
        match &self.state {
            State::Open(open) => open.next,
            State::Unopened | State::Closed => self.last + 1,
        }
    }

    /// Remembers entries that are there now.
    fn keep(&mut self, entries: impl IntoIterator<Item = LogEntry>) {
        for entry in entries {
            self.last = entry.sequence;
            self.recent.push(entry);
        }
    }

    /// Counts lines that are given up, and tells the operator of the first of them.
    fn lose(&mut self, count: usize, error: &io::Error) {
        if self.lost == 0 {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot write a sandbox's log; lines of it are lost");
        }
        self.lost += count as u64;
    }

    /// Takes over what an earlier agent has left, once.
    fn open(&mut self) -> io::Result<()> {
        if !matches!(self.state, State::Unopened) {
            return Ok(());
        }
        let segments = segments(&self.folder)?;
        let Some(first) = segments.last().copied() else {
            self.state = State::Open(Open { segments, length: 0, next: 1 });
            return Ok(());
        };
        let path = segment(&self.folder, first);
        let bytes = fs::read(&path)?;
        let mut length = 0;
        self.last = first.saturating_sub(1);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(entry) = decode(line) else { break };
            length += line.len();
            self.keep([entry]);
        }
        let torn = bytes.len() - length;
        if torn > 0 {
            OpenOptions::new().write(true).open(&path)?.set_len(length as u64)?;
            self.waiting.insert(0, Line::of_host(format!("the end of the log was torn: {torn} bytes are cut off")));
        }
        let next = (self.last + 1).next_multiple_of(STEP);
        self.state = State::Open(Open { segments, length: length as u64, next });
        Ok(())
    }
}

impl Open {
    /// Writes entries: how many, and why not all. Those are whole, and nothing else is there.
    fn write(&mut self, folder: &Path, most: u64, entries: &[LogEntry]) -> (usize, io::Result<()>) {
        let mut count = 0;
        while count < entries.len() {
            match self.write_some(folder, most, &entries[count..]) {
                Ok(written) => count += written,
                Err(error) => return (count, Err(error)),
            }
        }
        (count, Ok(()))
    }

    /// Writes as many entries as the last segment has room for, or the first of them to a new one.
    fn write_some(&mut self, folder: &Path, most: u64, entries: &[LogEntry]) -> io::Result<usize> {
        let (mut text, mut count) = (Vec::new(), 0);
        for entry in entries {
            let line = encode(entry)?;
            let before = self.length + text.len() as u64;
            if before > 0 && before + line.len() as u64 > most {
                break;
            }
            text.extend(line);
            count += 1;
        }
        if count == 0 || self.segments.is_empty() {
            self.begin_segment(folder, self.next)?;
        }
        self.write_text(folder, &text)?;
        self.next += count as u64;
        Ok(count)
    }

    /// Has entries from `first` on go to a segment of their own; the oldest gives way.
    fn begin_segment(&mut self, folder: &Path, first: u64) -> io::Result<()> {
        while self.segments.len() >= SEGMENTS {
            durable::remove_file(&segment(folder, self.segments[0]))?;
            self.segments.remove(0);
        }
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(segment(folder, first))?;
        self.segments.push(first);
        self.length = 0;
        Ok(())
    }

    fn write_text(&mut self, folder: &Path, text: &[u8]) -> io::Result<()> {
        let Some(last) = self.segments.last().filter(|_| !text.is_empty()) else { return Ok(()) };
        let mut file = OpenOptions::new().append(true).open(segment(folder, *last))?;
        if let Err(error) = file.write_all(text) {
            // Half of a line must not stand before the next.
            file.set_len(self.length)?;
            return Err(error);
        }
        self.length += text.len() as u64;
        Ok(())
    }

    /// Shows the entries to `selection`, in the direction of the query, until it has enough.
    fn read(&self, folder: &Path, query: &LogQuery, selection: &mut Selection<'_>) -> io::Result<()> {
        let after = query.after.unwrap_or_default();
        // Of segments that end before what is asked for, or begin behind it, nothing is wanted.
        let ends = self.segments.iter().skip(1).copied().map(Some).chain([None]);
        let wanted = self.segments.iter().zip(ends).filter(|(first, next)| {
            next.is_none_or(|next| next > after.saturating_add(1)) && query.before.is_none_or(|before| **first < before)
        });
        let mut wanted: Vec<u64> = wanted.map(|(first, _)| *first).collect();
        if query.newest_first {
            wanted.reverse();
        }
        for first in wanted {
            let mut bytes = Vec::new();
            let file = File::open(segment(folder, first))?;
            let length = if self.segments.last() == Some(&first) { self.length } else { u64::MAX };
            file.take(length).read_to_end(&mut bytes)?;
            // What a disk has made of a line is nothing that anybody could read.
            let entries = bytes.split_inclusive(|byte| *byte == b'\n').filter_map(decode);
            let flow = if query.newest_first {
                let entries: Vec<_> = entries.collect();
                entries.into_iter().rev().try_for_each(|entry| selection.look_at(entry))
            } else {
                let mut entries = entries;
                entries.try_for_each(|entry| selection.look_at(entry))
            };
            if let ControlFlow::Break(()) = flow {
                break;
            }
        }
        Ok(())
    }
}

/// The first sequences of all segments in `folder`, oldest first.
fn segments(folder: &Path) -> io::Result<Vec<u64>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        segments.extend(entry?.file_name().to_str().and_then(first_of));
    }
    segments.sort_unstable();
    Ok(segments)
}

fn segment(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{first:020}"))
}

fn encode(entry: &LogEntry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

/// The entry in a line that is whole.
fn decode(line: &[u8]) -> Option<LogEntry> {
    serde_json::from_slice(line.strip_suffix(b"\n")?).ok()
}
