//! The files of one log.
//!
//! A log is two [`Track`]s with one run of sequences: what processes write is in a track of its own, so that however much it is, it
//! pushes nothing else out. Each may have the size of the log.
//!
//! A file is open only while it is read or written: there are many logs, most of them of sandboxes that are stopped. Nothing is
//! looked at before a log is first read or written by this agent. Then the last segment of each track is read: what the end of an
//! agent or of the power tore is cut off, and the log says so; and sequences go on at the next multiple of [`STEP`], so that none
//! is given twice even where the power took entries that somebody had read.

use std::io;
use std::path::PathBuf;

use sandpiper_protocol::agent::{LogEntry, LogPage, LogQuery, LogSource};

use super::intake::Line;
use super::recent::Recent;
use super::selection::{Selection, merged};
use super::track::{self, Track};

/// What sequences are raised to a multiple of: more than are given while the kernel holds back writes.
const STEP: u64 = 1_000_000;
/// Lines that wait for the sandbox's folder, of a start that has just begun.
const WAITING: usize = 64;
/// What the names of the segments begin with: of what processes write, and of everything else.
const OUTPUT: &str = "output-";
const OTHERS: &str = "log-";

/// Whether a file of this name is a segment.
pub(crate) fn is_segment(name: &str) -> bool {
    [OTHERS, OUTPUT].into_iter().any(|prefix| track::first_of(prefix, name).is_some())
}

/// A log on the disk. All that is done with it blocks.
#[derive(Debug)]
pub(super) struct LogFile {
    folder: PathBuf,
    /// Bytes of each track at most.
    bytes: u64,
    state: State,
    /// Lines for which the folder is not there yet.
    waiting: Vec<Line>,
    /// Lines that could not be written, of which the log does not say yet.
    lost: u64,
    /// Of each track.
    recent: [Recent; 2],
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
    /// By [`index`].
    tracks: [Track; 2],
    next: u64,
}

/// Which of the tracks has the entries of a source.
fn index(source: LogSource) -> usize {
    usize::from(source == LogSource::Process)
}

impl LogFile {
    /// The log in `folder`, of at most so many bytes, and as many of what processes write.
    pub(super) fn new(folder: PathBuf, bytes: u64) -> Self {
        let (waiting, recent) = (Vec::new(), Default::default());
        Self { folder, bytes, state: State::Unopened, waiting, lost: 0, recent, last: 0 }
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
        let entries = (first..).zip(self.waiting.drain(..)).map(|(sequence, line)| line.into_entry(sequence));
        let (output, others): (Vec<_>, Vec<_>) = entries.partition(|entry| index(entry.source) == 1);
        for entries in [others, output] {
            let Err((error, unwritten)) = self.write(entries) else { continue };
            // What was to be said first is said again.
            let is_unsaid = lost > 0 && unwritten.first().is_some_and(|entry| entry.sequence == first);
            self.lost += if is_unsaid { lost } else { 0 };
            self.lose(unwritten.len() - usize::from(is_unsaid), &error);
        }
    }

    /// Writes entries of one track, and remembers them; why not all, and those that are not.
    fn write(&mut self, mut entries: Vec<LogEntry>) -> Result<(), (io::Error, Vec<LogEntry>)> {
        let (State::Open(open), Some(first)) = (&mut self.state, entries.first()) else {
            self.keep(entries);
            return Ok(());
        };
        let (count, written) = open.tracks[index(first.source)].write(&self.folder, &entries);
        let unwritten = entries.split_off(count);
        if let Some(last) = entries.last() {
            open.next = open.next.max(last.sequence + 1);
        }
        self.keep(entries);
        written.map_err(|error| (error, unwritten))
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
        let wanted = |track: &usize| query.source.is_none_or(|source| index(source) == *track);
        let mut selection = Selection::new(query);
        if let State::Open(open) = &self.state {
            let tracks = (0..2).filter(wanted).map(|track| &open.tracks[track]);
            let first = tracks.clone().map(Track::first).max().unwrap_or_default();
            selection
                .take(merged(tracks.map(|track| track.entries(&self.folder, query)).collect(), query.newest_first))?;
            return Ok(selection.page(first, self.last, false));
        }
        let tracks = (0..2).filter(wanted).map(|track| &self.recent[track]);
        let first = tracks.clone().filter_map(|recent| recent.entries().next()).map(|entry| entry.sequence).max();
        let entries = |recent: &Recent| {
            let mut entries: Vec<_> = recent.entries().cloned().map(Ok).collect();
            if query.newest_first {
                entries.reverse();
            }
            entries.into_iter()
        };
        selection.take(merged(tracks.map(entries).collect(), query.newest_first))?;
        Ok(selection.page(first.unwrap_or_default(), self.last, matches!(self.state, State::Closed)))
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
            self.last = self.last.max(entry.sequence);
            self.recent[index(entry.source)].push(entry);
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
        let others = Track::open(&self.folder, OTHERS, self.bytes)?;
        let output = Track::open(&self.folder, OUTPUT, self.bytes)?;
        let is_new = others.track.is_empty() && output.track.is_empty();
        let torn = others.torn + output.torn;
        if torn > 0 {
            self.waiting.insert(0, Line::of_host(format!("the end of the log was torn: {torn} bytes are cut off")));
        }
        self.last = others.track.last_begins().max(output.track.last_begins()).saturating_sub(1);
        self.keep(others.entries.into_iter().chain(output.entries));
        let next = if is_new { 1 } else { (self.last + 1).next_multiple_of(STEP) };
        self.state = State::Open(Open { tracks: [others.track, output.track], next });
        Ok(())
    }
}
